"""Networks of Flax: the same outputs, gradients and statistics as Flax itself gives, and two rounds of a simulation."""

import doctest
import re
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch
from flax import nnx
from flax.traverse_util import flatten_dict, unflatten_dict

import fedgen
from fedgen.core.trees import named
from fedgen.errors import FedgenError
from fedgen.models import from_flax
from helpers import SMALL, small_data

KEY = jax.random.key(3)
X = jax.random.normal(jax.random.key(1), (6, 8, 8, 1))
Y = jnp.array([0, 1, 2, 3, 0, 1])


class Linen(nn.Module):
    """Everything at once: a convolution, BatchNorm, dropout, and a softmax after the last layer."""

    rate: float = 0.5

    @nn.compact
    def __call__(self, x: jax.Array, train: bool) -> jax.Array:
        x = nn.Conv(3, (3, 3), strides=2)(x)
        x = nn.relu(nn.BatchNorm(use_running_average=not train, momentum=0.8)(x))
        x = nn.relu(nn.Dense(5, name="hidden")(x.reshape(len(x), -1)))
        x = nn.Dropout(self.rate, deterministic=not train)(x)
        return nn.log_softmax(nn.Dense(4, name="head")(x))


class Nnx(nnx.Module):
    def __init__(self, rngs: nnx.Rngs, rate: float = 0.5) -> None:
        self.conv = nnx.Conv(1, 3, (3, 3), strides=2, rngs=rngs)
        self.norm = nnx.BatchNorm(3, momentum=0.8, rngs=rngs)
        self.layers = nnx.List([nnx.Linear(48, 5, rngs=rngs), nnx.Linear(5, 4, rngs=rngs)])
        self.dropout = nnx.Dropout(rate, rngs=rngs)
        self.batches = nnx.Variable(jnp.array(0))

    def __call__(self, x: jax.Array) -> jax.Array:
        self.batches[...] += 1
        x = nnx.relu(self.norm(self.conv(x)))
        x = self.dropout(nnx.relu(self.layers[0](x.reshape(len(x), -1))))
        return nnx.log_softmax(self.layers[1](x))


def made(seed: Any, rate: float = 0.5) -> Nnx:
    return Nnx(nnx.Rngs(seed), rate)


def whole(model: fedgen.Model, train: bool, key: jax.Array | None = None) -> Callable[..., Any]:
    """The model's mean loss and new statistics, as a function of all parameters."""

    def loss(params: fedgen.Params, statistics: Any) -> tuple[jax.Array, Any]:
        args = params.extractor, statistics, X, train
        z, statistics = model.extract(*args, key) if model.random else model.extract(*args)
        logits = model.predict(params.predictor, z)
        return optax.softmax_cross_entropy_with_integer_labels(logits, Y).mean(), statistics

    return loss


def merged(params: fedgen.Params) -> dict[str, Any]:
    return {**params.extractor, **params.predictor}


def assert_close(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    assert ours.keys() == theirs.keys()
    for name in ours:
        np.testing.assert_allclose(ours[name], theirs[name], rtol=1e-5, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("train", [False, True])
def test_linen_gives_the_same_loss_gradient_and_statistics(train: bool) -> None:
    module = Linen()
    model = fedgen.from_flax(module, sample=X[0])
    params, statistics = model.init(KEY)
    assert set(params.predictor) == {"params/head/kernel", "params/head/bias"}
    assert model.random
    theirs = module.init(KEY, X, False)
    assert_close(model.state_dict(params, statistics), flat(theirs))

    @jax.jit
    def by_flax(weights: Any) -> tuple[jax.Array, Any]:
        def loss(weights: Any) -> tuple[jax.Array, Any]:
            variables = {"params": weights, "batch_stats": theirs["batch_stats"]}
            out, new = module.apply(variables, X, train, rngs={"params": KEY}, mutable=["batch_stats"])
            return optax.softmax_cross_entropy_with_integer_labels(out, Y).mean(), new

        return jax.value_and_grad(loss, has_aux=True)(weights)

    (value, new), gradient = by_flax(theirs["params"])
    ours = jax.jit(jax.value_and_grad(whole(model, train, KEY), has_aux=True))(params, statistics)
    np.testing.assert_allclose(ours[0][0], value, rtol=1e-6)
    assert_close(merged(ours[1]), flat({"params": gradient}))
    assert_close(ours[0][1], flat(new))
    assert train == bool(np.any(new["batch_stats"]["BatchNorm_0"]["mean"] != 0))


def flat(tree: Any) -> dict[str, Any]:
    return {"/".join(part.key for part in place): leaf for place, leaf in jax.tree_util.tree_leaves_with_path(tree)}


@pytest.mark.parametrize("train", [False, True])
def test_nnx_gives_the_same_loss_gradient_and_statistics(train: bool) -> None:
    """Without dropout, whose draws nnx would begin with a key of its own."""
    model = fedgen.from_flax(lambda key: made(key, 0.0), sample=X[0])
    params, statistics = model.init(KEY)
    assert set(params.predictor) == {"layers.1.kernel", "layers.1.bias"}
    assert not model.random
    module = made(KEY, 0.0)
    (module.train if train else module.eval)()

    @nnx.jit
    def by_nnx(network: Nnx) -> Any:
        def loss(network: Nnx) -> jax.Array:
            return optax.softmax_cross_entropy_with_integer_labels(network(X), Y).mean()

        return nnx.value_and_grad(loss)(network)

    value, gradient = by_nnx(module)  # which also updates the module
    ours = jax.jit(jax.value_and_grad(whole(model, train), has_aux=True))(params, statistics)
    np.testing.assert_allclose(ours[0][0], value, rtol=1e-6)
    gradients = {".".join(map(str, place)): leaf[...] for place, leaf in nnx.to_flat_state(gradient)}
    assert_close(merged(ours[1]), gradients)
    named = model.state_dict(params, ours[0][1])
    np.testing.assert_allclose(named["norm.mean"], module.norm.mean[...], rtol=1e-6)
    np.testing.assert_allclose(named["norm.var"], module.norm.var[...], rtol=1e-6)
    assert module.batches[...] == 1
    assert named["batches"] == (1 if train else 0), "in evaluation nothing changes"


@pytest.mark.parametrize("network", [Linen, lambda rate: lambda key: made(key, rate)], ids=["linen", "nnx"])
def test_dropout_draws_by_the_key(network: Any) -> None:
    """A quarter of the features is zero, others with another key, and those that are left grow by 4/3."""
    without, model = (fedgen.from_flax(network(rate), sample=X[0]) for rate in (0.0, 0.25))
    params, statistics = model.init(KEY)
    extract = jax.jit(model.extract_in_training)
    x = jax.random.normal(KEY, (4000, 8, 8, 1))
    whole, _ = jax.jit(without.extract_in_training)(params.extractor, statistics, x, None)
    first, second, again = (
        np.asarray(extract(params.extractor, statistics, x, jax.random.key(seed))[0]) for seed in (1, 2, 1)
    )
    shown = np.asarray(whole) > 0  # where ReLU did not make it 0 before
    assert abs(np.mean(first[shown] == 0) - 0.25) < 0.03
    left = first > 0
    np.testing.assert_allclose(first[left], np.asarray(whole)[left] / 0.75, rtol=1e-5)
    assert np.array_equal(first, again)
    assert abs(np.mean(first[shown & (second == 0)] == 0) - 0.25) < 0.06, "drawn anew"


@pytest.mark.parametrize(
    ("network", "layer", "predictor"),
    [
        (
            Linen(0.0),
            "hidden",
            {"params/hidden/kernel", "params/hidden/bias", "params/head/kernel", "params/head/bias"},
        ),
        (lambda key: made(key, 0.0), "layers.0", {f"layers.{i}.{part}" for i in (0, 1) for part in ("kernel", "bias")}),
    ],
    ids=["linen", "nnx"],
)
def test_a_split_at_a_named_layer_moves_what_follows_to_the_predictor(
    network: Any, layer: str, predictor: set[str]
) -> None:
    last, earlier = (fedgen.from_flax(network, at, sample=X[0]) for at in (None, layer))
    params, statistics = earlier.init(KEY)
    assert set(params.predictor) == predictor
    z, _ = earlier.extract(params.extractor, statistics, X, False)
    assert z.shape == (6, 48)
    params, statistics = last.init(KEY)
    assert last.extract(params.extractor, statistics, X, False)[0].shape == (6, 5)
    first, second = (whole(model, False)(*model.init(KEY))[0] for model in (last, earlier))
    assert first == second


def test_two_modules() -> None:
    class Extractor(nn.Module):
        @nn.compact
        def __call__(self, x: jax.Array, deterministic: bool) -> jax.Array:
            x = nn.BatchNorm(use_running_average=deterministic)(nn.Dense(5)(x.reshape(len(x), -1)))
            return nn.Dropout(0.5, deterministic=deterministic)(x)

    extractor, predictor = Extractor(), nn.Dense(4)
    model = fedgen.from_flax(extractor, predictor, sample=X[0])
    params, statistics = model.init(KEY)
    variables = unflatten_dict(model.state_dict(params, statistics), sep="/")
    z, new = model.extract(params.extractor, statistics, X, True, KEY)
    rngs = {"params": KEY}  # which linen takes for dropout where no key has that name
    theirs, updated = extractor.apply(variables["extractor"], X, False, rngs=rngs, mutable=["batch_stats"])
    np.testing.assert_allclose(z, theirs, rtol=1e-6)
    np.testing.assert_allclose(new["batch_stats/BatchNorm_0/mean"], updated["batch_stats"]["BatchNorm_0"]["mean"])
    np.testing.assert_allclose(model.predict(params.predictor, z), predictor.apply(variables["predictor"], z))
    assert model.random


def types_of_products(traced: Any) -> set[str]:
    return set(re.findall(r":(\w+)\[[\d,]*\] = (?:dot_general|conv_general_dilated)\[", str(traced)))


@pytest.mark.parametrize("network", [Linen(), made], ids=["linen", "nnx"])
def test_parameters_in_bfloat16_compute_in_bfloat16(network: Any) -> None:
    model = fedgen.from_flax(network, sample=X[0])
    params, statistics = model.init(KEY)
    half = jax.tree.map(lambda a: a.astype(jnp.bfloat16), params)
    x = X.astype(jnp.bfloat16)
    extracted = jax.make_jaxpr(lambda p: model.extract(p, statistics, x, True, KEY))(half.extractor)
    predicted = jax.make_jaxpr(model.predict)(half.predictor, jnp.zeros((6, 5), jnp.bfloat16))
    assert types_of_products(extracted) == types_of_products(predicted) == {"bf16"}
    assert {a.dtype for a in (*extracted.out_avals, *predicted.out_avals)} == {jnp.dtype(jnp.float32)}


class MixedLinen(nn.Module):
    """As in `types`: what its layers compute in, and what they have their parameters in; and the head's own."""

    types: dict[str, Any]
    head: dict[str, Any]

    @nn.compact
    def __call__(self, x: jax.Array, train: bool) -> jax.Array:
        x = nn.Conv(3, (3, 3), strides=2, **self.types)(x)
        x = nn.relu(nn.BatchNorm(use_running_average=not train, **self.types)(x))
        return nn.Dense(4, **self.head)(nn.relu(nn.Dense(5, **self.types)(x.reshape(len(x), -1))))


class MixedNnx(nnx.Module):
    def __init__(self, rngs: nnx.Rngs, types: dict[str, Any], head: dict[str, Any]) -> None:
        self.conv = nnx.Conv(1, 3, (3, 3), strides=2, rngs=rngs, **types)
        self.hidden, self.head = nnx.Linear(48, 5, rngs=rngs, **types), nnx.Linear(5, 4, rngs=rngs, **head)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.head(nnx.relu(self.hidden(nnx.relu(self.conv(x)).reshape(len(x), -1))))


HALF = jnp.bfloat16
MIXED = [
    ({}, {"dtype": HALF}),
    ({"dtype": HALF}, {}),
    ({"dtype": HALF}, {"dtype": HALF}),
    ({"param_dtype": HALF}, {"param_dtype": HALF}),
    ({"dtype": jnp.float16, "param_dtype": jnp.float16}, {"dtype": HALF, "param_dtype": HALF}),
]


@pytest.mark.parametrize(("types", "head"), MIXED)
def test_linen_in_half_precision_gives_what_flax_gives_and_trains_in_float32(types: Any, head: Any) -> None:
    module = MixedLinen(types, head)
    model = fedgen.from_flax(module, sample=X[0])
    params, statistics = model.init(KEY)
    variables = module.init(KEY, X, False)
    jax.tree.map(
        np.testing.assert_array_equal, unflatten_dict(model.state_dict(params, statistics), sep="/"), variables
    )
    of_theirs, of_ours = (
        {name: a.dtype for name, a in named.items()}
        for named in (flat(variables), model.state_dict(params, statistics))
    )
    assert of_ours == of_theirs, "as apply takes them"
    assert_trains_in_float32(model, module.apply(variables, X, False))


@pytest.mark.parametrize(("types", "head"), MIXED)
def test_nnx_in_half_precision_gives_what_flax_gives_and_trains_in_float32(types: Any, head: Any) -> None:
    model = fedgen.from_flax(lambda key: MixedNnx(nnx.Rngs(key), types, head), sample=X[0])
    assert_trains_in_float32(model, MixedNnx(nnx.Rngs(KEY), types, head)(X))


def assert_trains_in_float32(model: fedgen.Model, logits: jax.Array) -> None:
    params, statistics = model.init(KEY)
    z, _ = model.extract(params.extractor, statistics, X, False)
    ours = model.predict(params.predictor, z)
    np.testing.assert_array_equal(ours, logits.astype(jnp.float32))
    _, new = model.extract(params.extractor, statistics, X, True)
    gradient = jax.grad(whole(model, True), has_aux=True)(params, statistics)[0]
    kept = jax.tree.leaves((params, statistics, z, ours, new, gradient))
    assert {a.dtype for a in kept} == {jnp.dtype(jnp.float32)}


def test_two_modules_in_half_precision() -> None:
    first = nn.Sequential([lambda x: x.reshape(len(x), -1), nn.Dense(5, dtype=HALF, param_dtype=HALF)])
    second = nn.Dense(4, param_dtype=HALF)  # which computes in the type of what it gets
    model = fedgen.from_flax(first, second, sample=X[0])
    params, statistics = model.init(KEY)
    variables = unflatten_dict(model.state_dict(params, statistics), sep="/")
    assert {a.dtype for a in jax.tree.leaves(variables)} == {jnp.dtype(HALF)}
    assert_trains_in_float32(model, second.apply(variables["predictor"], first.apply(variables["extractor"], X)))


def test_a_convolution_stays_one() -> None:
    model = fedgen.from_flax(Linen(), sample=X[0])
    params, statistics = model.init(KEY)
    traced = jax.make_jaxpr(lambda p, s: model.extract(p, s, X, True, KEY))(params.extractor, statistics)
    assert [e.primitive.name for e in traced.eqns].count("conv_general_dilated") == 1
    alone = jax.make_jaxpr(model.predict)(params.predictor, jnp.zeros((6, 5)))
    assert "conv_general_dilated" not in str(alone), "the predictor is traced without the extractor"


class Recurrent(nnx.Module):
    """Layers within a transform, which cannot be watched."""

    def __init__(self, rngs: nnx.Rngs, head: bool = True, each: bool = False) -> None:
        self.first = nnx.Linear(8, 8, rngs=rngs)
        self.rnn = nnx.RNN(nnx.GRUCell(8, 5, rngs=rngs))
        self.head = nnx.Linear(5, 4, rngs=rngs) if head else None
        self.each = each

    def __call__(self, x: jax.Array) -> jax.Array:
        x = self.rnn(self.first(x[..., 0]))
        if self.each:
            return self.head(x).mean(1)
        x = x[:, -1]
        return self.head(x) if self.head is not None else x[:, :4]


def test_a_network_with_a_recurrent_layer_is_split_at_the_layer_after_it() -> None:
    model = fedgen.from_flax(lambda key: Recurrent(nnx.Rngs(key)), sample=X[0])
    params, statistics = model.init(KEY)
    assert set(params.predictor) == {"head.kernel", "head.bias"}
    z, _ = model.extract(params.extractor, statistics, X, False)
    np.testing.assert_allclose(model.predict(params.predictor, z), Recurrent(nnx.Rngs(KEY))(X), rtol=1e-5, atol=1e-6)


class Sowing(nn.Module):
    """Gives more than its logits; nothing here takes it."""

    collection: str

    @nn.compact
    def __call__(self, x: jax.Array, train: bool) -> jax.Array:
        x = nn.BatchNorm(use_running_average=not train)(nn.Dense(5)(x.reshape(len(x), -1)))
        self.sow(self.collection, "size", (x**2).mean())
        return nn.Dense(4)(x)


class SowingNnx(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.norm, self.head = nnx.BatchNorm(64, rngs=rngs), nnx.Linear(64, 4, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        x = self.norm(x.reshape(len(x), -1))
        self.sow(nnx.Intermediate, "size", (x**2).mean())
        return self.head(x)


@pytest.mark.filterwarnings("ignore:Using 'Module.sow")  # nnx is to have another way
@pytest.mark.parametrize("network", [Sowing("intermediates"), Sowing("losses"), lambda key: SowingNnx(nnx.Rngs(key))])
def test_what_a_module_sows_is_left_out(network: Any) -> None:
    model = fedgen.from_flax(network, sample=X[0])
    params, statistics = model.init(KEY)
    assert len(statistics) == 2
    for train in (False, True):
        z, new = model.extract(params.extractor, statistics, X, train)
        assert new.keys() == statistics.keys()
    if isinstance(network, Sowing):
        logits, _ = network.apply(network.init(KEY, X, False), X, True, mutable=["batch_stats"])
        np.testing.assert_allclose(model.predict(params.predictor, z), logits, rtol=1e-5, atol=1e-6)


SCALE = "WeightNorm_1/head/kernel/scale"


class Normed(nn.Module):
    """Layers around others, whose names have a slash of their own."""

    @nn.compact
    def __call__(self, x: jax.Array, train: bool) -> jax.Array:
        x = nn.relu(nn.WeightNorm(nn.Conv(3, (3, 3), strides=2))(x)).reshape(len(x), -1)
        x = nn.SpectralNorm(nn.Dense(5))(x, update_stats=train)
        return nn.WeightNorm(nn.Dense(4, name="head"))(x)


@pytest.mark.parametrize("train", [False, True])
def test_weight_norm_and_spectral_norm(train: bool) -> None:
    model = fedgen.from_flax(Normed(), sample=X[0])
    params, statistics = model.init(KEY)
    assert set(params.predictor) == {f"params/{name}" for name in ("head/kernel", "head/bias", SCALE)}
    z, new = model.extract(params.extractor, statistics, X, train)
    variables = Normed().init(KEY, X, False)
    theirs, updated = Normed().apply(variables, X, train, mutable=["batch_stats"])
    np.testing.assert_allclose(model.predict(params.predictor, z), theirs, rtol=1e-5, atol=1e-6)
    assert_close(new, flat(updated))
    named = model.state_dict(params, statistics)
    back = unflatten_dict({path: named["/".join(path)] for path in flatten_dict(variables)})  # as docs/networks.md says
    jax.tree.map(np.testing.assert_array_equal, back, variables)


class Reading(nnx.Module):
    """Reads what its layers are made of."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.words, self.hidden = nnx.Embed(5, 4, rngs=rngs), nnx.Linear(4, 4, rngs=rngs)
        self.head = nnx.Linear(5, 4, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.head(self.words.attend(self.hidden(self.words(x).mean(1)) / self.hidden.in_features))


def test_a_network_of_nnx_may_read_what_its_layers_are_made_of() -> None:
    words = jnp.array([[1, 4, 0], [2, 2, 3]])
    model = fedgen.from_flax(Reading(nnx.Rngs(0)), sample=words[0])
    params, statistics = model.init(KEY)
    assert set(params.predictor) == {"head.kernel", "head.bias"}
    z, _ = model.extract(params.extractor, statistics, words, True)
    np.testing.assert_allclose(model.predict(params.predictor, z), Reading(nnx.Rngs(0))(words), rtol=1e-5, atol=1e-6)


class Head(nn.Module):
    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        x = nn.relu(nn.Dense(5)(x))
        return nn.Dense(4)(x)


class Outer(nn.Module):
    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        return Head(name="head")(nn.relu(x))


@pytest.mark.parametrize(
    ("layer", "size"), [(None, 5), ("head.Dense_1", 5), ("head/Dense_1", 5), ("head.Dense_0", 16), ("head", 16)]
)
def test_a_layer_within_another_has_a_name_with_a_dot_or_a_slash(layer: str | None, size: int) -> None:
    model = fedgen.from_flax(Outer(), layer, sample=(16,))
    params, statistics = model.init(KEY)
    z, _ = model.extract(params.extractor, statistics, jnp.zeros((2, 16)), False)
    assert z.shape == (2, size)


class Twice(nn.Module):
    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        layer = nn.Dense(x.shape[-1], name="shared")
        return nn.Dense(4, name="head")(layer(layer(x)) + nn.Dense(16, name="side")(x))


class Late(nn.Module):
    norm: bool = True

    @nn.compact
    def __call__(self, x: jax.Array, train: bool) -> jax.Array:
        x = nn.Dense(5, name="hidden")(x)
        if self.norm:
            x = nn.BatchNorm(use_running_average=not train, name="norm")(x)
        return nn.Dense(4, name="head")(nn.Dropout(0.5, deterministic=not train)(x))


@pytest.mark.parametrize(
    ("module", "layer", "sample", "message"),
    [
        (Twice(), "shared", (16,), "calls a layer 'shared' 2 times"),
        (Twice(), "side", (16,), "from layer 'side' on also uses what comes before"),
        (Twice(), "hat", (16,), "calls a layer 'hat' 0 times.* its layers with parameters are .*head"),
        (Late(), "hidden", (16,), "has state, 'batch_stats/norm/mean'; split .* after its last BatchNorm"),
        (Late(norm=False), "hidden", (16,), "draws at random in training; split the network after its last dropout"),
        (Late(), None, (16, 16), r"what layer 'head' gets is an array of shape \(2, 16, 5\) of float32 for 2 samples"),
        (Linen(), None, (16,), r"the Flax network Linen does not take samples of shape \(16,\) of float32: "),
        (nn.Sequential([nn.relu]), None, (16,), "has no layer with parameters"),
        (jnp.sin, None, (16,), "the Flax network cannot be made: "),
        (lambda key: key, None, (16,), "a function that makes an nnx module of a key, not an array"),
        ({}, None, (16,), "not a dict"),
        (torch.nn.Linear(16, 4), None, (16,), "a Linear is of PyTorch: fedgen.from_torch takes it"),
        (Linen(), None, 8, r"sample is 8; give the shape of one sample"),
        (made, "hat", (8, 8, 1), "has no layer 'hat'; its layers are .*layers.1"),
        (made, "conv", (8, 8, 1), r"what layer 'conv' gets is an array of shape \(2, 8, 8, 1\)"),
        (Recurrent(nnx.Rngs(0), False), None, (8, 8, 1), 'ends with layers within a transform .* as predictor="head"'),
        (Recurrent(nnx.Rngs(0)), "rnn.cell.dense_h", (8, 8, 1), r"calls layer 'rnn.cell.dense_h' where .* transform"),
        (
            Recurrent(nnx.Rngs(0), each=True),
            None,
            (8, 8, 1),
            r"what layer 'head' gets is an array of shape \(2, 8, 5\)",
        ),
        (Recurrent(nnx.Rngs(0)), None, (7, 7, 1), r"Recurrent does not take samples of shape \(7, 7, 1\) of float32: "),
    ],
)
def test_what_cannot_be_split_is_said_in_a_sentence(module: Any, layer: str | None, sample: Any, message: str) -> None:
    with pytest.raises(FedgenError, match=message) as caught:
        fedgen.from_flax(module, layer, sample=sample)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("network", "algorithm", "share"),
    [
        pytest.param(Linen(), "fedgen", "all", id="linen-fedgen-all", marks=pytest.mark.slow),
        pytest.param(Linen(), "fedavg", "predictor", id="linen-fedavg-predictor", marks=pytest.mark.slow),
        pytest.param(MixedLinen(*MIXED[-1]), "fedavg", "all", id="linen-half-fedavg-all"),
        pytest.param(MixedLinen(*MIXED[2]), "fedgen", "all", id="linen-half-fedgen-all", marks=pytest.mark.slow),
        pytest.param(made, "fedgen", "predictor", id="nnx-fedgen-predictor", marks=pytest.mark.slow),
        pytest.param(made, "fedavg", "all", id="nnx-fedavg-all"),
    ],
)
def test_rounds_of_a_simulation(network: Any, algorithm: str, share: str) -> None:
    model = fedgen.from_flax(network, sample=(8, 8, 1))
    options = {key: value for key, value in SMALL.items() if "." in key and not key.startswith("model")}
    settings = {key: value for key, value in SMALL.items() if "." not in key and key not in ("dataset", "model")}
    settings |= {"rounds": 2, "share": share}
    (row,) = fedgen.simulate(algorithm, data=small_data(), model=model, options=options, **settings)["results"]
    assert len(row["curve"]) == 2
    assert not row.get("diverged_at")
    assert (row["accuracy"] is None) == (share == "predictor"), "then only users have whole models"


def test_the_example_in_the_docstring() -> None:
    found = doctest.testmod(from_flax)
    assert found.attempted
    assert not found.failed


class Inner(nn.Module):
    @nn.compact
    def __call__(self, x: jax.Array, train: bool) -> jax.Array:
        return nn.BatchNorm(use_running_average=not train)(nn.Dense(5)(x))


class Norms(nn.Module):
    """BatchNorm by any name, also inside another module; and a variable called var that is none of its own."""

    @nn.compact
    def __call__(self, x: jax.Array, train: bool) -> jax.Array:
        x = nn.BatchNorm(use_running_average=not train, name="first")(x.reshape(len(x), -1))
        x = x + self.variable("batch_stats", "var", lambda: -jnp.ones(64)).value
        return nn.Dense(4, name="head")(Inner(name="inner")(x, train))


def test_the_variances_of_batch_norm_are_never_negative() -> None:
    linen, in_nnx = fedgen.from_flax(Norms(), sample=X[0]), fedgen.from_flax(made, sample=X[0])
    assert linen.never_negative == ("['batch_stats/first/var']", "['batch_stats/inner/BatchNorm_0/var']")
    assert in_nnx.never_negative == ("['norm.var']",)
    for model in (linen, in_nnx):
        assert set(model.never_negative) < set(named(model.init(KEY)[1]))
    two = fedgen.from_flax(lambda key: nnx.BatchNorm(4, rngs=nnx.Rngs(key)), nn.Dense(4), sample=(4,))
    assert two.never_negative == ("['var']",)
    assert fedgen.from_flax(nn.Dense(4), sample=(4,)).never_negative == ()
