"""Export to PyTorch: a module's source and its weights, without PyTorch being needed here."""

import re
from collections.abc import Callable, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save

from fedgen.core.contract import Tree
from fedgen.errors import FedgenError
from fedgen.files import write_whole
from fedgen.models import MODELS
from fedgen.use.classifier import Classifier, Network

Arrays = dict[str, NDArray[Any]]

_LOADER = '''

CLASSES = {classes!r}


def load(weights=None):
    """The trained network, ready to predict."""
    from pathlib import Path

    from safetensors.torch import load_file

    network = Network({arguments})
    network.load_state_dict(load_file(weights or Path(__file__).with_suffix(".safetensors")))
    return network.eval()
'''


def torch(model: Classifier, folder: Path) -> list[Path]:
    """A PyTorch module (NAME.py with `load()`) and its weights; the state_dict alone of a network from PyTorch."""
    name = re.sub(r"\W", "_", str(model.whose))
    weights = folder / f"{name}.safetensors"
    task_model = model.task.model
    if task_model.framework not in ("", "torch"):
        raise FedgenError(
            f"this network came from {task_model.framework.capitalize()}, and PyTorch has none with its names; export"
            " its weights to safetensors, or the network to stablehlo"
        )
    if task_model.state_dict is not None:
        given = task_model.state_dict(*model.network)
        # A module's state of other kinds (get_extra_state) has no place in safetensors.
        _write(weights, {key: np.asarray(value) for key, value in given.items() if hasattr(value, "shape")})
        return [weights]
    convert = _CONVERT.get(model.config.model)
    if convert is None or MODELS.origin(model.config.model) or f"model {model.config.model}" in model.config.plugins:
        raise FedgenError(
            f"model '{model.config.model}' has no counterpart in PyTorch that is known here (cnn, mlp, resnet and"
            " networks that came from PyTorch have); export it to onnx or stablehlo"
        )
    arguments, arrays = convert(model.network, model)
    form = model.form
    given = {**arguments, "classes": len(form.class_names), "scale": form.scale, "white": form.max_value}
    source = (files("fedgen.use.export") / "torch_networks" / f"{model.config.model}.py").read_text(encoding="utf-8")
    said = ", ".join(f"{key}={value!r}" for key, value in given.items())
    path = folder / f"{name}.py"
    _write(weights, arrays)
    write_whole(path, (source + _LOADER.format(classes=model.class_names, arguments=said)).encode())
    return [path, weights]


def _write(path: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    write_whole(path, save({name: np.array(value, order="C") for name, value in arrays.items()}))


def _linear(params: Tree) -> Arrays:
    return {"weight": params["weight"].T, "bias": params["bias"]}


def _conv(params: Tree) -> Arrays:
    """Ours is [out, row, column, in], flat; PyTorch's [out, in, row, column]."""
    outputs = len(params["weight"])
    return {"weight": params["weight"].reshape(outputs, 3, 3, -1).transpose(0, 3, 1, 2), "bias": params["bias"]}


def _norm(params: Tree, statistics: Tree) -> Arrays:
    running = {"running_mean": statistics["mean"], "running_var": statistics["variance"]}
    return {
        "weight": params["scale"], "bias": params["shift"], **running, "num_batches_tracked": np.array(0, np.int64),
    }  # fmt: skip


def _named(parts: Mapping[str, Arrays]) -> Arrays:
    return {f"{place}.{name}": value for place, arrays in parts.items() for name, value in arrays.items()}


def _cnn(network: Network, model: Classifier) -> tuple[dict[str, Any], Arrays]:
    (extractor, predictor), statistics = network
    count = sum(name.startswith("conv") for name in extractor)
    height, width, inputs = (*model.form.sample, 1)[:3]
    pool = model.config.of("model").get("pool")
    pool = min(height, width) >= 64 if pool is None else bool(pool)  # as `fedgen.models.classifiers.cnn` decides
    step = 4 if pool else 3  # modules of a layer: convolution, BatchNorm, ReLU, and the pool
    parts: dict[str, Arrays] = {}
    for i in range(count):
        parts[f"extractor.{step * i}"] = _conv(extractor[f"conv{i}"])
        parts[f"extractor.{step * i + 1}"] = _norm(extractor[f"norm{i}"], statistics[f"norm{i}"])
    parts[f"extractor.{step * count + 1}"] = _linear(extractor["linear"])
    parts["predictor"] = _linear(predictor)
    flat, latent = extractor["linear"]["weight"].shape
    channels = tuple(len(extractor[f"conv{i}"]["weight"]) for i in range(count))
    return {"inputs": inputs, "channels": channels, "pool": pool, "flat": flat, "latent": latent}, _named(parts)


def _mlp(network: Network, model: Classifier) -> tuple[dict[str, Any], Arrays]:
    (extractor, predictor), _ = network
    inputs, hidden = extractor["hidden"]["weight"].shape
    weight = extractor["hidden"]["weight"]
    if len(model.form.sample) == 3:  # images: PyTorch has the channels first
        weight = weight.reshape(*model.form.sample, hidden).transpose(2, 0, 1, 3).reshape(inputs, hidden)
    parts = {
        "extractor.1": _linear({"weight": weight, "bias": extractor["hidden"]["bias"]}),
        "extractor.3": _linear(extractor["latent"]),
        "predictor": _linear(predictor),
    }
    return {"inputs": inputs, "hidden": hidden, "latent": extractor["latent"]["weight"].shape[1]}, _named(parts)


def _resnet(network: Network, model: Classifier) -> tuple[dict[str, Any], Arrays]:
    (extractor, predictor), statistics = network
    names = [name.removesuffix("a") for name in extractor if re.fullmatch(r"stage\d+block\d+a", name)]
    names.sort(key=lambda name: [int(number) for number in re.findall(r"\d+", name)])
    stages = [name for name in names if name.endswith("block0")]
    parts = {
        "extractor.0.0": _conv(extractor["stem"]),
        "extractor.0.1": _norm(extractor["stem-norm"], statistics["stem-norm"]),
    }
    for number, name in enumerate(names, 1):
        for half in "ab":
            parts[f"extractor.{number}.{half}.0"] = _conv(extractor[name + half])
            norm = f"{name}{half}-norm"
            parts[f"extractor.{number}.{half}.1"] = _norm(extractor[norm], statistics[norm])
        if f"{name}-shortcut" in extractor:
            shortcut = extractor[f"{name}-shortcut"]
            weight = shortcut["weight"].T[:, :, None, None]
            parts[f"extractor.{number}.shortcut"] = {"weight": weight, "bias": shortcut["bias"]}
    parts[f"extractor.{len(names) + 3}"] = _linear(extractor["linear"])
    parts["predictor"] = _linear(predictor)
    arguments = {
        "inputs": (*model.form.sample, 1)[2],
        "widths": tuple(len(extractor[f"{name}a"]["weight"]) for name in stages),
        "blocks": len(names) // len(stages),
        "latent": extractor["linear"]["weight"].shape[1],
    }
    return arguments, _named(parts)


_CONVERT: dict[str, Callable[[Network, Classifier], tuple[dict[str, Any], Arrays]]] = {
    "cnn": _cnn,
    "mlp": _mlp,
    "resnet": _resnet,
}
