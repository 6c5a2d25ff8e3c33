"""Functions that give PyTorch modules: each seed has its own start, the same command the same results."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import torch

import fedgen
from fedgen.errors import FedgenError
from fedgen.models.adapt import as_model
from fedgen.runs.task import model_by_name
from use_runs import named_data

MODULE = """
import torch
from torch import nn


def build(sample, classes):
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Tanh(), nn.Linear(8, 5), nn.ReLU(), nn.Linear(5, classes))
    net[1].requires_grad_(False)
    return net


def fixed(sample, classes, *, width: int = 5):
    import fedgen
    return fedgen.from_torch(
        nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.ReLU(), nn.Linear(width, classes)), sample=(1, 8, 8)
    )
"""
SAMPLE = jax.ShapeDtypeStruct((8, 8, 1), np.uint8)
SETTINGS: dict[str, Any] = {
    "users": 4, "active": 2, "rounds": 1, "local_steps": 2, "batch_size": 8, "eval_every": 1, "progress": False,
    "options": {"partition.min_samples": 2},
}  # fmt: skip


@pytest.fixture
def nets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "nets.py").write_text(MODULE)
    sys.modules.pop("nets", None)
    import nets  # type: ignore[import-not-found]

    yield nets
    sys.modules.pop("nets", None)


def _start(model: fedgen.Model, seed: int) -> dict[str, np.ndarray]:
    return {name: tensor.numpy() for name, tensor in model.state_dict(*model.init(jax.random.key(seed))).items()}


def test_a_builder_starts_from_the_seed_and_leaves_generators_alone(nets: Any) -> None:
    torch.manual_seed(5)
    before, numpy_before = torch.random.get_rng_state(), np.random.get_state()[1].copy()
    named = model_by_name("nets:build", SAMPLE, 4, {})
    first, other = _start(named, 1), _start(named, 2)
    assert torch.equal(before, torch.random.get_rng_state())
    np.testing.assert_array_equal(numpy_before, np.random.get_state()[1])
    torch.manual_seed(6)
    again = _start(as_model(nets.build, SAMPLE, 4), 1)
    for name, array in first.items():
        np.testing.assert_array_equal(array, again[name])
    assert not np.any(first["3.weight"] == other["3.weight"])
    np.testing.assert_array_equal(first["1.weight"], other["1.weight"])  # frozen: a constant, for all seeds


def test_a_builder_that_gives_a_finished_model_gives_the_same_again(nets: Any) -> None:
    torch.manual_seed(5)
    first = _start(model_by_name("nets:fixed", SAMPLE, 4, {}), 1)
    again = _start(model_by_name("nets:fixed", SAMPLE, 4, {}), 1)
    np.testing.assert_array_equal(first["1.weight"], again["1.weight"])


@pytest.mark.slow
def test_runs_are_repeated_to_the_bit_and_loaded_models_have_their_frozen_parameters(nets: Any, tmp_path: Path) -> None:
    data = named_data()
    torch.manual_seed(1)
    result = fedgen.simulate("fedavg", data=data, model="nets:build", seed=3, **SETTINGS)
    torch.manual_seed(2)
    kept = fedgen.simulate("fedavg", data=data, model=nets.build, seed=3, out=tmp_path / "run", **SETTINGS)
    torch.manual_seed(3)
    x = data.x_test[:20]
    logits = result.model().logits(x)
    np.testing.assert_array_equal(logits, kept.model().logits(x))
    np.testing.assert_array_equal(logits, fedgen.load(tmp_path / "run", model=nets.build).model().logits(x))


@pytest.mark.parametrize("shape", [(8, 8, 1), (8, 8)])
def test_images_of_16_bits_are_pixels(shape: tuple[int, ...]) -> None:
    net = torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3, stride=2), torch.nn.Flatten(), torch.nn.Linear(18, 4))
    model = as_model(net, jax.ShapeDtypeStruct(shape, np.uint16), 4)
    params, statistics = model.init(jax.random.key(0))
    x = np.random.default_rng(0).random((3, *shape), np.float32)
    z, _ = model.extract(params.extractor, statistics, x, False)
    with torch.no_grad():
        expected = net(torch.as_tensor(x).reshape(3, 1, 8, 8)).numpy()
    np.testing.assert_allclose(model.predict(params.predictor, z), expected, atol=1e-5)


def test_a_function_of_other_arguments_is_said(nets: Any) -> None:
    with pytest.raises(FedgenError, match=r"does not take \(the sample's shape, the number of classes\)"):
        as_model(lambda: nets.build((), 4), SAMPLE, 4)
