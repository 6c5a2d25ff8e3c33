"""Networks of Equinox: the same outputs, gradients and statistics as Equinox itself gives, and simulated rounds."""

import doctest
import re
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch

import fedgen
from fedgen.core.trees import mean, named, stack
from fedgen.errors import FedgenError
from fedgen.models import from_equinox
from fedgen.models.precision import at_precision
from helpers import SMALL, small_data

KEY = jax.random.key(3)
X = jax.random.normal(jax.random.key(1), (6, 8, 8, 1))
Y = jnp.array([0, 1, 2, 3, 0, 1])
Mode = Literal["batch", "ema"]


class Net(eqx.Module):
    """A convolution, BatchNorm, dropout, and a softmax after the last layer."""

    conv: eqx.nn.Conv2d
    norm: eqx.nn.BatchNorm
    dropout: eqx.nn.Dropout
    layers: list[eqx.nn.Linear]
    order: jax.Array  # whole numbers that are no parameters

    def __init__(self, key: jax.Array, rate: float = 0.5, mode: Mode = "batch") -> None:
        keys = jax.random.split(key, 3)
        self.conv = eqx.nn.Conv2d(1, 3, 3, stride=2, padding=1, key=keys[0])
        self.norm = eqx.nn.BatchNorm(3, axis_name="samples", momentum=0.8, mode=mode)
        self.dropout = eqx.nn.Dropout(rate)
        self.layers = [eqx.nn.Linear(48, 5, key=keys[1]), eqx.nn.Linear(5, 4, key=keys[2])]
        self.order = jnp.arange(48)[::-1]

    def __call__(self, x: jax.Array, state: eqx.nn.State, key: jax.Array) -> tuple[jax.Array, eqx.nn.State]:
        x, state = self.norm(self.conv(jnp.moveaxis(x, -1, 0)), state)
        x = jax.nn.relu(self.layers[0](jax.nn.relu(x).ravel()[self.order]))
        return jax.nn.log_softmax(self.layers[1](self.dropout(x, key=key))), state


@pytest.mark.parametrize("mode", ["batch", "ema"])
@pytest.mark.parametrize("train", [False, True])
def test_it_gives_the_same_loss_gradient_and_statistics(train: bool, mode: Mode) -> None:
    """After a first batch, which Equinox's BatchNorm treats differently: it counts them."""
    model = fedgen.from_equinox(lambda key: Net(key, mode=mode), sample=X[0])
    params, statistics = model.init(KEY)
    assert set(params.predictor) == {"layers.1.weight", "layers.1.bias"}
    assert "order" not in {**params.extractor, **statistics}
    assert model.random

    def ours(params: fedgen.Params, statistics: Any, train: bool) -> tuple[jax.Array, Any]:
        z, statistics = model.extract(params.extractor, statistics, X, train, KEY)
        logits = model.predict(params.predictor, z)
        return optax.softmax_cross_entropy_with_integer_labels(logits, Y).mean(), statistics

    module, state = eqx.nn.make_with_state(Net)(KEY, mode=mode)
    keys = jax.random.split(KEY, len(X))

    def theirs(module: Net, state: eqx.nn.State, train: bool) -> tuple[jax.Array, eqx.nn.State]:
        network = eqx.nn.inference_mode(module, value=not train)
        logits, state = jax.vmap(network, in_axes=(0, None, 0), out_axes=(0, None), axis_name="samples")(X, state, keys)
        return optax.softmax_cross_entropy_with_integer_labels(logits, Y).mean(), state

    _, statistics = jax.jit(ours, static_argnums=2)(params, statistics, True)
    _, state = eqx.filter_jit(theirs)(module, state, True)
    both = jax.jit(jax.value_and_grad(ours, has_aux=True), static_argnums=2)
    (value, new), gradient = both(params, statistics, train)
    (wanted, after), slope = eqx.filter_jit(eqx.filter_value_and_grad(theirs, has_aux=True))(module, state, train)
    np.testing.assert_allclose(value, wanted, rtol=1e-6)
    found = {**gradient.extractor, **gradient.predictor}
    for name, a in {"conv.weight": slope.conv.weight, "norm.weight": slope.norm.weight}.items():
        np.testing.assert_allclose(found[name], a, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(found["layers.0.weight"], slope.layers[0].weight, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(found["layers.1.bias"], slope.layers[1].bias, rtol=1e-5, atol=1e-7)
    named = model.state_dict(params, new)
    for place in (0, 1):
        kept = after.get(getattr(module.norm, f"{mode}_state_index"))[place]
        np.testing.assert_allclose(named[f"norm.{mode}_state_index.{place}"], kept, rtol=1e-5, atol=1e-6)
    if mode == "batch":
        assert named["norm.batch_counter"] == after.get(module.norm.batch_counter) == (2 if train else 1)
    else:
        assert not named["norm.ema_first_time_index"]
        assert not after.get(module.norm.ema_first_time_index)


def test_counters_are_averaged_to_counters_and_weigh_nothing() -> None:
    """Two users who counted 3 and 6 batches: 4.5 of them, rounded; in an update of length 1 they would not be seen."""
    model = fedgen.from_equinox(Net, sample=X[0])
    params, statistics = model.init(KEY)
    step = jax.jit(lambda statistics: model.extract(params.extractor, statistics, X, True, KEY)[1])
    reached = []
    for steps in (3, 6):
        own = statistics
        for _ in range(steps):
            own = step(own)
        reached.append(own)
    average = mean(stack(reached))
    assert model.state_dict(params, average)["norm.batch_counter"] in (4, 5)
    assert float(reached[1]["norm.batch_counter"] - statistics["norm.batch_counter"]) < 1e-5


def test_dropout_draws_by_the_key_for_each_sample() -> None:
    """A quarter of the features is zero, others with another key, and those that are left grow by 4/3."""
    without, model = (fedgen.from_equinox(lambda key, rate=rate: Net(key, rate), sample=X[0]) for rate in (0.0, 0.25))
    params, statistics = model.init(KEY)
    extract = jax.jit(model.extract_in_training)
    x = jax.random.normal(KEY, (4000, 8, 8, 1))
    whole, _ = jax.jit(without.extract_in_training)(params.extractor, statistics, x, KEY)
    first, second, again = (
        np.asarray(extract(params.extractor, statistics, x, jax.random.key(seed))[0]) for seed in (1, 2, 1)
    )
    shown = np.asarray(whole) > 0  # where ReLU did not make it 0 before
    assert abs(np.mean(first[shown] == 0) - 0.25) < 0.03
    left = first > 0
    np.testing.assert_allclose(first[left], np.asarray(whole)[left] / 0.75, rtol=1e-5)
    assert np.array_equal(first, again)
    assert abs(np.mean(first[shown & (second == 0)] == 0) - 0.25) < 0.06, "drawn anew"


def test_modules_with_their_state_and_functions_of_a_key() -> None:
    """A module starts every seed as it is; a function makes another of each key."""
    for given in (Net(KEY), eqx.nn.make_with_state(Net)(KEY)):
        model = fedgen.from_equinox(given, sample=X[0])
        first, second = (model.init(jax.random.key(seed))[0].extractor["conv.weight"] for seed in (0, 1))
        assert np.array_equal(first, second)
        assert np.array_equal(first, Net(KEY).conv.weight)
    for given in (Net, eqx.nn.make_with_state(Net)):
        model = fedgen.from_equinox(given, sample=X[0])
        first, second = (jax.jit(model.init)(jax.random.key(seed))[0].extractor["conv.weight"] for seed in (0, 1))
        assert not np.array_equal(first, second)


def test_splits_of_a_sequence() -> None:
    """At the last layer, at a named one, and as two modules: one function."""
    keys = jax.random.split(KEY, 3)
    layers = [eqx.nn.Linear(n, m, key=key) for n, m, key in zip((3, 5, 6), (5, 6, 4), keys, strict=True)]
    relu = eqx.nn.Lambda(jax.nn.relu)
    whole = eqx.nn.Sequential([layers[0], relu, layers[1], relu, layers[2]])
    x = jax.random.normal(KEY, (7, 3))
    wanted = jax.vmap(whole)(x)
    two = fedgen.from_equinox(eqx.nn.Sequential([layers[0], relu]), eqx.nn.Sequential(whole.layers[2:]), sample=(3,))
    for model, latent in (
        (fedgen.from_equinox(whole, sample=(3,)), 6),
        (fedgen.from_equinox(whole, "layers.2", sample=(3,)), 5),
        (fedgen.from_equinox(whole, "layers.3", sample=(3,)), 6),
        (two, 5),
    ):
        params, statistics = model.init(KEY)
        z, _ = model.extract(params.extractor, statistics, x, False)
        assert z.shape == (7, latent)
        np.testing.assert_allclose(model.predict(params.predictor, z), wanted, rtol=1e-5)
        assert not model.random
    assert set(two.state_dict(*two.init(KEY))) == {
        *(f"extractor/layers.0.{part}" for part in ("weight", "bias")),
        *(f"predictor/layers.{i}.{part}" for i in (0, 2) for part in ("weight", "bias")),
    }


def types_of_products(traced: Any) -> set[str]:
    return set(re.findall(r":(\w+)\[[\d,]*\] = (?:dot_general|conv_general_dilated)\[", str(traced)))


def test_parameters_in_bfloat16_compute_in_bfloat16() -> None:
    model = fedgen.from_equinox(Net, sample=X[0])
    params, statistics = model.init(KEY)
    half = jax.tree.map(lambda a: a.astype(jnp.bfloat16), params)
    x = X.astype(jnp.bfloat16)
    extracted = jax.make_jaxpr(lambda p: model.extract(p, statistics, x, True, KEY))(half.extractor)
    predicted = jax.make_jaxpr(model.predict)(half.predictor, jnp.zeros((6, 5), jnp.bfloat16))
    assert types_of_products(extracted) == types_of_products(predicted) == {"bf16"}
    assert {a.dtype for a in (*extracted.out_avals, *predicted.out_avals)} == {jnp.dtype(jnp.float32)}


class Plain(eqx.Module):
    """BatchNorm and two layers, whose numbers and arithmetic may be of another type."""

    norm: eqx.nn.BatchNorm
    layers: list[eqx.nn.Linear]

    def __init__(self, key: jax.Array, mode: Mode, dtype: Any) -> None:
        keys = jax.random.split(key)
        self.norm = eqx.nn.BatchNorm(64, axis_name="samples", momentum=0.8, dtype=dtype, mode=mode)
        sizes = ((64, 5), (5, 4))
        self.layers = [eqx.nn.Linear(*s, dtype=dtype, key=k) for s, k in zip(sizes, keys, strict=True)]

    def __call__(self, x: jax.Array, state: eqx.nn.State) -> tuple[jax.Array, eqx.nn.State]:
        x, state = self.norm(x.ravel().astype(self.layers[0].weight.dtype), state)
        return self.layers[1](jax.nn.relu(self.layers[0](x))), state


@pytest.mark.parametrize("mode", ["batch", "ema"])
def test_batch_norm_normalises_in_float32_at_precision_bfloat16_too(mode: Mode) -> None:
    """Its sums would be rounded to bfloat16, and in mode "ema" it compared them with averages in float32."""
    model = fedgen.from_equinox(lambda key: Plain(key, mode, jnp.float32), sample=X[0])
    model, exact = at_precision(model, "bfloat16"), model
    params, statistics = model.init(KEY)
    for _ in range(2):
        z, statistics = model.extract(params.extractor, statistics, X, True)
    got = np.asarray(X.astype(jnp.bfloat16), np.float64).reshape(len(X), -1)
    share = 1.0 if mode == "ema" else 1 - 0.8**2  # mode "batch" starts at 0 and 1, and divides by this share later
    averages = [statistics[f"norm.{mode}_state_index.{place}"] for place in (0, 1)]
    np.testing.assert_allclose(averages[0], share * got.mean(0), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(averages[1], share * got.var(0) + (0 if mode == "ema" else 0.8**2), rtol=1e-4)
    evaluated, same = model.extract(params.extractor, statistics, X, False)
    wanted, _ = exact.extract(params.extractor, statistics, X, False)
    np.testing.assert_allclose(evaluated, wanted, rtol=0.02, atol=0.02)
    assert {a.dtype for a in jax.tree.leaves((z, evaluated, statistics, same))} == {jnp.dtype(jnp.float32)}


@pytest.mark.parametrize("mode", ["batch", "ema"])
def test_a_network_in_bfloat16_trains_in_float32(mode: Mode) -> None:
    model = fedgen.from_equinox(lambda key: Plain(key, mode, jnp.bfloat16), sample=X[0])
    params, statistics = model.init(KEY)
    own = model.state_dict(params, statistics)
    assert {own[name].dtype for name in (*params.extractor, *params.predictor)} == {jnp.dtype(jnp.bfloat16)}

    def loss(params: fedgen.Params) -> tuple[jax.Array, Any]:
        z, new = model.extract(params.extractor, statistics, X, True)
        logits = model.predict(params.predictor, z)
        return optax.softmax_cross_entropy_with_integer_labels(logits, Y).mean(), (z, logits, new)

    gradient, (z, logits, new) = jax.jit(jax.grad(loss, has_aux=True))(params)
    kept = jax.tree.leaves((params, statistics, gradient, z, logits, new))
    assert {a.dtype for a in kept} == {jnp.dtype(jnp.float32)}
    layers, flat = Plain(KEY, mode, jnp.bfloat16).layers, X.reshape(len(X), -1)
    normal = ((flat - flat.mean(0)) / jnp.sqrt(flat.var(0) + 1e-5)).astype(jnp.bfloat16)
    wanted = jax.vmap(lambda x: layers[1](jax.nn.relu(layers[0](x))))(normal)
    np.testing.assert_allclose(logits, wanted.astype(jnp.float32), rtol=0.05, atol=0.03)


def test_a_convolution_stays_one() -> None:
    model = fedgen.from_equinox(Net, sample=X[0])
    params, statistics = model.init(KEY)
    traced = jax.make_jaxpr(lambda p: model.extract(p, statistics, X, True, KEY))(params.extractor)
    assert [e.primitive.name for e in traced.eqns].count("conv_general_dilated") == 1
    alone = jax.make_jaxpr(model.predict)(params.predictor, jnp.zeros((6, 5)))
    assert "conv_general_dilated" not in str(alone), "the predictor is traced without the extractor"


class Reading(eqx.Module):
    """Reads what its layers are made of: a size, and a table of words that is tied to what comes after them."""

    words: eqx.nn.Embedding
    cell: eqx.nn.GRUCell
    tied_to_logits: bool = eqx.field(static=True)
    head: eqx.nn.Linear

    def __init__(self, key: jax.Array, tied_to_logits: bool = False) -> None:
        keys = jax.random.split(key, 3)
        self.words, self.cell = eqx.nn.Embedding(5, 4, key=keys[0]), eqx.nn.GRUCell(4, 4, key=keys[1])
        self.tied_to_logits, self.head = tied_to_logits, eqx.nn.Linear(4 if tied_to_logits else 5, 4, key=keys[2])

    def __call__(self, x: jax.Array) -> jax.Array:
        read = jax.vmap(self.words)(x)
        h = jax.lax.scan(lambda h, word: (self.cell(word, h), None), jnp.zeros(self.cell.hidden_size), read)[0]
        return self.words.weight @ self.head(h) if self.tied_to_logits else self.head(self.words.weight @ h)


def test_a_network_may_read_what_its_layers_are_made_of() -> None:
    words = jnp.array([[1, 4, 0], [2, 2, 3]])
    model = fedgen.from_equinox(Reading, sample=words[0])
    params, statistics = model.init(KEY)
    assert set(params.predictor) == {"head.weight", "head.bias"}
    z, _ = model.extract(params.extractor, statistics, words, True)
    np.testing.assert_allclose(model.predict(params.predictor, z), jax.vmap(Reading(KEY))(words), rtol=1e-5, atol=1e-6)


def test_a_network_with_spectral_norm_is_split_at_its_last_layer() -> None:
    model = fedgen.from_equinox(Stateful, sample=(3,))
    assert set(model.init(KEY)[0].predictor) == {"head.weight", "head.bias"}


@pytest.mark.parametrize(
    ("module", "layer", "sample", "message"),
    [
        (Net, "hat", (8, 8, 1), "Net has no layer 'hat'; its layers with parameters are conv, .*layers.1"),
        (Net, "layers.7", (8, 8, 1), "has no layer 'layers.7'"),
        (Net, "conv", (8, 8, 1), r"what layer 'conv' gets is an array of shape \(2, 1, 8, 8\)"),
        (Net, "layers.0", (8, 8, 1), "draws at random in training; split the network after its last dropout"),
        (Net, None, (16,), r"the Equinox network Net does not take samples of shape \(16,\) of float32: "),
        (eqx.nn.make_with_state(Net)(KEY)[0], None, (8, 8, 1), "without its state; give both .*make_with_state"),
        (jnp.sin, None, (16,), "the Equinox network cannot be made: "),
        (
            lambda key: Reading(key, True),
            None,
            np.zeros(3, np.int32),
            "parameter 'words.weight' is used before layer 'head' and after",
        ),
        ({}, None, (16,), "not a dict"),
        (eqx.nn.Lambda(jax.nn.relu), None, (16,), "has no layer with parameters"),
        (torch.nn.Linear(16, 4), None, (16,), "a Linear is of PyTorch: fedgen.from_torch takes it"),
        (jnp.sin, torch.nn.Linear(16, 4), (16,), "a Linear is of PyTorch: fedgen.from_torch takes it"),
    ],
)
def test_what_cannot_be_split_is_said_in_a_sentence(module: Any, layer: str | None, sample: Any, message: str) -> None:
    with pytest.raises(FedgenError, match=message) as caught:
        fedgen.from_equinox(module, layer, sample=sample)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("mode", "algorithm", "share", "precision"),
    [
        ("ema", "fedavg", "all", "float32"),
        ("ema", "fedavg", "all", "bfloat16"),
        pytest.param("ema", "fedgen", "predictor", "float32", marks=pytest.mark.slow),
        pytest.param("batch", "fedavg", "predictor", "bfloat16", marks=pytest.mark.slow),
        pytest.param("batch", "fedgen", "all", "float32", marks=pytest.mark.slow),
    ],
)
def test_rounds_of_a_simulation(mode: Mode, algorithm: str, share: str, precision: str) -> None:
    model = fedgen.from_equinox(lambda key: Net(key, mode=mode), sample=(8, 8, 1))
    options = {key: value for key, value in SMALL.items() if "." in key and not key.startswith("model")}
    settings = {key: value for key, value in SMALL.items() if "." not in key and key not in ("dataset", "model")}
    settings |= {"rounds": 2, "share": share, "precision": precision}
    (row,) = fedgen.simulate(algorithm, data=small_data(), model=model, options=options, **settings)["results"]
    assert len(row["curve"]) == 2
    assert not row.get("diverged_at")
    assert (row["accuracy"] is None) == (share == "predictor"), "then only users have whole models"


def test_the_example_in_the_docstring() -> None:
    found = doctest.testmod(from_equinox)
    assert found.attempted
    assert not found.failed


class Stateful(eqx.Module):
    """BatchNorm, and another layer with state."""

    norms: list[eqx.nn.BatchNorm]
    spectral: eqx.nn.SpectralNorm
    head: eqx.nn.Linear

    def __init__(self, key: jax.Array) -> None:
        keys = jax.random.split(key, 3)
        modes: tuple[Mode, ...] = ("ema", "batch")
        self.norms = [eqx.nn.BatchNorm(3, axis_name="samples", mode=mode) for mode in modes]
        self.spectral = eqx.nn.SpectralNorm(eqx.nn.Linear(3, 3, key=keys[0]), "weight", key=keys[1])
        self.head = eqx.nn.Linear(3, 4, key=keys[2])

    def __call__(self, x: jax.Array, state: eqx.nn.State) -> tuple[jax.Array, eqx.nn.State]:
        for layer in (*self.norms, self.spectral):
            x, state = layer(x, state)
        return self.head(x), state


def test_the_variances_of_batch_norm_and_its_counter_are_never_negative() -> None:
    model = fedgen.from_equinox(Stateful, "head", sample=(3,))
    assert set(model.never_negative) == {
        "['norms.0.ema_state_index.1']",
        "['norms.1.batch_state_index.1']",
        "['norms.1.batch_counter']",
    }
    assert set(model.never_negative) < set(named(model.init(KEY)[1]))
    assert fedgen.from_equinox(lambda key: eqx.nn.Linear(3, 4, key=key), sample=(3,)).never_negative == ()
