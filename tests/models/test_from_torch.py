"""PyTorch modules as models: forward, gradients and statistics are PyTorch's, and the weights go back."""

import math
import subprocess
import sys
import warnings
from collections.abc import Callable
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import fedgen
import fedgen.models.torch
from fedgen.config import resolve
from fedgen.core.contract import Model, Params
from fedgen.core.losses import cross_entropy
from fedgen.core.trees import named
from fedgen.errors import FedgenError
from fedgen.models.torch.layout import as_module_takes
from fedgen.models.torch.registry import OPERATIONS
from fedgen.simulator.setup import prepare
from helpers import SMALL, each, play, small_data
from torch_networks import MLP, VGG11, LeNet, MobileNetV2, ResNet, Text, ViT

KEY = jax.random.key(0)
IMAGE = (3, 32, 32)
TOKENS = torch.zeros(7, dtype=torch.int64)

# name -> the module, and its samples
NETWORKS: dict[str, tuple[Callable[[], nn.Module], Any]] = {
    "lenet": (LeNet, (1, 28, 28)),
    "resnet": (lambda: ResNet(width=4, stages=2, blocks=1), IMAGE),
    "resnet, group norm": (lambda: ResNet(width=4, stages=1, blocks=1, norm=lambda n: nn.GroupNorm(2, n)), IMAGE),
    "mobilenet-v2": (lambda: MobileNetV2(((1, 4, 1, 2), (6, 4, 1, 1)), 4, 16, dropout=0.0), IMAGE),
    "vit": (lambda: ViT(depth=1), (3, 16, 16)),
    "mlp": (lambda: MLP(dropout=0.0), (20,)),
    "lstm": (lambda: Text(nn.LSTM), TOKENS),
    "gru": (lambda: Text(nn.GRU), TOKENS),
}
QUARTER = tuple((expansion, channels // 4, *rest) for expansion, channels, *rest in MobileNetV2.STAGES)
LARGER: dict[str, tuple[Callable[[], nn.Module], Any]] = {
    "vgg-11": (lambda: VGG11(width=8, hidden=32, dropout=0.0), IMAGE),
    "resnet-18, full size": (ResNet, IMAGE),
    # All its layers at a quarter of the width: XLA takes minutes over wide depthwise convolutions on a CPU.
    "mobilenet-v2, all layers": (lambda: MobileNetV2(QUARTER, 8, 320, dropout=0.0), IMAGE),
}


def _made(factory: Callable[[], nn.Module], seed: int = 0) -> nn.Module:
    """A module with running statistics and biases that are not those of the start."""
    torch.manual_seed(seed)
    module = factory()
    for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        if "running" in name or name.endswith("bias"):
            tensor.data = tensor.data + torch.rand_like(tensor) / 5
    return module


def _batch(sample: Any, count: int = 6) -> tuple[torch.Tensor, torch.Tensor]:
    shape = tuple(sample.shape if isinstance(sample, torch.Tensor) else sample)
    y = torch.arange(count) % 10
    if isinstance(sample, torch.Tensor):
        return torch.randint(0, 30, (count, *shape)), y
    return torch.randn(count, *shape), y


def _stored(x: torch.Tensor) -> jax.Array:
    """As FedGen stores samples: images with their channels last, tokens as numbers."""
    return jnp.asarray(np.moveaxis(x.numpy(), 1, -1) if x.ndim == 4 else x.numpy())


def _ours(model: Model, x: torch.Tensor, y: torch.Tensor) -> list[tuple]:
    """Logits, gradients by name, and statistics after the batch, in evaluation and in training mode."""
    params, statistics = model.init(KEY)

    def run(params: Params, train: bool) -> tuple:
        def loss(params: Params) -> tuple:
            z, after = model.extract(params.extractor, statistics, _stored(x), train)
            logits = model.predict(params.predictor, z)
            return jnp.mean(cross_entropy(logits, y.numpy())), (logits, after)

        gradients, (logits, after) = jax.grad(loss, has_aux=True)(params)
        return logits, {**gradients.extractor, **gradients.predictor}, after

    return jax.jit(lambda params: [run(params, train) for train in (False, True)])(params)


def _theirs(module: nn.Module, x: torch.Tensor, y: torch.Tensor, train: bool) -> tuple:
    """The same by PyTorch, in the module's type."""
    logits = module.train(train)(x.to(next(module.parameters()).dtype) if x.is_floating_point() else x)
    functional.cross_entropy(logits, y).backward()
    gradients = {name: parameter.grad.numpy() for name, parameter in module.named_parameters()}
    return logits.detach().numpy(), gradients, {name: buffer.numpy() for name, buffer in module.named_buffers()}


def _distance(a: dict[str, Any], b: dict[str, np.ndarray]) -> float:
    """The largest difference in any array, as a share of its largest number or of a hundredth of all arrays'."""
    assert a.keys() == b.keys()
    scale = max(np.abs(array).max() for array in b.values()) / 100
    return max(np.abs(np.asarray(a[name]) - b[name]).max() / max(np.abs(b[name]).max(), scale) for name in b)


@cache
def _model_of(name: str) -> Model:
    factory, sample = (NETWORKS | LARGER)[name]
    return fedgen.from_torch(_made(factory), sample=sample)


def _assert_like_torch(name: str) -> None:
    """As near to PyTorch in float64 as float32 is, or as near as PyTorch itself is with float32."""
    factory, sample = (NETWORKS | LARGER)[name]
    model = _model_of(name)
    torch.manual_seed(1)
    x, y = _batch(sample)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.export, "export", None)  # the graphs that are made hold for any batch
        ours = _ours(model, x, y)
    for train, (logits, gradients, after) in zip((False, True), ours, strict=True):
        exact, exact_gradients, buffers = _theirs(_made(factory).double(), x, y, train)
        single, single_gradients, _ = _theirs(_made(factory), x, y, train)
        rounding = max(_distance(single_gradients, exact_gradients), _distance({"": single}, {"": exact}))
        assert _distance({"": logits}, {"": exact}) <= max(1e-5, 5 * rounding), f"logits, train {train}"
        assert _distance(gradients, exact_gradients) <= max(1e-4, 5 * rounding), f"gradients, train {train}"
        running = {name: buffer for name, buffer in buffers.items() if "running" in name}
        assert after.keys() == running.keys()
        for name, statistic in after.items():
            np.testing.assert_allclose(statistic, running[name], rtol=1e-4, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("name", each(NETWORKS, quick=("lenet", "resnet", "vit", "mlp", "lstm")))
def test_forward_gradients_and_statistics_are_torchs(name: str) -> None:
    _assert_like_torch(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", LARGER)
def test_larger_networks_are_torchs(name: str) -> None:
    _assert_like_torch(name)


def _model(module: nn.Module, sample: Any, **options: Any) -> tuple[Model, Params, Any]:
    model = fedgen.from_torch(module, sample=sample, **options)
    return model, *model.init(KEY)


def test_dropout_drops_its_share_in_training_alone() -> None:
    module = MLP(dropout=0.3, hidden=100)
    model, params, statistics = _model(module, (20,))
    assert model.random
    x = jnp.ones((200, 20))
    extract = jax.jit(model.extract, static_argnums=3)
    evaluated, _ = extract(params.extractor, statistics, x, False)
    np.testing.assert_allclose(model.predict(params.predictor, evaluated), _logits(module, x), atol=1e-5)
    trained, _ = extract(params.extractor, statistics, x, True, KEY)
    again, _ = extract(params.extractor, statistics, x, True, KEY)
    other, _ = extract(params.extractor, statistics, x, True, jax.random.key(1))
    np.testing.assert_array_equal(trained, again)
    alive = np.asarray(evaluated)[0] > 0.3  # units that a dropped unit before them hardly turns off
    dropped, dropped_otherwise = (np.mean(np.asarray(z)[:, alive] == 0) for z in (trained, other))
    assert alive.sum() > 5
    for share in (dropped, dropped_otherwise):
        assert abs(share - 0.3) < 5 * np.sqrt(0.3 * 0.7 / (200 * alive.sum())) + 0.02
    assert np.mean((np.asarray(trained) == 0) != (np.asarray(other) == 0)) > 0.1
    with pytest.raises(FedgenError, match="needs a key"):
        model.extract(params.extractor, statistics, x, True)


def test_what_dropout_keeps_is_torchs_forward_with_that_mask() -> None:
    """The last dropout is what the predictor receives, so its mask can be read off z."""
    module = nn.Sequential(nn.Linear(20, 50), nn.Sigmoid(), nn.Dropout(0.4), nn.Linear(50, 3))
    model, params, _ = _model(module, (20,))
    x = np.random.default_rng(0).normal(size=(8, 20)).astype(np.float32)
    z, _ = model.extract(params.extractor, {}, jnp.asarray(x), True, KEY)
    with torch.no_grad():
        whole = torch.sigmoid(module[0](torch.tensor(x))).numpy()
    np.testing.assert_allclose(z, np.where(np.asarray(z) == 0, 0, whole / 0.6), rtol=1e-5)


def test_two_dropouts_of_one_step_draw_differently() -> None:
    module = nn.Sequential(nn.Dropout(0.5), nn.Dropout(0.5), nn.Linear(1000, 2))
    model, params, _ = _model(module, (1000,))
    z, _ = model.extract(params.extractor, {}, jnp.ones((2, 1000)), True, KEY)
    assert abs(np.mean(np.asarray(z) > 0) - 0.25) < 0.05
    assert np.unique(z).tolist() == [0, 4]


def _logits(module: nn.Module, x: Any) -> np.ndarray:
    with torch.no_grad():
        return module.eval()(torch.tensor(np.asarray(x))).numpy()


class SmallNet(nn.Module):
    """A convolution, BatchNorm and a hidden layer."""

    def __init__(self, channels: int = 1, classes: int = 4) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(channels, 3, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(3)
        self.hidden, self.fc = nn.Linear(48, 6), nn.Linear(6, classes)
        self.register_buffer("table", torch.arange(6) % 2)
        self.unused = nn.Parameter(torch.zeros(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = functional.relu(self.norm(self.conv(x))).flatten(1)
        return self.fc(functional.relu(self.hidden(x)) + self.table)


def test_trains_in_the_simulator_and_goes_back_to_torch() -> None:
    """Two rounds by `play`, as `simulate` runs them; then PyTorch with these weights gives the same logits."""
    module = SmallNet()
    model = fedgen.from_torch(module, sample=(1, 8, 8))
    settings = {"algorithms": ["fedavg"], "model": "own", "rounds": 2}
    small = {key: value for key, value in SMALL.items() if not key.startswith("model")}
    setup = prepare(resolve(small, settings, own={"dataset", "model"}), small_data(), model)
    server = play(setup, 2).server
    back = model.state_dict(server.params, server.statistics)
    start = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    module.load_state_dict(back)
    learned = {name for name, tensor in module.state_dict().items() if not torch.equal(tensor, start[name])}
    assert learned == set(start) - {"norm.num_batches_tracked", "table", "unused"}
    x = setup.task.prepare(jnp.asarray(small_data().x_test[:20]))
    z, _ = model.extract(server.params.extractor, server.statistics, x, False)
    logits = model.predict(server.params.predictor, z)
    np.testing.assert_allclose(logits, _logits(module, np.moveaxis(np.asarray(x), -1, 1)), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_simulate_takes_a_module_with_dropout_and_tokens() -> None:
    """The key reaches dropout in the engine, and tokens the embeddings; what can be learned is learned."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 400)
    x = np.where(rng.random((400, 7)) < 0.5, y[:, None] + 1, rng.integers(3, 30, (400, 7)))
    data = fedgen.from_arrays(x[:300], y[:300], x[300:], y[300:])

    class Words(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.dropout, self.fc = nn.Embedding(30, 8), nn.Dropout(0.2), nn.Linear(8, 2)

        def forward(self, words: torch.Tensor) -> torch.Tensor:
            return self.fc(self.dropout(self.embedding(words).mean(1)))

    model = fedgen.from_torch(Words, sample=TOKENS)
    summary = fedgen.simulate(
        "fedavg", data=data, model=model, users=4, active=2, rounds=20, lr=1.0, eval_every=20, seeds=2
    )
    assert min(row["accuracy"] for row in summary["results"]) > 80


def test_a_module_starts_with_its_weights_and_a_function_with_new_ones_for_each_seed() -> None:
    torch.manual_seed(5)
    module = SmallNet()
    _, params, statistics = _model(module, (1, 8, 8))
    for name, array in {**params.extractor, **params.predictor, **statistics}.items():
        np.testing.assert_array_equal(array, module.state_dict()[name])
    before = torch.random.get_rng_state()
    made = fedgen.from_torch(SmallNet, sample=(1, 8, 8))
    init = jax.jit(jax.vmap(lambda key: made.init(key)[0].predictor["fc.weight"]))
    first, second, third = init(jnp.stack([jax.random.key(seed) for seed in (1, 1, 2)]))
    assert torch.equal(before, torch.random.get_rng_state())
    np.testing.assert_array_equal(first, second)
    assert not np.any(np.asarray(first) == np.asarray(third))
    assert np.abs(np.stack([first, third])).max() < 1 / np.sqrt(6)  # PyTorch's bound for a layer of six inputs


def test_parameters_are_split_at_the_predictor() -> None:
    model, params, statistics = _model(SmallNet(), (1, 8, 8), predictor="fc")
    assert set(params.predictor) == {"fc.weight", "fc.bias"}
    assert set(params.extractor) == {
        "conv.weight", "norm.weight", "norm.bias", "hidden.weight", "hidden.bias", "unused",
    }  # fmt: skip
    assert set(statistics) == {"norm.running_mean", "norm.running_var"}
    deeper = nn.Sequential(nn.Linear(4, 3), nn.Sequential(nn.ReLU(inplace=True), nn.Linear(3, 5), nn.LogSoftmax(1)))
    model, params, statistics = _model(deeper, (4,), predictor="1")
    assert (set(params.extractor), set(params.predictor)) == ({"0.weight", "0.bias"}, {"1.1.weight", "1.1.bias"})
    x = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
    z, _ = model.extract(params.extractor, statistics, x, True)
    assert np.asarray(z).min() < 0, "the ReLU, in place, is the predictor's"
    np.testing.assert_allclose(model.predict(params.predictor, z), _logits(deeper, x), atol=1e-6)
    stacked = model.predict(params.predictor, jnp.stack([z, z]))
    np.testing.assert_allclose(stacked, np.stack([_logits(deeper, x)] * 2), atol=1e-6)


class Scaled(nn.Module):
    """Multiplies its logits with a learned scale."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head, self.scale = nn.Linear(4, 5), nn.Linear(5, 3), nn.Parameter(torch.tensor(0.3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.scale.exp() * self.head(torch.relu(self.body(x)))


class Cosine(nn.Module):
    """Compares features with a vector of each class."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.z, self.w = nn.Linear(4, 5), nn.Identity(), nn.Parameter(torch.randn(3, 5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.linear(functional.normalize(self.z(torch.relu(self.body(x)))), self.w)


class Adapted(nn.Linear):
    """A layer with others inside."""

    def __init__(self, fan_in: int, fan_out: int) -> None:
        super().__init__(fan_in, fan_out)
        self.down, self.up = nn.Linear(fan_in, 2), nn.Linear(2, fan_out)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) + self.up(self.down(x))


NORMED = "parametrizations.weight.original"


@pytest.mark.parametrize(
    ("make", "predictor", "names"),
    [
        (Scaled, None, {"scale", "head.weight", "head.bias"}),
        (Cosine, "z", {"w"}),
        (
            lambda: nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.utils.parametrizations.weight_norm(nn.Linear(5, 3))),
            None,
            {"2.bias", f"2.{NORMED}0", f"2.{NORMED}1"},
        ),
        (
            lambda: nn.Sequential(nn.Linear(4, 5), Adapted(5, 3)),
            None,
            {f"1.{layer}{which}" for layer in ("", "down.", "up.") for which in ("weight", "bias")},
        ),
        (lambda: nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)), "1", {"2.weight", "2.bias"}),
    ],
    ids=["scale", "cosine", "weight norm", "adapted", "activation"],
)
def test_the_predictor_has_all_parameters_that_are_used_after_z_alone(
    make: Callable[[], nn.Module], predictor: str | None, names: set[str]
) -> None:
    torch.manual_seed(0)
    module = make()
    model, params, statistics = _model(module, (4,), predictor=predictor)
    assert set(params.predictor) == names
    assert {*params.extractor, *params.predictor} == {name for name, _ in module.named_parameters()}
    x, y = torch.randn(6, 4), torch.arange(6) % 3
    for train, (logits, gradients, _) in zip((False, True), _ours(model, x, y), strict=True):
        module.zero_grad()
        theirs, expected, _ = _theirs(module, x, y, train)
        np.testing.assert_allclose(logits, theirs, atol=1e-5)
        assert _distance(gradients, expected) < 1e-4
    changed = jax.tree.map(lambda a: a + 0.1, params)
    module.load_state_dict(model.state_dict(changed, statistics))
    z, _ = model.extract(changed.extractor, statistics, jnp.asarray(x.numpy()), False)
    np.testing.assert_allclose(model.predict(changed.predictor, z), _logits(module, x.numpy()), atol=1e-5)


class Tied(nn.Module):
    """Its head is the transpose of its first layer."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.z = nn.Linear(4, 5, bias=False), nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.linear(self.z(self.fc(x)), self.fc.weight.T)


class Unrolled(nn.Module):
    """Goes through its samples one by one, which fixes the batch size in the exported graph."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.fc = nn.Linear(4, 3), nn.Linear(3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(torch.stack([torch.tanh(self.first(row)) * len(x) for row in x]))


def test_a_module_is_exported_once_in_each_mode_for_batches_of_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    exported, export = [], torch.export.export
    monkeypatch.setattr(torch.export, "export", lambda *a, **k: exported.append(a) or export(*a, **k))
    module = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))
    model, params, statistics = _model(module, (4,))
    for count in (2, 1, 5):
        x = np.random.default_rng(count).normal(size=(count, 4)).astype(np.float32)
        z, _ = model.extract(params.extractor, statistics, x, False)
        np.testing.assert_allclose(model.predict(params.predictor, z), _logits(module, x), atol=1e-6)
    assert len(exported) == 2


def test_a_module_that_fixes_the_batch_size_is_exported_for_each() -> None:
    module = Unrolled()
    model, params, statistics = _model(module, (4,), predictor="fc")
    for count in (2, 1, 5):
        x = np.random.default_rng(count).normal(size=(count, 4)).astype(np.float32)
        z, _ = model.extract(params.extractor, statistics, x, False)
        np.testing.assert_allclose(model.predict(params.predictor, z), _logits(module, x), atol=1e-6)


class Parted(nn.Module):
    """BatchNorm of each four samples by themselves."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([self.norm(part) for part in x.chunk(math.ceil(x.shape[0] / 4))])


class Even(nn.Module):
    """Another function where the number of samples is even."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * x if x.shape[0] % 2 == 0 else x


class Several(nn.Module):
    """BatchNorm where there is more than one sample."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.dropout = nn.BatchNorm1d(4), nn.Dropout(0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.dropout(self.norm(x)) if x.shape[0] > 1 else x


@pytest.mark.parametrize("layer", [Several, lambda: Several().norm])
def test_what_a_module_does_with_one_sample_alone_is_done(layer: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(layer(), nn.Linear(4, 2))
    model, params, statistics = _model(module, (4,))
    x = np.random.default_rng(0).normal(size=(1, 4)).astype(np.float32)
    for train in (False, True):
        z, after = model.extract(params.extractor, statistics, x, train, KEY)
        if isinstance(module[0], Several):
            np.testing.assert_array_equal(z, x)
            assert after == statistics
        else:  # PyTorch's BatchNorm takes no single sample in training
            np.testing.assert_allclose(z, 0 if train else x, atol=1e-4)


@pytest.mark.parametrize("layer", [Parted, Even])
def test_a_module_that_asks_for_the_batch_size_is_exported_for_each(layer: type[nn.Module]) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(layer(), nn.Linear(4, 2))
    model, params, statistics = _model(module, (4,))
    for count in (3, 8):
        x = np.random.default_rng(count).normal(size=(count, 4)).astype(np.float32)
        z, after = model.extract(params.extractor, statistics, x, True)
        module.load_state_dict(model.state_dict(params, statistics))
        theirs = module.train()(torch.tensor(x)).detach()
        np.testing.assert_allclose(model.predict(params.predictor, z), theirs, atol=1e-6)
        for name, statistic in after.items():
            np.testing.assert_allclose(statistic, module.state_dict()[name], atol=1e-6)
    z, _ = model.extract(params.extractor, after, x[:1], False)
    np.testing.assert_allclose(model.predict(params.predictor, z), _logits(module, x[:1]), atol=1e-6)
    with pytest.raises(FedgenError, match="cannot follow the module for batches of any size"):
        jax.export.export(jax.jit(lambda x: model.extract(params.extractor, statistics, x, False)[0]))(
            jax.ShapeDtypeStruct(jax.export.symbolic_shape("n, 4"), jnp.float32)
        )


def test_bfloat16_parameters_compute_in_bfloat16_and_keep_float32_statistics() -> None:
    model, params, statistics = _model(_made(SmallNet), (1, 8, 8))
    x = jnp.asarray(np.random.default_rng(0).normal(size=(6, 8, 8, 1)), jnp.float32)

    @jax.jit
    def run(params: Params) -> tuple:
        z, after = model.extract(params.extractor, statistics, x, True)
        return z, after, model.predict(params.predictor, z)

    z, after, logits = run(jax.tree.map(lambda a: a.astype(jnp.bfloat16), params))
    exact, exact_after, exact_logits = run(params)
    assert z.dtype == logits.dtype == jnp.bfloat16
    assert {a.dtype for a in after.values()} == {jnp.dtype("float32")}
    np.testing.assert_allclose(z.astype(jnp.float32), exact, rtol=0.05, atol=0.05)
    np.testing.assert_allclose(logits.astype(jnp.float32), exact_logits, rtol=0.05, atol=0.05)
    np.testing.assert_allclose(after["norm.running_var"], exact_after["norm.running_var"], rtol=0.02)


def test_a_recurrent_network_computes_in_bfloat16_too() -> None:
    model = _model_of("gru")  # its first state is made in float32
    half = jax.tree.map(lambda a: a.astype(jnp.bfloat16), model.init(KEY)[0])
    words = jnp.ones((2, 7), jnp.int32)
    z = jax.eval_shape(lambda extractor: model.extract(extractor, {}, words, False)[0], half.extractor)
    assert z.dtype == jnp.bfloat16


def test_frozen_parameters_stay_and_tied_ones_are_one() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))
    module[1].weight = module[0].weight
    module[0].bias.requires_grad_(False)
    model, params, statistics = _model(module, (4,))
    assert set(params.extractor) == {"0.weight", "1.bias"}
    changed = params._replace(extractor={name: array + 1 for name, array in params.extractor.items()})
    module.load_state_dict(model.state_dict(changed, statistics))
    x = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
    z, _ = model.extract(changed.extractor, statistics, x, False)
    np.testing.assert_allclose(model.predict(changed.predictor, z), _logits(module, x), atol=1e-5)


class Versioned(nn.Linear):
    """With state that is no tensor."""

    version: Any = None

    def get_extra_state(self) -> dict[str, int]:
        return {"version": 1}

    def set_extra_state(self, state: dict[str, int]) -> None:
        self.version = state["version"]


def test_the_state_dict_is_the_modules_own() -> None:
    def renamed(_: nn.Module, state: dict[str, Any], prefix: str, __: Any) -> None:
        state["second"] = state.pop("1.weight")
        state["kept"] = torch.tensor(3)

    module = nn.Sequential(Versioned(4, 3), nn.Linear(3, 2))
    hook = module._register_state_dict_hook(renamed)
    model, params, statistics = _model(module, (4,))
    changed = jax.tree.map(lambda a: a + 1, params)
    found = model.state_dict(changed, statistics)
    assert list(found) == list(module.state_dict())
    assert (found["0._extra_state"], found["kept"]) == ({"version": 1}, 3)
    np.testing.assert_array_equal(found["second"], changed.predictor["1.weight"])
    hook.remove()
    del found["kept"]
    found["1.weight"] = found.pop("second")
    module.load_state_dict(found)
    assert module[0].version == 1


class Headless(nn.Module):
    def __init__(self, **parts: nn.Module) -> None:
        super().__init__()
        for name, part in parts.items():
            setattr(self, name, part)


class TwoHeads(Headless):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.one(x) + self.two(torch.relu(x))


class Twice(Headless):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.one(self.one(x))


class Pair(Headless):
    def forward(self, x: torch.Tensor) -> tuple:
        return self.one(x), x


class ByMode(Headless):
    """What it gives in one mode alone is another."""

    def forward(self, x: torch.Tensor) -> Any:
        z = self.one(x)
        if hasattr(self, "aside"):
            return (self.two(z), self.aside(z)) if self.training else self.two(z)
        if hasattr(self, "beside"):
            return self.two(z) if self.training else self.two(z) + self.beside(x)
        return self.two(z) if self.training else self.two(z) - torch.tensor([0.5, -0.5])


class Careless(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.dropout(x)


class Overwritten(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x.exp()
        y += 1
        return y


class Packed(nn.Module):
    """A recurrent network that skips the padding."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.recurrent, self.fc = nn.Embedding(5, 3), nn.GRU(3, 4, batch_first=True), nn.Linear(4, 2)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        lengths = (words != 0).sum(1).clamp(min=1)
        packed = nn.utils.rnn.pack_padded_sequence(self.embedding(words), lengths, True, False)
        return self.fc(self.recurrent(packed)[1][-1])


class Turned(nn.Module):
    """Asks for the numbers in a tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(x if x.sum() > 0 else -x)


@pytest.mark.parametrize("learns", [True, False])
def test_bags_of_words_may_begin_at_offsets(learns: bool) -> None:
    class Bags(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bags, self.fc = nn.EmbeddingBag(5, 3).requires_grad_(learns), nn.Linear(3, 2)

        def forward(self, words: torch.Tensor) -> torch.Tensor:
            return self.fc(self.bags(words.flatten(), torch.arange(0, words.numel(), words.shape[1])))

    module = Bags()
    model, params, statistics = _model(module, TOKENS)
    words = np.random.default_rng(0).integers(0, 5, (3, 7))
    z, _ = model.extract(params.extractor, statistics, words, True)
    np.testing.assert_allclose(model.predict(params.predictor, z), _logits(module, words), atol=1e-6)


PLACES: dict[str, Callable[[nn.Module, torch.Tensor], torch.Tensor]] = {
    "embedding": lambda bags, x: functional.embedding(x, bags.weight).sum(1),
    "bag": lambda bags, x: bags(x),
    "index_select": lambda bags, x: bags.weight.index_select(0, x[:, 0]),
    "gather": lambda bags, x: bags.weight.expand(len(x), 5, 3).gather(1, x[:, :1, None].expand(-1, 1, 3))[:, 0],
}


class Looking(nn.Module):
    def __init__(self, how: str, mode: str) -> None:
        super().__init__()
        self.bags, self.fc, self.how = nn.EmbeddingBag(5, 3, mode=mode), nn.Linear(3, 2), how

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(PLACES[self.how](self.bags, x))


@pytest.mark.parametrize(("how", "mode"), [*((how, "sum") for how in PLACES), ("bag", "mean"), ("bag", "max")], ids=str)
def test_places_that_torch_refuses_are_nan(how: str, mode: str) -> None:
    module = Looking(how, mode)
    model, params, statistics = _model(module, torch.zeros(3, dtype=torch.int64))
    x = np.array([[1, 2, 3], [-1, 2, 2], [-5, 0, 0], [5, 1, 1], [4, 4, 0]])
    z, _ = model.extract(params.extractor, statistics, jnp.asarray(x), False)
    logits = model.predict(params.predictor, z)
    assert np.isnan(logits).any(1).tolist() == [False, True, True, True, False]
    np.testing.assert_allclose(logits[::4], _logits(module, x[::4]), atol=1e-6)
    for wrong in x[1:4]:
        with pytest.raises((IndexError, RuntimeError)):
            _logits(module, wrong[None])


def test_an_index_may_be_counted_from_the_end() -> None:
    class Last(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.fc = nn.Parameter(torch.randn(5, 3)), nn.Linear(3, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.fc(self.table[x].sum(1))

    module, x = Last(), np.array([[1, -1, 3], [-5, 4, 0]])
    model, params, statistics = _model(module, torch.zeros(3, dtype=torch.int64))
    z, _ = model.extract(params.extractor, statistics, jnp.asarray(x), False)
    np.testing.assert_allclose(model.predict(params.predictor, z), _logits(module, x), atol=1e-6)


def test_a_counter_may_be_a_buffer_of_floating_point_numbers() -> None:
    model, params, statistics = _model(Counting(torch.tensor(0.0)), (4,))
    for step in (1, 2):
        z, statistics = model.extract(params.extractor, statistics, jnp.ones((2, 4)), True)
        np.testing.assert_allclose(z, step / 10, rtol=1e-6)


def test_packed_sequences_are_said() -> None:
    with pytest.raises(FedgenError, match="'recurrent' receives a packed sequence"):
        fedgen.from_torch(Packed(), sample=TOKENS)


def test_code_that_depends_on_numbers_is_said_without_graphs(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(FedgenError, match=r"asks for the numbers in a tensor.*torch.where"):
        fedgen.from_torch(Turned(), sample=(4,))
    assert capfd.readouterr() == ("", "")


def test_a_transformer_may_mask_its_padding_whatever_the_sample() -> None:
    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.fc = nn.Embedding(5, 4, padding_idx=0), nn.Linear(4, 2)
            layer = nn.TransformerEncoderLayer(4, 2, 4, dropout=0.0, batch_first=True)
            self.encoder = nn.TransformerEncoder(layer, 1)

        def forward(self, words: torch.Tensor) -> torch.Tensor:
            return self.fc(self.encoder(self.embedding(words), src_key_padding_mask=words == 0).mean(1))

    # The last text is empty: its words attend to nothing.
    words = torch.tensor([[1, 2, 3, 4, 0, 0, 0], [4, 3, 0, 0, 0, 0, 0], [0] * 7])
    _assert_trained_like_torch(Masked(), TOKENS, words)


def _assert_trained_like_torch(module: nn.Module, sample: Any, x: torch.Tensor) -> None:
    y = torch.arange(len(x)) % 2
    _, (logits, gradients, _) = _ours(fedgen.from_torch(module, sample=sample), x, y)
    theirs = _theirs(module, x, y, True)
    np.testing.assert_allclose(logits, theirs[0], atol=1e-5)
    assert _distance(gradients, theirs[1]) < 1e-4


class Lengths(nn.Module):
    """What has no derivative at 0, where PyTorch takes 0."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.fc = nn.Linear(4, 6, bias=False), nn.Linear(19, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.first(x)
        unit, alike = functional.normalize(h), functional.cosine_similarity(h, h.flip(1))
        of_rows = [h.norm(dim=1), h.norm(p=3, dim=1), alike, h.std(1), torch.std_mean(h, 1)[0], h.abs().mean(1)]
        far = torch.cdist(h[:, None], torch.zeros(1, 26, 6)).squeeze(1)[:, :1]  # of so many PyTorch takes another way
        return self.fc(torch.cat([unit, h, torch.stack(of_rows, 1), far], 1))


def test_at_zero_gradients_of_lengths_are_torchs() -> None:
    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
    x[1] = 0
    _assert_trained_like_torch(Lengths(), (4,), x)


class Unpooled(nn.Module):
    """With numbers put where a mask says so, and maxima put back where they were."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.fc = nn.Conv2d(1, 2, 3), nn.Linear(32, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.first(x)
        h[h < 0] = 0.1
        largest, places = functional.max_pool2d(h, 2, return_indices=True)
        return self.fc(functional.max_unpool2d(largest, places, 2).flatten(1))


def test_masks_and_places_of_maxima_are_torchs() -> None:
    _assert_trained_like_torch(Unpooled(), (1, 6, 6), torch.randn(3, 1, 6, 6))


class Chosen(nn.Module):
    """Takes numbers out by a mask, or puts different ones there."""

    def __init__(self, put: bool = False) -> None:
        super().__init__()
        self._put = put

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self._put:
            return x * x[x > 0].mean()
        x = x.clone()
        x[:, torch.tensor([True, False, True, False])] = torch.arange(2.0)
        return x


class Counting(nn.Module):
    """Learns more slowly in its first batches, which it counts."""

    def __init__(self, counter: torch.Tensor | int | None = None) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 2)
        if isinstance(counter, int):
            self.n = counter
        else:
            self.register_buffer("n", torch.tensor(0) if counter is None else counter)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.n += 1
        return self.fc(x * (self.n / 10))


class Second(nn.Module):
    def forward(self, pair: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        return pair[1].float()


with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    OLD_WEIGHT_NORM = nn.utils.weight_norm(nn.Linear(4, 3))


@pytest.mark.parametrize(
    ("module", "options", "message"),
    [
        (nn.Sequential(nn.Linear(4, 2)), {"predictor": "fc"}, "unknown predictor 'fc'.*valid: 0"),
        (nn.Sequential(nn.Conv1d(1, 1, 1), nn.Flatten()), {"sample": (1, 4)}, "does not call any nn.Linear"),
        (nn.Linear(4, 2), {}, "a single layer: put it into an nn.Sequential"),
        (TwoHeads(one=nn.Linear(4, 2), two=nn.Linear(4, 2)), {}, "'two' the module uses more"),
        (Twice(one=nn.Linear(4, 4)), {}, "'one' more than once"),
        (Pair(one=nn.Linear(4, 2)), {}, "gives a tuple"),
        (nn.Sequential(nn.Linear(4, 2)), {"sample": (3, 4)}, r"receives \(2, 3, 4\).*one vector for each sample"),
        (
            nn.Sequential(nn.Conv2d(1, 8, 3), nn.AdaptiveAvgPool2d(1), nn.Conv2d(8, 3, 1), nn.Flatten()),
            {"sample": (1, 8, 8), "predictor": "2"},
            r"receives \(2, 8, 1, 1\) .*: flatten before it .* use the nn.Linear that it is",
        ),
        (Tied(), {"predictor": "z"}, "the extractor and the predictor 'z' both use the parameter 'fc.weight'"),
        (
            nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.5), nn.Linear(3, 2)),
            {"predictor": "1"},
            "draws at random in training .* name a later submodule",
        ),
        (nn.Sequential(nn.Linear(5, 2)), {}, r"does not take samples of shape \(4,\)"),
        (
            nn.Sequential(nn.Linear(4, 3), nn.Sequential(nn.Dropout(0.5), nn.Linear(3, 2))),
            {"predictor": "1"},
            "only the extractor may",
        ),
        (
            nn.Sequential(nn.Linear(4, 3), nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 2))),
            {"predictor": "1"},
            "has running statistics",
        ),
        (
            nn.Sequential(nn.Linear(4, 3), Overwritten(), nn.Linear(3, 2)),
            {},
            "PyTorch cannot compute the gradient .* modified by an inplace operation",
        ),
        (nn.Sequential(nn.Linear(4, 3), Careless(), nn.Linear(3, 2)), {}, "draws at random in evaluation mode"),
        (
            ByMode(one=nn.Linear(4, 3), two=nn.Linear(3, 2)),
            {},
            "makes other logits of its features in evaluation mode than in training",
        ),
        (
            ByMode(one=nn.Linear(4, 3), two=nn.Linear(3, 2), beside=nn.Linear(4, 2)),
            {"predictor": "two"},
            "'two' the module uses more",
        ),
        (
            ByMode(one=nn.Linear(4, 3), two=nn.Linear(3, 2), aside=nn.Linear(3, 2)),
            {"predictor": "two"},
            "gives a tuple for a batch of 2 in training mode; it must give logits",
        ),
        (nn.Sequential(nn.Linear(4, 2)), {"sample": 4}, "sample is 4; give the shape of one sample"),
        (lambda x: x, {}, "a function without arguments .* this one is missing a required argument: 'x'"),
        (lambda: 3, {}, "not int"),
        (torch.optim.SGD([torch.zeros(1)]), {}, "takes an nn.Module or a function that makes one, not SGD"),
        (
            nn.Sequential(nn.Linear(4, 2)),
            {"sample": torch.zeros(4, dtype=torch.int64)},
            r"of torch.int64, but of torch.float32; .*x.astype\('float32'\)",
        ),
        (nn.Sequential(nn.Embedding(3, 2), nn.Flatten(), nn.Linear(8, 2)), {}, "whole numbers, and sample=torch.zeros"),
        (nn.Sequential(nn.Linear(4, 2)).double(), {}, r"but of torch.float64; .*module.float\(\)"),
        (nn.Sequential(nn.Linear(4, 2)).half(), {}, r"but of torch.float16; .*module.float\(\)"),
        (
            nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3, momentum=None), nn.Linear(3, 2)),
            {},
            r"statistics of '1' depend on a count .* give BatchNorm a momentum: BatchNorm1d\(..., momentum=0.1\)",
        ),
        (Counting(), {}, "depends on its counter 'n', .*; make it a buffer of floating-point numbers"),
        (nn.Sequential(nn.LazyLinear(3), nn.Linear(3, 2)), {}, "'0.weight' has no shape .* call the module once"),
        (nn.Sequential(OLD_WEIGHT_NORM, nn.Linear(3, 2)), {}, "parametrizations.weight_norm"),
        (nn.Sequential(Chosen(), nn.Linear(4, 2)), {}, r"as many numbers as a mask says.*torch.where"),
        (nn.Sequential(Chosen(put=True), nn.Linear(4, 2)), {}, r"can put the same everywhere.*torch.where"),
        (
            nn.Sequential(nn.AdaptiveMaxPool1d(2, return_indices=True), Second(), nn.Linear(2, 2)),
            {},
            r"aten.adaptive_max_pool1d.default, in '0', has a counterpart without its result 1",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_a_model_is_said(module: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(FedgenError, match=message):
        fedgen.from_torch(module, **{"sample": (4,), **options})


class Sinc(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.special.i0e(x)


def test_a_missing_operation_is_named_and_can_be_added(monkeypatch: pytest.MonkeyPatch) -> None:
    module = nn.Sequential(nn.Linear(4, 3), nn.Sequential(Sinc()), nn.Linear(3, 2))
    with pytest.raises(FedgenError, match=r"aten.special_i0e.default, in '1.0',.*operation\(\"aten.special_i0e"):
        fedgen.from_torch(module, sample=(4,))
    monkeypatch.setitem(OPERATIONS, "aten.special_i0e.default", None)  # so that it is gone afterwards

    @fedgen.models.torch.operation("aten.special_i0e.default")
    def i0e(x: jax.Array) -> jax.Array:
        return jax.scipy.special.i0e(x)

    model, params, statistics = _model(module, (4,))
    x = np.ones((2, 4), np.float32)
    z, _ = model.extract(params.extractor, statistics, x, False)
    np.testing.assert_allclose(model.predict(params.predictor, z), _logits(module, x), atol=1e-6)


def test_images_reach_the_module_with_their_channels_first() -> None:
    colour = jnp.arange(2 * 4 * 5 * 3).reshape(2, 4, 5, 3)  # [sample, height, width, channel]
    first = as_module_takes(colour, (3, 4, 5), None)
    assert first.shape == (2, 3, 4, 5)
    assert first[1, 2, 3, 4] == colour[1, 3, 4, 2]
    np.testing.assert_array_equal(as_module_takes(first, (3, 4, 5), None), first)
    grey = colour[..., 0]
    for stored in (grey, grey[..., None]):
        np.testing.assert_array_equal(as_module_takes(stored, (1, 4, 5), None), grey[:, None])
    np.testing.assert_array_equal(as_module_takes(grey, (4, 5), None), grey)  # a sequence or a table
    cube = jnp.arange(54).reshape(2, 3, 3, 3)
    np.testing.assert_array_equal(as_module_takes(cube, (3, 3, 3), True), jnp.moveaxis(cube, 3, 1))
    np.testing.assert_array_equal(as_module_takes(cube, (3, 3, 3), False), cube)
    with pytest.raises(FedgenError, match="channels_last"):
        as_module_takes(cube, (3, 3, 3), None)
    with pytest.raises(FedgenError, match=r"\(3, 4, 5\) or, as images are stored, \(4, 5, 3\), not \(5, 4, 3\)"):
        as_module_takes(jnp.zeros((2, 5, 4, 3)), (3, 4, 5), None)
    with pytest.raises(FedgenError, match=r"must have \(20,\), not \(4, 5\)"):
        as_module_takes(grey, (20,), None)


def test_a_sample_may_be_an_array() -> None:
    words = nn.Sequential(nn.Embedding(5, 2), nn.Flatten(), nn.Linear(6, 2))
    for module, sample in ((nn.Sequential(nn.Linear(3, 2)), np.zeros(3)), (words, np.array([1, 4, 0]))):
        model, params, statistics = _model(module, sample)
        z, _ = model.extract(params.extractor, statistics, jnp.asarray(sample)[None], False)
        np.testing.assert_allclose(
            model.predict(params.predictor, z), _logits(module, np.asarray(jnp.asarray(sample))[None]), atol=1e-6
        )


@pytest.mark.parametrize("stored", ["uint8", "uint16", "float32"])
def test_words_that_would_reach_the_module_as_pixels_are_refused_before_training(stored: str) -> None:
    words = nn.Sequential(nn.Embedding(5, 2), nn.Flatten(), nn.Linear(6, 3))
    x, y = (np.arange(180).reshape(60, 3) % 5).astype(stored), np.arange(60) % 3
    data = fedgen.from_arrays(x, y, x, y)
    model = fedgen.from_torch(words, sample=torch.zeros(3, dtype=torch.int64))
    with pytest.raises(FedgenError, match=r"takes whole numbers, and gets samples of float32: .*x.astype\('int32'\)"):
        fedgen.simulate("fedavg", data=data, model=model, users=2, active=2, rounds=1, progress=False)


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_a_traced_module_is_refused() -> None:
    traced = torch.jit.trace(nn.Linear(4, 2), torch.zeros(2, 4))
    for module in (traced, nn.Sequential(traced, nn.Linear(2, 2)), lambda: traced):
        with pytest.raises(FedgenError, match=r"torch.jit.trace.*give the module that it was made from"):
            fedgen.from_torch(module, sample=(4,))


def test_the_stored_form_of_a_sample_says_the_modules() -> None:
    x = np.random.default_rng(0).integers(0, 255, (2, 8, 8, 3))
    module = SmallNet(channels=3)
    model, params, statistics = _model(module, jax.ShapeDtypeStruct((8, 8, 3), jnp.uint8))
    z, _ = model.extract(params.extractor, statistics, jnp.asarray(x, jnp.float32), False)
    theirs = _logits(module, np.moveaxis(x, -1, 1).astype(np.float32))
    np.testing.assert_allclose(model.predict(params.predictor, z), theirs, rtol=1e-3, atol=1e-4)


def test_torch_is_imported_only_when_it_is_used() -> None:
    code = "import sys, fedgen; fedgen.from_torch; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_without_torch_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(FedgenError, match="needs PyTorch"):
        fedgen.from_torch(object(), sample=(4,))  # type: ignore[arg-type]


def test_the_running_variances_of_norms_are_never_negative() -> None:
    class Whitened(nn.Module):
        """Not a norm of PyTorch's: nobody knows what it calls a variance."""

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("running_var", -torch.ones(1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if self.training:
                self.running_var.mul_(0.5)
            return x + self.running_var

    norms = [nn.InstanceNorm2d(2, track_running_stats=True), nn.BatchNorm2d(2, affine=False), nn.InstanceNorm2d(2)]
    fixed = nn.BatchNorm2d(2, track_running_stats=False)
    layers = [nn.Conv2d(1, 2, 3), *norms, fixed, nn.Flatten(), nn.Linear(72, 6), nn.BatchNorm1d(6), Whitened()]
    model = fedgen.from_torch(nn.Sequential(*layers, nn.Linear(6, 4)), sample=(1, 8, 8))
    assert set(model.never_negative) == {"['1.running_var']", "['2.running_var']", "['7.running_var']"}
    assert set(model.never_negative) < set(named(model.init(KEY)[1]))


@pytest.mark.parametrize("eps", [1e-5, 3e-5, 1e-3])
def test_the_running_variance_of_what_is_always_the_same_is_not_negative(eps: float) -> None:
    """As the borders of MNIST's images are: rounding alone would make it so, and the site a liar."""
    x, nothing, one = jnp.full((8, 3), 0.1), jnp.zeros(3), jnp.ones(3)
    operation = OPERATIONS["aten._native_batch_norm_legit_functional.default"].function
    variance = operation(x, one, nothing, nothing, nothing, True, 0.1, eps)[4]
    assert (variance >= 0).all()
