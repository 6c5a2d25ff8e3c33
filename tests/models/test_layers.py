"""Layers, classifiers and the generator against PyTorch's numbers."""

import itertools
import re
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import nn

from fedgen.bench.networks import of_torch
from fedgen.core.contract import Batch, Params
from fedgen.core.losses import supervised
from fedgen.core.trees import count
from fedgen.errors import FedgenError
from fedgen.models import MODELS, dispatch, layers
from fedgen.models.generator import Generator, draw_labels, draw_noise, generate, generator_init
from fedgen.models.rewrite import rewritten_model

KEY = jax.random.key(0)
CLOSE = {"rtol": 2e-4, "atol": 2e-5}


def _tensor(a: jax.Array) -> torch.Tensor:
    return torch.tensor(np.asarray(a))


def _samples_first(x: jax.Array) -> jax.Array:
    """PyTorch's [sample, channel, height, width] from our [channel, height, width, sample]."""
    return x.transpose(3, 0, 1, 2)


def _torch_conv(params: dict, inputs: int, outputs: int, stride: int = 2) -> nn.Conv2d:
    conv = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1)
    conv.weight.data = _tensor(params["weight"]).reshape(outputs, 3, 3, inputs).permute(0, 3, 1, 2).contiguous()
    conv.bias.data = _tensor(params["bias"])
    return conv


def _torch_norm(params: dict) -> nn.BatchNorm2d:
    norm = nn.BatchNorm2d(len(params["scale"]))
    norm.weight.data, norm.bias.data = _tensor(params["scale"]), _tensor(params["shift"])
    return norm


def _torch_linear(params: dict) -> nn.Linear:
    linear = nn.Linear(*params["weight"].shape)
    linear.weight.data, linear.bias.data = _tensor(params["weight"].T), _tensor(params["bias"])
    return linear


@pytest.mark.parametrize(("height", "width"), [(28, 28), (7, 9), (8, 11), (3, 3), (1, 2)])
def test_conv_norm_and_its_gradients_are_torchs(height: int, width: int) -> None:
    """A convolution with its bias, then BatchNorm: output, gradients, running statistics, and the trained model."""
    conv, (norm, statistics) = layers.conv_init(KEY, 3, 5), layers.batch_norm_init(5)
    norm = {"scale": jnp.linspace(0.5, 2, 5), "shift": jnp.linspace(-1, 1, 5)}
    x = jax.random.normal(KEY, (3, height, width, 4))
    theirs_conv, theirs_norm = _torch_conv(conv, 3, 5), _torch_norm(norm)
    theirs_in = _tensor(_samples_first(x)).requires_grad_()
    theirs = theirs_norm(theirs_conv(theirs_in))
    (theirs**3).sum().backward()

    def cubes(conv: dict, norm: dict, x: jax.Array) -> tuple:
        y, updated = layers.conv_norm(conv, norm, statistics, x, True)
        return jnp.sum(y**3), (y, updated)

    (of_conv, of_norm, of_x), (ours, updated) = jax.grad(cubes, argnums=(0, 1, 2), has_aux=True)(conv, norm, x)
    gradient = {"rtol": 1e-3, "atol": 2e-3}
    np.testing.assert_allclose(_samples_first(ours), theirs.detach(), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(_samples_first(of_x), theirs_in.grad, **gradient)
    weight = theirs_conv.weight.grad.permute(0, 2, 3, 1).reshape(5, 27)
    np.testing.assert_allclose(of_conv["weight"], weight, **gradient)
    np.testing.assert_array_equal(of_conv["bias"], 0)
    np.testing.assert_allclose(theirs_conv.bias.grad, 0, atol=2e-2)  # but for the rounding of a sum of thousands
    np.testing.assert_allclose(of_norm["scale"], theirs_norm.weight.grad, **gradient)
    np.testing.assert_allclose(of_norm["shift"], theirs_norm.bias.grad, **gradient)
    np.testing.assert_allclose(updated["mean"], theirs_norm.running_mean, **CLOSE)
    np.testing.assert_allclose(updated["variance"], theirs_norm.running_var, **CLOSE)
    theirs_norm.eval()
    ours, same = layers.conv_norm(conv, norm, updated, x, False)
    np.testing.assert_allclose(_samples_first(ours), theirs_norm(theirs_conv(theirs_in)).detach(), **CLOSE)
    assert same is updated


@pytest.mark.parametrize(("height", "width"), [pytest.param(28, 28, marks=pytest.mark.slow), (7, 8), (1, 2)])
def test_a_trained_conv_of_one_channel_is_torchs(height: int, width: int) -> None:
    conv, (norm, statistics) = layers.conv_init(KEY, 1, 6), layers.batch_norm_init(6)
    x = jax.random.normal(KEY, (1, height, width, 4))
    theirs = _torch_norm(norm).eval()(_torch_conv(conv, 1, 6)(_tensor(_samples_first(x))))
    ours, _ = layers.conv_norm(conv, norm, statistics, x, False)
    np.testing.assert_allclose(_samples_first(ours), theirs.detach(), **CLOSE)


def test_max_pool_is_torchs_and_drops_an_odd_edge() -> None:
    x = jax.random.normal(KEY, (3, 7, 8, 2))
    np.testing.assert_array_equal(_samples_first(layers.max_pool(x)), nn.MaxPool2d(2)(_tensor(_samples_first(x))))


def test_batch_norm_is_torchs_in_output_gradient_and_running_statistics() -> None:
    params, statistics = layers.batch_norm_init(3)
    params = {"scale": jnp.array([1.0, 2.0, 0.5]), "shift": jnp.array([0.0, -1.0, 3.0])}
    norm = _torch_norm(params)
    for step in range(3):
        x = 2 * jax.random.normal(jax.random.fold_in(KEY, step), (3, 4, 4, 5)) + 1
        theirs_in = _tensor(_samples_first(x)).requires_grad_()
        theirs = norm(theirs_in)
        (theirs**3).sum().backward()

        def cubes(x: jax.Array, statistics: dict = statistics) -> tuple:
            y, updated = layers.batch_norm(params, statistics, x, True)
            return jnp.sum(y**3), (y, updated)

        gradient, (ours, statistics) = jax.grad(cubes, has_aux=True)(x)
        np.testing.assert_allclose(_samples_first(ours), theirs.detach(), **CLOSE)
        np.testing.assert_allclose(_samples_first(gradient), theirs_in.grad, rtol=1e-2, atol=1e-3)
    np.testing.assert_allclose(statistics["mean"], norm.running_mean, **CLOSE)
    np.testing.assert_allclose(statistics["variance"], norm.running_var, **CLOSE)
    norm.eval()
    ours, same = layers.batch_norm(params, statistics, x, False)
    np.testing.assert_allclose(_samples_first(ours), norm(theirs_in).detach(), **CLOSE)
    assert same is statistics


def test_initial_weights_are_uniform_within_torchs_bound() -> None:
    weight = layers.linear_init(KEY, 400, 50)["weight"]
    assert float(jnp.max(jnp.abs(weight))) <= 0.05
    assert float(jnp.std(weight)) == pytest.approx(0.05 / 3**0.5, rel=0.02)  # of U(-a, a): a / sqrt(3)


def _torch_cnn(params: tuple) -> nn.Sequential:
    extractor, predictor = params
    return nn.Sequential(
        _torch_conv(extractor["conv0"], 1, 6), _torch_norm(extractor["norm0"]), nn.ReLU(),
        _torch_conv(extractor["conv1"], 6, 16), _torch_norm(extractor["norm1"]), nn.ReLU(),
        nn.Flatten(), _torch_linear(extractor["linear"]), _torch_linear(predictor),
    )  # fmt: skip


@pytest.mark.slow
def test_three_steps_of_sgd_on_the_cnn_are_torchs() -> None:
    model = MODELS["cnn"]((28, 28, 1), 10)
    params, statistics = model.init(KEY)
    theirs = _torch_cnn(params)
    optimizer = torch.optim.SGD(theirs.parameters(), 0.1)
    for step in range(3):
        x = jax.random.normal(jax.random.fold_in(KEY, step), (16, 28, 28, 1))
        y = np.arange(16) % 10

        def loss(params: tuple, x: jax.Array = x, y: np.ndarray = y, statistics: dict = statistics) -> tuple:
            found = supervised(model, params, statistics, Batch(x, y))
            return found.value, found

        (ours, forward), gradient = jax.value_and_grad(loss, has_aux=True)(params)
        params, statistics = jax.tree.map(lambda p, g: p - 0.1 * g, params, gradient), forward.memo
        optimizer.zero_grad()
        expected = nn.functional.cross_entropy(theirs(_tensor(x.transpose(0, 3, 1, 2))), torch.tensor(y))
        expected.backward()
        optimizer.step()
        assert float(ours) == pytest.approx(expected.item(), rel=1e-4)
    after = _torch_cnn(params)
    for a, b in zip(after.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=2e-3, atol=2e-4)
    np.testing.assert_allclose(statistics["norm1"]["mean"], theirs[4].running_mean, rtol=2e-3, atol=2e-4)


@pytest.mark.parametrize(
    ("sample", "classes", "expected"),
    [((28, 28, 1), 10, 26_434), ((28, 28, 1), 26, 26_962), ((84, 84, 3), 2, 25_954)],
)
def test_parameter_counts_of_the_paper(sample: tuple, classes: int, expected: int) -> None:
    params, _ = MODELS["cnn"](sample, classes).init(KEY)
    assert count(params) == expected


@pytest.mark.slow
def test_resnet_is_torchs() -> None:
    """Two stages of one block: logits, and the loss after a step of SGD, by PyTorch's own layers."""
    model = MODELS["resnet"]((9, 8, 3), 4, widths=(4, 6), blocks=1, latent=5)
    params, statistics = model.init(KEY)

    def theirs(params: tuple, x: torch.Tensor) -> torch.Tensor:
        e = params[0]

        def convolved(name: str, inputs: int, outputs: int, x: torch.Tensor, stride: int = 1) -> torch.Tensor:
            return _torch_norm(e[f"{name}-norm"])(_torch_conv(e[name], inputs, outputs, stride)(x))

        h = torch.relu(convolved("stem", 3, 4, x))
        inner = torch.relu(convolved("stage0block0a", 4, 4, h))
        h = torch.relu(h + convolved("stage0block0b", 4, 4, inner))
        inner = torch.relu(convolved("stage1block0a", 4, 6, h, 2))
        shortcut = _torch_linear(e["stage1block0-shortcut"])(h[:, :, ::2, ::2].permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        h = torch.relu(shortcut + convolved("stage1block0b", 6, 6, inner))
        return _torch_linear(params[1])(_torch_linear(e["linear"])(h.mean((2, 3))))

    x, y = jax.random.normal(KEY, (6, 9, 8, 3)), np.arange(6) % 4
    for _ in range(2):  # the second time after a step: the gradients too are right

        def loss(params: tuple) -> tuple:
            found = supervised(model, params, statistics, Batch(x, y))
            return found.value, found

        (ours, forward), gradient = jax.value_and_grad(loss, has_aux=True)(params)
        logits = theirs(params, _tensor(x.transpose(0, 3, 1, 2))).detach()
        np.testing.assert_allclose(forward.logits, logits, rtol=1e-3, atol=1e-4)
        assert float(ours) == pytest.approx(nn.functional.cross_entropy(logits, torch.tensor(y)).item(), rel=1e-4)
        slope = sum(float(jnp.sum(g**2)) for g in jax.tree.leaves(gradient))
        params = jax.tree.map(lambda p, g: p - 1e-3 * g, params, gradient)
    after = nn.functional.cross_entropy(theirs(params, _tensor(x.transpose(0, 3, 1, 2))).detach(), torch.tensor(y))
    assert float(ours) - after.item() == pytest.approx(1e-3 * slope, rel=0.05)  # as far as the gradient promises


def test_resnet_has_millions_of_parameters_and_refuses_small_images() -> None:
    shapes = jax.eval_shape(MODELS["resnet"]((32, 32, 3), 10).init, KEY)[0]
    # stem; stages of four 3x3 convolutions with biases; shortcuts; BatchNorm; linear layers
    convolutions = [(3, 64), *[(64, 64)] * 4, (64, 128), *[(128, 128)] * 3, (128, 256), *[(256, 256)] * 3]
    expected = sum(9 * i * o + o + 2 * o for i, o in convolutions)
    expected += 64 * 128 + 128 + 128 * 256 + 256 + 256 * 32 + 32 + 32 * 10 + 10
    assert count(shapes) == expected == 2_785_130
    with pytest.raises(FedgenError, match="at least 8 pixels"):
        MODELS["resnet"]((7, 32, 3), 10)


def test_mlp_shape_and_count() -> None:
    params, statistics = MODELS["mlp"]((28, 28, 1), 10).init(KEY)
    # 784*200+200 + 200*32+32 + 32*10+10
    assert count(params) == 157_000 + 6_432 + 330
    assert statistics == ()


@pytest.mark.parametrize(("classes", "expected"), [(10, 19_744), (26, 23_840)])
def test_generator_counts_of_the_paper(classes: int, expected: int) -> None:
    assert count(generator_init(KEY, classes, 32, 256, 32).params) == expected


def test_generator_is_torchs() -> None:
    generator = generator_init(KEY, 4, 3, 7, 5)
    norm = nn.BatchNorm1d(7)
    theirs = nn.Sequential(
        _torch_linear(generator.params["hidden"]), norm, nn.ReLU(), _torch_linear(generator.params["output"])
    )
    noise, labels = jax.random.normal(KEY, (6, 3)), jnp.array([0, 1, 2, 3, 0, 1])
    x = torch.cat([_tensor(noise), nn.functional.one_hot(_tensor(labels).long(), 4).float()], 1)
    ours, statistics = generate(generator, noise, labels, 4, True)
    np.testing.assert_allclose(ours, theirs(x).detach(), **CLOSE)
    theirs.eval()
    trained = Generator(generator.params, statistics)
    np.testing.assert_allclose(generate(trained, noise, labels, 4, False)[0], theirs(x).detach(), **CLOSE)


def test_labels_follow_the_prior_and_impossible_ones_never_come() -> None:
    prior = jnp.array([0.0, 0.2, 0.0, 0.8, 0.0])
    drawn = np.bincount(draw_labels(KEY, 20_000, prior), minlength=5) / 20_000
    assert drawn[[0, 2, 4]].sum() == 0
    # three standard errors of a proportion: 3 * sqrt(0.2 * 0.8 / 20000) = 0.0085
    assert drawn[1] == pytest.approx(0.2, abs=0.0085)


def test_noise_is_what_its_name_says() -> None:
    normal, uniform = (draw_noise(KEY, (500, 40), name) for name in ("normal", "uniform"))
    assert float(jnp.mean(normal)) == pytest.approx(0, abs=0.03)
    assert float(jnp.std(normal)) == pytest.approx(1, abs=0.02)
    assert 0 <= float(jnp.min(uniform)) < float(jnp.max(uniform)) < 1
    assert float(jnp.mean(uniform)) == pytest.approx(0.5, abs=0.01)


def test_images_too_small_for_the_cnn_are_refused() -> None:
    with pytest.raises(FedgenError, match="at least 8x8"):
        MODELS["cnn"]((6, 28, 1), 10)
    with pytest.raises(FedgenError, match="fewer channels"):
        MODELS["cnn"]((8, 8, 1), 10, channels=(4, 4), pool=True)


@pytest.mark.slow
@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize(
    ("channels", "size"),
    [
        pytest.param((1, 2, 3), (5, 11, 50), marks=pytest.mark.slow),  # rows of several tiles, the last in part
        ((2, 1, 4), (8, 7, 3)),  # of one tile
    ],
)
def test_a_stack_of_convolutions_by_kernels_is_torchs(channels: tuple[int, ...], size: tuple[int, ...]) -> None:
    """For two clients at once, each with weights of its own: output, gradients and running statistics."""
    pairs = list(itertools.pairwise(channels))
    keys = jax.random.split(KEY, (2, len(pairs)))
    convs = [jax.vmap(lambda k, p=pair: layers.conv_init(k, *p))(keys[:, i]) for i, pair in enumerate(pairs)]
    norms = [
        {"scale": jnp.linspace(0.5, 2, 2 * n).reshape(2, n), "shift": jnp.linspace(-1, 1, 2 * n).reshape(2, n)}
        for n in channels[1:]
    ]
    statistics = [layers.batch_norm_init(n)[1] for n in channels[1:]]
    x = 3 + jax.random.normal(KEY, (2, channels[0], *size))

    def cubes(convs: list, norms: list, x: jax.Array) -> tuple:
        y, updated = dispatch.conv_norm_relu(convs, norms, statistics, x, True)
        return jnp.sum(y**3), (y, updated)

    trained = jax.jit(jax.vmap(jax.grad(cubes, argnums=(0, 1, 2), has_aux=True)))
    gradients, (ours, updated) = trained(convs, norms, x)
    assert "pallas_call" in str(jax.make_jaxpr(jax.vmap(cubes))(convs, norms, x))
    for client in range(2):
        everything = (*gradients, ours, updated, convs, norms)
        of_convs, of_norms, of_x, y, after, *mine = jax.tree.map(lambda a, c=client: a[c], everything)
        their_convs = [_torch_conv(conv, *pair, 2) for conv, pair in zip(mine[0], pairs, strict=True)]
        their_norms = [_torch_norm(norm) for norm in mine[1]]
        theirs_in = _tensor(_samples_first(x[client])).requires_grad_()
        theirs = theirs_in
        for conv, norm in zip(their_convs, their_norms, strict=True):
            theirs = torch.relu(norm(conv(theirs)))
        (theirs**3).sum().backward()
        close = {"rtol": 1e-3, "atol": 2e-3}
        np.testing.assert_allclose(_samples_first(y), theirs.detach(), rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(_samples_first(of_x), theirs_in.grad, **close)
        for i, (conv, norm) in enumerate(zip(their_convs, their_norms, strict=True)):
            weight = conv.weight.grad.permute(0, 2, 3, 1).reshape(of_convs[i]["weight"].shape)
            np.testing.assert_allclose(of_convs[i]["weight"], weight, **close)
            np.testing.assert_array_equal(of_convs[i]["bias"], 0)
            np.testing.assert_allclose(of_norms[i]["scale"], norm.weight.grad, **close)
            np.testing.assert_allclose(of_norms[i]["shift"], norm.bias.grad, **close)
            np.testing.assert_allclose(after[i]["mean"], norm.running_mean, **CLOSE)
            np.testing.assert_allclose(after[i]["variance"], norm.running_var, **CLOSE)


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("inputs", [70, 36])  # more than one tile, and one; divisible by four and not
def test_a_linear_layer_by_kernels_is_torchs(inputs: int) -> None:
    params = layers.linear_init(KEY, inputs, 5)
    x = jax.random.normal(KEY, (inputs, 3))

    def cubes(params: dict, x: jax.Array) -> tuple:
        y = dispatch.linear_of_columns(params, x, True)
        return jnp.sum(y**3), y

    (of_params, of_x), ours = jax.grad(cubes, argnums=(0, 1), has_aux=True)(params, x)
    assert "pallas_call" in str(jax.make_jaxpr(jax.grad(lambda p, x: cubes(p, x)[0]))(params, x))
    linear, theirs_in = _torch_linear(params), _tensor(x.T).requires_grad_()
    theirs = linear(theirs_in)
    (theirs**3).sum().backward()
    np.testing.assert_allclose(ours, theirs.detach(), **CLOSE)
    np.testing.assert_allclose(of_x.T, theirs_in.grad, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(of_params["weight"].T, linear.weight.grad, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(of_params["bias"], linear.bias.grad, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("framework", ["ours", "torch"])
def test_the_cnns_kernels_can_be_lowered_for_a_gpu(monkeypatch: pytest.MonkeyPatch, framework: str) -> None:
    """All that Triton's compiler is given, from any machine: what it has no operation for would fail here."""
    monkeypatch.setattr(dispatch, "kernels_run_here", lambda: True)
    model = MODELS["cnn"]((28, 28, 1), 10)
    if framework == "torch":
        model = rewritten_model(of_torch("paper-cnn"), lambda form: "patches")
    params, statistics = jax.vmap(model.init)(jax.random.split(KEY, 2))

    def loss(params: Params, statistics: dict, x: jax.Array) -> jax.Array:
        z, _ = model.extract(params.extractor, statistics, x, True)
        return jnp.sum(model.predict(params.predictor, z))

    gpu = jax.sharding.AbstractDevice(device_kind="NVIDIA H100", num_cores=None, platform="gpu")
    with jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((), (), abstract_device=gpu)):
        trained = jax.jit(jax.vmap(jax.grad(loss))).trace(params, statistics, jnp.ones((2, 32, 28, 28, 1)))
        lowered = trained.lower(lowering_platforms=("cuda",))
    linear = {"fedgen_gradients_of_product"} if framework == "ours" else set()
    assert set(re.findall(r"fedgen_\w+", lowered.as_text())) == linear | {
        "fedgen_convolve",
        "fedgen_convolve_one",
        "fedgen_gradient_of_input",
        "fedgen_gradient_of_weight",
        "fedgen_gradient_of_weight_one",
    }


@pytest.mark.parametrize(
    ("platform", "capability", "run"),
    [("gpu", "9.0", True), ("gpu", "8.0", True), ("gpu", "7.5", False), ("gpu", "gfx942", False), ("cpu", None, False)],
)
def test_kernels_run_on_the_gpus_they_are_compiled_for(
    monkeypatch: pytest.MonkeyPatch, platform: str, capability: str | None, run: bool
) -> None:
    device = SimpleNamespace(platform=platform, device_kind="some GPU")
    if capability:
        device.compute_capability = capability
    monkeypatch.setattr(jax, "local_devices", lambda: [device])
    monkeypatch.setattr(dispatch, "_kernels_compile", lambda device_kind: True)
    assert dispatch.kernels_run_here() is run


def test_without_a_compiler_for_the_kernels_xlas_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    device = SimpleNamespace(platform="gpu", compute_capability="9.0", device_kind="a GPU that is not here")
    monkeypatch.setattr(jax, "local_devices", lambda: [device])
    conv, (norm, statistics) = layers.conv_init(KEY, 1, 4), layers.batch_norm_init(4)

    @jax.jit
    def trained(x: jax.Array) -> jax.Array:
        return dispatch.conv_norm_relu([conv], [norm], [statistics], x, True)[0]

    assert trained(jnp.ones((1, 4, 4, 2))).shape == (4, 2, 2, 2)


@pytest.mark.parametrize(("fan_in", "fan_out"), [(8, 5), (3, 17)])
def test_a_stack_with_many_channels_is_left_to_xla(monkeypatch: pytest.MonkeyPatch, fan_in: int, fan_out: int) -> None:
    monkeypatch.setattr(dispatch, "kernels_run_here", lambda: True)
    conv, (norm, statistics) = layers.conv_init(KEY, fan_in, fan_out), layers.batch_norm_init(fan_out)

    def trained(x: jax.Array) -> tuple:
        return dispatch.conv_norm_relu([conv], [norm], [statistics], x, True)

    assert "pallas_call" not in str(jax.make_jaxpr(trained)(jnp.ones((fan_in, 4, 4, 2))))


@pytest.mark.parametrize(("samples", "fan_out"), [(65, 5), (3, 65)])
def test_a_wide_linear_layer_is_left_to_xla(monkeypatch: pytest.MonkeyPatch, samples: int, fan_out: int) -> None:
    monkeypatch.setattr(dispatch, "kernels_run_here", lambda: True)
    params = layers.linear_init(KEY, 8, fan_out)

    def total(x: jax.Array) -> jax.Array:
        return dispatch.linear_of_columns(params, x, True).sum()

    assert "pallas_call" not in str(jax.make_jaxpr(jax.grad(total))(jnp.ones((8, samples))))


def test_sums_over_large_images_are_exact_to_float32() -> None:
    x = (1 + jax.random.uniform(KEY, (2, 40, 40, 200))) ** 2
    theirs = np.asarray(x, np.float64).sum((1, 2, 3))
    np.testing.assert_allclose(layers.sum_of_channels(x, (1, 2, 3)), theirs, rtol=5e-7)
