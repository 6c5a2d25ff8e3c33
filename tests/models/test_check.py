"""Networks that are not what they should be: one sentence each, before anything is compiled."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx

import fedgen
from fedgen.config import resolve
from fedgen.errors import FedgenError
from fedgen.federate.plan import Plan
from fedgen.federate.schema import TaskSettings
from fedgen.federate.settings import task_of_settings
from fedgen.models.adapt import as_model
from fedgen.models.check import check_model
from fedgen.runs.task import model_by_name
from fedgen.simulator.setup import prepare
from helpers import SMALL, small_data

WEIGHT = {"a": jnp.zeros((64, 5)), "b": jnp.zeros((5, 4))}
GOOD = fedgen.Model(
    init=lambda key: (fedgen.Params(WEIGHT["a"], WEIGHT["b"]), {"mean": jnp.zeros(5)}),
    extract=lambda weight, statistics, x, train: (x.reshape(len(x), -1) @ weight, statistics),
    predict=lambda weight, z: z @ weight,
)


def wrong(**parts: Any) -> fedgen.Model:
    return GOOD._replace(**parts)


def test_a_good_one_passes() -> None:
    prepare(config(), small_data(), GOOD)


def config() -> Any:
    small = {key: value for key, value in SMALL.items() if not key.startswith("model")}
    return resolve(small, {"model": "own", "algorithms": ["fedavg"]}, own={"dataset", "model"})


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (wrong(predict=lambda w, z: (z @ w)[:, :3]), "the model has 3 outputs and the data 4 classes"),
        (wrong(predict=lambda w, z: jnp.tile(z @ w, 2)), "the model has 8 outputs and the data 4 classes"),
        (wrong(predict=lambda w, z: (z @ w)[:, 0]), r"predict gives an array of shape \(2,\).*a number for each class"),
        (wrong(predict=lambda w, z: (z @ w).argmax(1)), "predict gives an array .* of int32"),
        (wrong(predict=lambda w, z: None), "predict gives None"),
        (
            wrong(predict=lambda w, z: (z @ w).astype(jnp.bfloat16)),
            r"predict gives logits of bfloat16; .* of float32: give logits.astype\(jnp.float32\)$",
        ),
        (
            wrong(extract=lambda w, s, x, train: ((x.reshape(len(x), -1) @ w).astype(jnp.float16), s)),
            r"extract gives features of float16; .* of float32: give z.astype\(jnp.float32\)$",
        ),
        (
            wrong(init=lambda key: (fedgen.Params(WEIGHT["a"], WEIGHT["b"].astype(jnp.bfloat16)), ())),
            "init gives parameters of bfloat16; they must be of float32: give .* round them in extract and predict$",
        ),
        (wrong(predict=lambda w, z: z @ w.T), r"predict does not take features of shape \(5,\): "),
        (wrong(init=lambda key: WEIGHT), "init gives a dict; it must give"),
        (wrong(init=lambda key: (WEIGHT, ())), r"init gives a tuple of 2 \(dict, tuple\); it must give"),
        (wrong(init=lambda key: fedgen.Params(1.0, 2.0)), "init gives a Params; it must give"),
        (wrong(init=lambda key: (fedgen.Params((), ()), ())), "no parameters, so there is nothing to train"),
        (wrong(init=lambda key: (fedgen.Params(jnp.zeros(3, int), ()), ())), "parameters include an array .* of int32"),
        (wrong(init=lambda key: (fedgen.Params(WEIGHT, ()), key)), "statistics include an array .*key"),
        (wrong(init=lambda: None), "the model's init fails: .*takes 0 positional arguments"),
        (wrong(extract=lambda w, s, x, train: x.reshape(len(x), -1) @ w), "extract gives an array.*it must give"),
        (wrong(extract=lambda w, s, x, train: (x, s)), r"extract gives is an array of shape \(2, 8, 8, 1\).* a vector"),
        (wrong(extract=lambda w, s, x, train: (jnp.ones(5), s)), r"extract gives is an array of shape \(5,\)"),
        (wrong(extract=lambda w, s, x, train: (jnp.ones((2, 5), int), s)), "of int32 .* of floating-point numbers"),
        (wrong(extract=lambda w, s, x, train: (jnp.ones((2, 5)), ())), "statistics of another form"),
        (wrong(extract=lambda w, s, x, train: (jnp.ones((2, 6 if train else 5)), s)), "of another shape or type in"),
        (wrong(extract=lambda w, s, x, train: (x @ w, s)), r"does not take samples of shape \(8, 8, 1\) of float32: "),
        (wrong(never_negative=("['variance']",)), r"\['variance'\] are never negative; it has \['mean'\]$"),
        (wrong(extract=lambda w, s, x: (x, s)), "does not take samples .*positional arguments"),
        (wrong(random=True), "does not take samples .*positional arguments"),
        (nn.Dense(4), "what layer '' gets is an array"),
        (nn.Sequential([lambda x: x.reshape(len(x), -1), nn.Dense(3)]), "the model has 3 outputs"),
        (eqx.nn.Linear(64, 4, key=jax.random.key(0)), r"does not take samples of shape \(8, 8, 1\) of float32"),
        (lambda sample, classes: 1 / 0, "function that makes the network raises ZeroDivisionError: division by zero$"),
        (lambda key: nn.Dense(4), "a function of a key makes a Dense; it must make an nnx or Equinox module"),
        (lambda key: torch.nn.Linear(2, 4), "a function of a key makes a Linear; it must"),
        (lambda: nn.Dense(4), "as lambda sample, classes: network, for Equinox and nnx also as lambda key: network"),
        (eqx.nn.MLP, r"given as the class MLP; give the network, MLP\(...\), or a function that makes it"),
        ({}, "a model is given as a dict; it must be a fedgen.Model, or a module of Flax, Equinox or PyTorch"),
    ],
)  # fmt: skip
def test_each_mistake_is_a_sentence(model: Any, message: str) -> None:
    with pytest.raises(FedgenError, match=message) as caught:
        prepare(config(), small_data(), model)
    assert "\n" not in str(caught.value)


def test_a_federation_checks_the_same() -> None:
    settings = resolve({"algorithms": ["fedavg"], "users": 2, "active": 2, "dataset": "x"}, own={"dataset"})
    task = task_of_settings(settings, TaskSettings(classes=3, sample=(8, 8, 1)), GOOD)
    with pytest.raises(FedgenError, match="the model has 4 outputs and the data 3 classes"):
        Plan(settings, task)


SAMPLE = jax.ShapeDtypeStruct((64,), jnp.float32)


@pytest.mark.parametrize(
    "thing",
    [
        GOOD,
        nn.Sequential([nn.Dense(5), nn.Dense(4)]),
        eqx.nn.MLP(64, 4, 5, 1, key=jax.random.key(0)),
        (eqx.nn.make_with_state(eqx.nn.MLP)(64, 4, 5, 1, key=jax.random.key(0))),
        lambda sample, classes: nn.Sequential([nn.Dense(5), nn.Dense(classes)]),
        pytest.param(
            torch.nn.Sequential(torch.nn.Linear(64, 5), torch.nn.Linear(5, 4)),
            marks=pytest.mark.skipif("from_torch" not in fedgen.__all__, reason="not in this version"),
        ),
    ],
    ids=["model", "linen", "equinox", "equinox with state", "function", "torch"],
)
def test_whatever_a_user_brings_is_a_model(thing: Any) -> None:
    model = as_model(thing, SAMPLE, 4)
    check_model(fedgen.Task(model, 4, SAMPLE, lambda x: x))


@pytest.mark.parametrize(("name", "package"), [("from_flax", "flax"), ("from_equinox", "equinox")])
def test_a_framework_that_is_missing_is_said(name: str, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"fedgen.models.{name}.find_spec", lambda wanted: None)
    with pytest.raises(FedgenError, match=rf"{name} needs .*pip install '.\[{package}\]'"):
        getattr(fedgen, name)(GOOD, sample=(4,))


def test_the_command_takes_a_module_that_a_function_gives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "networks.py").write_text(
        "import flax.linen as nn\n\n\ndef small(sample, classes, *, hidden: int = 5):\n"
        "    return nn.Sequential([lambda x: x.reshape(len(x), -1), nn.Dense(hidden), nn.relu, nn.Dense(classes)])\n"
    )
    monkeypatch.chdir(tmp_path)
    small = {key: value for key, value in SMALL.items() if not key.startswith("model")}
    chosen = resolve(small, {"model": "networks:small", "model.hidden": 7, "algorithms": ["fedavg"]}, own={"dataset"})
    setup = prepare(chosen, small_data())
    assert setup.task.latent_size() == 7
    assert set(setup.task.model.state_dict(*setup.task.model.init(jax.random.key(0)))) == {
        f"params/layers_{i}/{part}" for i in (1, 3) for part in ("kernel", "bias")
    }


def test_tokens_reach_the_network_as_whole_numbers_and_tables_the_built_in_one_as_measurements() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 50, (200, 6)), np.arange(200) % 3
    data = fedgen.from_arrays(x, y, x, y)
    assert data.x_train.dtype == np.int32
    small = {key: value for key, value in SMALL.items() if key != "dataset"} | {"dataset": "arrays"}
    setup = prepare(resolve(small, {"algorithms": ["fedavg"]}, own={"dataset"}), data)
    assert setup.task.prepare(setup.data.x).dtype == jnp.int32
    model = setup.task.model
    params, statistics = model.init(jax.random.key(0))
    whole, measured = (model.extract(params.extractor, statistics, jnp.asarray(x, t), False)[0] for t in (int, float))
    assert np.array_equal(whole, measured)

    class Reader(nn.Module):
        @nn.compact
        def __call__(self, words: jax.Array) -> jax.Array:
            assert words.dtype == jnp.int32
            return nn.Dense(3)(nn.Embed(50, 4)(words).mean(1))

    without = {key: value for key, value in small.items() if not key.startswith("model")}
    own = resolve(without, {"algorithms": ["fedavg"], "model": "own"}, own={"dataset", "model"})
    assert prepare(own, data, Reader()).task.latent_size() == 4


class Tokens(nn.Module):
    """As many rows as given, for each position of its own if several are given."""

    rows: tuple[int, ...]

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        if len(self.rows) == 1:
            return nn.Dense(3)(nn.Embed(self.rows[0], 4)(x).mean(1))
        return nn.Dense(3)(jnp.concatenate([nn.Embed(n, 4)(x[:, i]) for i, n in enumerate(self.rows)], 1))


class TorchTokens(torch.nn.Module):
    def __init__(self, rows: int) -> None:
        super().__init__()
        self.words, self.head = torch.nn.Embedding(rows, 4), torch.nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        known = (x > 0).unsqueeze(2)  # a text of padding alone gives NaN, and is none of the data's
        return self.head((self.words(x) * known).sum(1) / known.sum(1))


def with_tokens(model: Any, tokens: Any) -> None:
    x, y = np.tile(np.asarray(tokens), (60, 1)), np.arange(60 * len(tokens)) % 3
    small = {key: value for key, value in SMALL.items() if not key.startswith("model")} | {"dataset": "arrays"}
    own = resolve(small, {"algorithms": ["fedavg"], "model": "own"}, own={"dataset", "model"})
    prepare(own, fedgen.from_arrays(x, y, x, y), model)


TEXTS = [[1, 2, 3, 0], [4, 29, 1, 1], [7, 6, 0, 0]]


@pytest.mark.parametrize("model", [Tokens((29,)), Tokens((8, 29, 8, 8)), TorchTokens(29)])
def test_words_beyond_an_embedding_are_refused(model: Any) -> None:
    """JAX gives NaN for them, PyTorch an error."""
    with pytest.raises(FedgenError, match=r"NaN for a sample with the number 29; an embedding needs .* here 30 rows"):
        with_tokens(model, TEXTS)


@pytest.mark.parametrize("model", [Tokens((30,)), Tokens((8, 30, 4, 2)), TorchTokens(30)])
def test_embeddings_that_are_large_enough_pass(model: Any) -> None:
    with_tokens(model, TEXTS)


def test_numbers_below_an_embedding_are_refused() -> None:
    with pytest.raises(FedgenError, match=r"the number -100; an embedding has rows from 0 on"):
        with_tokens(Tokens((30,)), [[1, 2, -100, 0], [4, 9, 1, 1]])


class Words(eqx.Module):
    """The mean of a text's embedded words."""

    table: eqx.nn.Embedding

    def __call__(self, words: jax.Array, *, key: Any = None) -> jax.Array:
        return jax.vmap(self.table)(words).mean(0)


def _embedded_by_equinox(key: jax.Array) -> eqx.nn.Sequential:
    return eqx.nn.Sequential([Words(eqx.nn.Embedding(30, 4, key=key)), eqx.nn.Linear(4, 3, key=key)])


class Handled(nn.Module):
    """Knows negative numbers."""

    how: str

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        table = nn.Embed(30, 4)
        places = {"remainder": x % 30, "least": jnp.maximum(x, 0), "shifted": x + 3, "masked": x}[self.how]
        known = table(places) * (x >= 0)[..., None] if self.how == "masked" else table(places)
        return nn.Dense(3)(known.mean(1))


MISSING = [[1, 2, -1, 0], [4, 9, 1, 1], [3, 3, -1, 2]]


@pytest.mark.parametrize("model", [Tokens((30,)), Tokens((8, 12, 30, 5)), _embedded_by_equinox])
def test_a_negative_word_that_would_be_counted_from_the_end_is_refused(model: Any) -> None:
    with pytest.raises(
        FedgenError, match=r"takes the number -1 for 29, counted from the end of its 30 rows; .* from 0"
    ):
        with_tokens(model, MISSING)


def test_torchs_embeddings_refuse_negative_words() -> None:
    with pytest.raises(FedgenError, match=r"NaN for a sample with the number -1; an embedding has rows from 0 on"):
        with_tokens(TorchTokens(30), MISSING)


@pytest.mark.parametrize("how", ["remainder", "least", "shifted", "masked"])
def test_negative_words_that_a_network_knows_pass(how: str) -> None:
    with_tokens(Handled(how), MISSING)


def test_the_number_that_a_table_has_not_is_named_and_not_a_larger_one() -> None:
    with pytest.raises(FedgenError, match=r"the number 9; .* here 10 rows"):
        with_tokens(Tokens((60, 9, 3, 3)), [[50, 9, 1, 0], [1, 2, 0, 0]])


class Table(torch.nn.Module):
    """Two measurements and a category."""

    def __init__(self) -> None:
        super().__init__()
        self.kind, self.head = torch.nn.Embedding(5, 4), torch.nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.cat([x[:, :2], self.kind(x[:, 2].long())], 1))


class FlaxTable(nn.Module):
    """The same in Flax."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        return nn.Dense(3)(jnp.concatenate([x[:, :2], nn.Embed(5, 4)(x[:, 2].astype(int))], 1))


@pytest.mark.parametrize("model", [Table(), FlaxTable()])
def test_a_category_among_measurements_is_checked(model: Any) -> None:
    rows = np.array([[0.5, 70, 4], [-1.5, 30, 0], [0.1, -20, 1]], np.float32)
    with_tokens(model, rows)
    too_large, missing = rows.copy(), rows.copy()
    too_large[1, 2], missing[2, 2] = 7, -1
    with pytest.raises(FedgenError, match=r"the number 7 in column 2 \(the first is 0\); .* here 8 rows"):
        with_tokens(model, too_large)
    with pytest.raises(FedgenError, match=r"the number -1 (for 4|in column 2 \(.*\)( for 4)?).* from 0"):
        with_tokens(model, missing)


def test_a_table_of_measurements_may_have_any_numbers() -> None:
    rows = np.array([[0.5, 70, -4], [-1.5, 30, 0], [0.1, -20, 1]], np.float32)
    with_tokens(nn.Sequential([nn.Dense(5), nn.relu, nn.Dense(3)]), rows)


NETS = """
import equinox as eqx
import flax.linen as nn
import jax
import torch
from flax import nnx


def equinox_of_three(sample, classes, *, key, hidden: int = 5):
    return eqx.nn.MLP(sample[0], classes, hidden, 1, key=key)


def with_state(sample, classes):
    return lambda key: eqx.nn.make_with_state(eqx.nn.MLP)(sample[0], classes, 5, 1, key=key)


def nnx_of_three(sample, classes, key):
    return nnx.Linear(sample[0], classes, rngs=nnx.Rngs(key))


def nnx_of_a_key(sample, classes):
    return lambda key: nnx_of_three(sample, classes, key)


def raises(sample, classes):
    raise ValueError("I am broken\\nand say more")


number = 3


class Module(eqx.Module):
    weight: jax.Array

    def __init__(self, key):
        self.weight = jax.random.normal(key, (3, 64))

    def __call__(self, x):
        return self.weight @ x


class Linen(nn.Module):
    @nn.compact
    def __call__(self, x, *, train=False):
        return nn.Dense(3)(x)


class Torch(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(64, 3)

    def forward(self, x):
        return self.fc(x)


class Wide(Torch):
    def __init__(self, width=3, depth=2):
        raise ValueError(f"{width} is no width")


equinox, linen, of_torch = eqx.nn.MLP(64, 3, 5, 1, key=jax.random.key(0)), Linen(), Torch()
"""


@pytest.fixture
def nets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "key_nets.py").write_text(NETS)
    sys.modules.pop("key_nets", None)
    yield
    sys.modules.pop("key_nets", None)


@pytest.mark.parametrize("name", ["equinox_of_three", "with_state", "nnx_of_three", "nnx_of_a_key"])
def test_a_network_made_of_a_key_starts_anew_with_each_seed(name: str, nets: None) -> None:
    model = model_by_name(f"key_nets:{name}", SAMPLE, 4, {})
    check_model(fedgen.Task(model, 4, SAMPLE, lambda x: x))
    first, other, again = (jax.tree.leaves(model.init(jax.random.key(seed))[0])[-1] for seed in (1, 2, 1))
    assert not np.array_equal(first, other)
    assert np.array_equal(first, again)


def test_a_function_of_a_key_from_python() -> None:
    for make in (lambda key: nnx.Linear(64, 4, rngs=nnx.Rngs(key)), lambda *, key: eqx.nn.MLP(64, 4, 5, 1, key=key)):
        model = as_model(make, SAMPLE, 4)
        first, other = (jax.tree.leaves(model.init(jax.random.key(seed))[0])[-1] for seed in (1, 2))
        assert not np.array_equal(first, other)


def test_the_key_is_no_option_that_a_user_sets(nets: None) -> None:
    layer = {"model": "key_nets:equinox_of_three", "algorithms": ["fedavg"], "model.hidden": 7}
    assert resolve(layer).of("model") == {"hidden": 7}
    with pytest.raises(FedgenError, match=r"unknown option of model 'key'"):
        resolve(layer, {"model.key": 3})


def test_mistakes_in_a_named_network_name_it(nets: None) -> None:
    with pytest.raises(FedgenError, match=r"^model 'key_nets:raises': .* raises ValueError: I am broken$"):
        model_by_name("key_nets:raises", SAMPLE, 4, {})
    with pytest.raises(FedgenError, match=r"^model 'key_nets:number' is of type int; it must be a function$"):
        resolve({"model": "key_nets:number", "algorithms": ["fedavg"]})


BUILD = r"name a function that makes the network: def build\(sample, classes\): return \.\.\.$"


@pytest.mark.parametrize("name", ["equinox", "linen", "of_torch"])
def test_a_network_in_place_of_a_function_is_said(name: str, nets: None) -> None:
    with pytest.raises(FedgenError, match=rf"^model 'key_nets:{name}' is the network itself, a \w+; {BUILD}"):
        resolve({"model": f"key_nets:{name}", "algorithms": ["fedavg"]})


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Module", "is a class that does not take"),
        ("Torch", "is a class that does not take"),
        ("Wide", r"the class Wide is called with .* raises ValueError: \(64,\) is no width"),
    ],
)
def test_a_class_in_place_of_a_function_is_said(name: str, message: str, nets: None) -> None:
    with pytest.raises(FedgenError, match=rf"^model 'key_nets:{name}'.*{message}.*; {BUILD}"):
        model_by_name(f"key_nets:{name}", SAMPLE, 4, {})
