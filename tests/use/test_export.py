"""Each export is loaded again without FedGen, and gives the same logits."""

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import linen as nn
from safetensors import safe_open
from safetensors.torch import load_file

import fedgen
from fedgen.config import resolve
from fedgen.core.streams import stream
from fedgen.data.dataset import DataForm
from fedgen.errors import FedgenError
from fedgen.runs.trained import Trained
from fedgen.use.classifier import Classifier, Whose, built
from fedgen.use.export import EXPORTS
from fedgen.use.form import task_for
from helpers import each
from use_runs import named_data

NETWORKS = {
    "cnn": ({"model": "cnn", "model.channels": [3, 4], "model.latent": 5}, (9, 8, 1)),
    "pooled cnn": ({"model": "cnn", "model.channels": [3], "model.pool": True, "model.latent": 5}, (11, 8, 3)),
    "mlp": ({"model": "mlp", "model.hidden": 7, "model.latent": 5}, (4, 5, 3)),
    "resnet": ({"model": "resnet", "model.widths": [3, 5], "model.blocks": 2, "model.latent": 4}, (8, 9, 3)),
}


def _model(network: str, scale: Any = "signed") -> tuple[Classifier, np.ndarray]:
    """A network with random weights and statistics, and images for it."""
    settings, sample = NETWORKS[network]
    model = _classifier(settings, DataForm(("a", "b", "c", "d"), sample, "uint8", scale, 255))
    return model, np.random.default_rng(0).integers(0, 256, (5, *sample)).astype(np.uint8)


def _classifier(settings: dict[str, Any], form: DataForm, network: fedgen.Model | None = None) -> Classifier:
    config = resolve({"algorithms": ["fedavg"]}, settings)
    task = task_for(config, form, network)
    server = built(config, "fedavg", task).server_init(stream(jax.random.key(0), "model"))
    rng = np.random.default_rng(0)
    server = jax.tree.map(lambda a: np.asarray(a + rng.uniform(0.1, 0.5, a.shape), np.float32), server)
    return Classifier(Whose("fedavg", 0), config, task, form, Trained(server, None, 3))


def _imported(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("scale", ["signed", "unit"])
@pytest.mark.parametrize("network", each(NETWORKS, quick=set(NETWORKS) - {"resnet"}))
def test_a_pytorch_module_gives_the_same_logits(network: str, scale: str, tmp_path: Path) -> None:
    model, images = _model(network, scale)
    source, weights = EXPORTS["torch"](model, tmp_path)
    assert "fedgen" not in source.read_text().replace("fedgen_", ""), "it needs no FedGen"
    module = _imported(source)
    assert module.CLASSES == ("a", "b", "c", "d")
    net = module.load()
    assert not net.training
    with torch.no_grad():
        channels_first = torch.from_numpy(images).permute(0, 3, 1, 2)
        found = net(channels_first)
        floats = channels_first.float() / 255
        normalised = net((floats - 0.5) / 0.5 if scale == "signed" else floats)
    np.testing.assert_allclose(found.numpy(), model.logits(images), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(normalised.numpy(), found.numpy(), rtol=1e-5, atol=1e-5)
    assert weights.suffix == ".safetensors"


@pytest.mark.parametrize("network", NETWORKS)
def test_stablehlo_gives_the_same_logits_for_any_number_of_samples(network: str, tmp_path: Path) -> None:
    model, images = _model(network)
    program, text = EXPORTS["stablehlo"](model, tmp_path)
    loaded = jax.export.deserialize(bytearray(program.read_bytes()))
    for count in (1, 5):
        np.testing.assert_allclose(loaded.call(images[:count]), model.logits(images[:count]), rtol=1e-5, atol=1e-5)
    assert "stablehlo" in text.read_text()


def test_safetensors_hold_the_weights_and_what_they_are_for(tmp_path: Path) -> None:
    model, images = _model("mlp")
    (path,) = EXPORTS["safetensors"](model, tmp_path)
    with safe_open(path, framework="numpy") as file:
        about = json.loads(file.metadata()["fedgen"])
        arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    assert about["classes"] == ["a", "b", "c", "d"]
    assert (about["scale"], about["max_value"]) == ("signed", 255)
    assert (about["sample"], about["model"]) == ([4, 5, 3], "mlp")
    x = ((images / 255 - 0.5) / 0.5).reshape(5, -1)
    h = np.maximum(x @ arrays["extractor.hidden.weight"] + arrays["extractor.hidden.bias"], 0)
    z = h @ arrays["extractor.latent.weight"] + arrays["extractor.latent.bias"]
    logits = z @ arrays["predictor.weight"] + arrays["predictor.bias"]
    np.testing.assert_allclose(logits, model.logits(images), rtol=1e-4, atol=1e-4)


def _from_flax(flat: Any) -> fedgen.Model:
    class Two(nn.Module):
        @nn.compact
        def __call__(self, x: jax.Array) -> jax.Array:
            return nn.Dense(4)(nn.relu(nn.Dense(5)(flat(x))))

    return fedgen.from_flax(Two(), sample=(8, 8, 1))


class _Equinox(eqx.Module):
    mlp: eqx.nn.MLP

    def __init__(self, key: jax.Array) -> None:
        self.mlp = eqx.nn.MLP(64, 4, 5, 1, key=key)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.mlp(x.reshape(-1))


class _FirstChannel(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[:, 0]


def _torch_module() -> torch.nn.Module:
    layers = [torch.nn.Conv2d(1, 2, 3), torch.nn.BatchNorm2d(2), torch.nn.ReLU(), _FirstChannel(), torch.nn.Flatten()]
    return torch.nn.Sequential(*layers, torch.nn.Linear(36, 4))


OTHERS: dict[str, tuple[Callable[[], fedgen.Model], int | str]] = {  # and how many samples their programs take
    "torch": (lambda: fedgen.from_torch(_torch_module, sample=(1, 8, 8)), "n"),
    "flax": (lambda: _from_flax(lambda x: x.reshape(x.shape[0], -1)), "n"),
    "flax with len": (lambda: _from_flax(lambda x: x.reshape(len(x), -1)), 1),
    "equinox": (lambda: fedgen.from_equinox(_Equinox, sample=(8, 8, 1)), "n"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_networks_of_other_frameworks(name: str, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """Their programs take any number of samples, unless their own code needs it; PyTorch gets only its own back."""
    make, samples = OTHERS[name]
    model = _classifier({}, named_data().form, make())
    program, _ = EXPORTS["stablehlo"](model, tmp_path)
    loaded = jax.export.deserialize(bytearray(program.read_bytes()))
    assert str(loaded.in_avals[0].shape[0]) == str(samples)
    assert ("takes one at a time" in capsys.readouterr().err) == (samples == 1)
    x = named_data().x_test[: 1 if samples == 1 else 3]
    np.testing.assert_allclose(loaded.call(x), model.logits(x), rtol=1e-4, atol=1e-5)
    if name == "torch":
        (weights,) = EXPORTS["torch"](model, tmp_path)
        _torch_module().load_state_dict(load_file(weights))  # all of them, by name
    else:
        with pytest.raises(FedgenError, match="safetensors, or the network to stablehlo"):
            EXPORTS["torch"](model, tmp_path)


def _embedding() -> fedgen.Model:
    class Words(nn.Module):
        @nn.compact
        def __call__(self, x: jax.Array) -> jax.Array:
            return nn.Dense(4)(nn.Embed(7, 3)(x).mean(axis=1))

    return fedgen.from_flax(Words(), sample=jax.ShapeDtypeStruct((5,), jnp.int32))


@pytest.mark.slow  # jax2onnx takes seconds to import
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", ["uint16", "int32", "torch", "equinox", "bfloat16"])  # int32 by Flax
def test_onnx_of_other_samples_and_networks(case: str, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    runtime = pytest.importorskip("onnxruntime")
    names = ("a", "b", "c", "d")
    mlp = {"model": "mlp", "model.hidden": 7, "model.latent": 5}
    x = np.random.default_rng(0).integers(0, 7, (3, 5)).astype(np.int32)
    if case == "bfloat16":
        with pytest.raises(FedgenError, match="train with --precision float32"):
            EXPORTS["onnx"](_classifier({**mlp, "precision": case}, named_data().form), tmp_path)
        return
    if case == "uint16":
        x = (x * 500).astype(np.uint16)
        model = _classifier(mlp, DataForm(names, (5,), "uint16", "signed", 4095))
    elif case == "int32":
        model = _classifier({}, DataForm(names, (5,), "int32", "signed", 255), _embedding())
    else:
        x, model = named_data().x_test[:3], _classifier({}, named_data().form, OTHERS[case][0]())
    (path,) = EXPORTS["onnx"](model, tmp_path)
    session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    (given,) = session.get_inputs()
    x = x[:1] if given.shape[0] == 1 else x
    assert ("takes one at a time" in capsys.readouterr().err) == (given.shape[0] == 1)
    expected = model.logits(x)
    np.testing.assert_allclose(session.run(None, {given.name: x})[0], expected, rtol=1e-3, atol=1e-4)


@pytest.mark.slow  # jax2onnx takes seconds to import
@pytest.mark.filterwarnings("ignore")  # its own, of whatever it imports
@pytest.mark.parametrize("network", NETWORKS)
def test_onnx_gives_the_same_logits(network: str, tmp_path: Path) -> None:
    """For any number of samples; of resnet, whose padding the converter knows so only, for one."""
    runtime = pytest.importorskip("onnxruntime")
    model, images = _model(network)
    (path,) = EXPORTS["onnx"](model, tmp_path)
    session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    (given,) = session.get_inputs()
    assert given.shape[0] == (1 if network == "resnet" else "n")
    for count in (1,) if network == "resnet" else (1, 5):
        (found,) = session.run(None, {given.name: images[:count]})
        expected = model.logits(images[:count])
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5 * np.abs(expected).max())


def _from_torch(state_dict: Any) -> fedgen.Model:
    def init(key: jax.Array) -> tuple[fedgen.Params, tuple]:
        a, b = jax.random.split(key)
        return fedgen.Params(jax.random.normal(a, (64, 5)), jax.random.normal(b, (5, 4))), ()

    def extract(weights: jax.Array, statistics: Any, x: jax.Array, train: bool) -> tuple[jax.Array, Any]:
        return jnp.tanh(x.reshape(len(x), -1) @ weights), statistics

    return fedgen.Model(init, extract, lambda w, z: z @ w, state_dict=state_dict)


def test_a_network_that_came_from_pytorch_gives_its_state_dict(tmp_path: Path) -> None:
    """Its own function says under which names; others are told what to use instead."""
    settings = {"users": 4, "active": 2, "rounds": 1, "local_steps": 1, "alpha": 1.0}

    def state_dict(params: fedgen.Params, statistics: Any) -> dict[str, Any]:
        # State of other kinds, as of get_extra_state, is no part of the file.
        return {"0.weight": params.extractor.T, "2.weight": params.predictor.T, "_extra_state": {"version": 1}}

    model = fedgen.simulate("fedavg", data=named_data(), model=_from_torch(state_dict), **settings).model()
    (path,) = EXPORTS["torch"](model, tmp_path)
    net = torch.nn.Sequential(torch.nn.Linear(64, 5, bias=False), torch.nn.Tanh(), torch.nn.Linear(5, 4, bias=False))
    net.load_state_dict(load_file(path))
    x = named_data().x_test[:6]
    with torch.no_grad():
        found = net(torch.from_numpy((x / 255 - 0.5) / 0.5).float().reshape(6, -1))
    np.testing.assert_allclose(found.numpy(), model.logits(x), rtol=1e-4, atol=1e-5)
    other = fedgen.simulate("fedavg", data=named_data(), model=_from_torch(None), **settings).model()
    with pytest.raises(FedgenError, match="export it to onnx or stablehlo"):
        EXPORTS["torch"](other, tmp_path)
