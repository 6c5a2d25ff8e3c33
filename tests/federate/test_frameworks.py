"""Sites whose networks come from different frameworks have one predictor, with the same arrays at all of them."""

import itertools
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from fedgen.core.contract import Task
from fedgen.core.trees import named
from fedgen.errors import FedgenError
from fedgen.federate.deploy.folders import Folders, write_app
from fedgen.federate.plan import Plan
from fedgen.federate.schema import TaskSettings
from fedgen.federate.settings import AppSettings
from helpers import small_config

NETWORKS = Path(__file__).parents[2] / "examples/site_networks"
KEY = jax.random.key(3)


def settings_of(root: Path, algorithm: str = "fedgen", **settings: Any) -> AppSettings:
    """The settings of a federation whose sites keep the networks of the example."""
    config = small_config(algorithm, **{"share": "predictor", **settings})
    write_app(Folders(root), config, TaskSettings(classes=4, sample=(8, 8, 1), dtype="float32"))
    return AppSettings(Folders(root).app, NETWORKS)


def forms(settings: AppSettings, task: Task) -> dict[str, Any]:
    """The arrays that a site with this task sends."""
    upload = named(Plan(settings.config, task).forms.upload)
    return {name: (leaf.shape, leaf.dtype) for name, leaf in upload.items()}


@pytest.mark.parametrize(
    ("algorithm", "arrays"),
    [("fedgen", 3), ("fedmoments", 5)],  # weight and bias; label counts, or number, sum and products of each label
)
def test_all_send_the_same_arrays_and_keep_their_own_extractors(tmp_path: Path, algorithm: str, arrays: int) -> None:
    settings = settings_of(tmp_path, algorithm)
    ours = settings.task_with("", {})
    grey = settings.task_with("torch_network:build", {"latent": 6}, sample=(8, 8, 1))
    colour = settings.task_with("flax_network:build", {"latent": 6}, sample=(12, 12, 3))
    expected = forms(settings, ours)
    assert len(expected) == arrays
    assert forms(settings, grey) == forms(settings, colour) == expected
    extractors = [set(named(jax.eval_shape(task.model.init, KEY)[0].extractor)) for task in (ours, grey, colour)]
    assert not any(a & b for a, b in itertools.pairwise(extractors))


def test_a_torch_extractor_with_the_shared_predictor_is_what_pytorch_computes(tmp_path: Path) -> None:
    settings = settings_of(tmp_path)
    task = settings.task_with("torch_network:build", {"latent": 6}, sample=(8, 8, 1))
    params, statistics = task.model.init(KEY)
    shared = settings.task_with("", {}).model.init(KEY)[0].predictor
    assert all(np.array_equal(a, b) for a, b in zip(*map(jax.tree.leaves, (params.predictor, shared)), strict=True))

    x = np.random.default_rng(0).normal(size=(5, 8, 8, 1)).astype(np.float32)
    z, _ = task.model.extract(params.extractor, statistics, jnp.asarray(x), False)
    extractor = torch.nn.Sequential(
        torch.nn.Conv2d(1, 8, 3, stride=2, padding=1), torch.nn.BatchNorm2d(8), torch.nn.ReLU(), torch.nn.Flatten(),
        torch.nn.Linear(8 * 4 * 4, 6), torch.nn.ReLU(),
    ).eval()  # fmt: skip
    given = {name: torch.tensor(np.array(a)) for name, a in {**params.extractor, **statistics}.items()}
    extractor.load_state_dict(given, strict=False)
    features = extractor(torch.tensor(x.transpose(0, 3, 1, 2))).detach().numpy()
    np.testing.assert_allclose(z, features, rtol=1e-4, atol=1e-5)
    logits = features @ np.asarray(shared["weight"]) + np.asarray(shared["bias"])
    np.testing.assert_allclose(task.model.predict(params.predictor, z), logits, rtol=1e-4, atol=1e-5)


def test_another_latent_size_is_refused(tmp_path: Path) -> None:
    settings = settings_of(tmp_path)
    with pytest.raises(FedgenError, match=r"'flax_network:build': the network gives 7 features, .* takes 6; they must"):
        settings.task_with("flax_network:build", {"latent": 7}, sample=(12, 12, 3))


def test_where_all_is_shared_a_network_stays_as_it_is(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, share="all")
    task = settings.task_with("flax_network:build", {"latent": 7})
    sent = " ".join(forms(settings, task))
    assert "Dense_1/kernel" in sent
    assert task.model.state_dict is not None
