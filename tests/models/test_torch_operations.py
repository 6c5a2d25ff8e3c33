"""Each of PyTorch's operations, and its derivative, against PyTorch's own."""

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from fedgen.models.torch.graph import jax_dtype
from fedgen.models.torch.registry import OPERATIONS

RNG = np.random.default_rng(0)


def some(*shape: int, low: float = -2.0, high: float = 2.0) -> np.ndarray:
    return RNG.uniform(low, high, shape).astype(np.float32)


def whole(*shape: int, most: int = 5) -> np.ndarray:
    return RNG.integers(0, most, shape)


X, POSITIVE, IMAGE = some(3, 4, 5), some(3, 4, 5, low=0.1), some(2, 4, 9, 8)
TRUE = RNG.random((3, 4, 5)) > 0.5
MATRIX = some(4, 6)
WITH_ZEROS = some(3, 4, 5)
WITH_ZEROS[:, 1], WITH_ZEROS[:, :, 2], WITH_ZEROS[0, :, 1] = 0, 0, 0.5
NEAR = X[:, :2] + np.array([[0.0], [0.3]], np.float32)  # of each two rows one is the same
STATES, PARAMS = [some(2, 3, 5), some(2, 3, 5)], [some(20, 4), some(20, 5), some(20), some(20)]
UNARY = (
    "abs ceil cos cosh erf exp expm1 floor isfinite isinf isnan mish neg relu round sigmoid sign silu sin sinh square"
    " tan tanh trunc atan"
)
ATTENTION = [some(2, 2, 3, 4), some(2, 2, 5, 4), some(2, 2, 5, 4)]


def _cases() -> Iterator[tuple[str, tuple[Any, ...], dict[str, Any]]]:
    """(operation, arguments, arguments by name)."""

    def case(name: str, *arguments: Any, **named: Any) -> tuple[str, tuple[Any, ...], dict[str, Any]]:
        return f"aten.{name}" if "." in name else f"aten.{name}.default", arguments, named

    yield from (case(name, X) for name in UNARY.split())
    yield case("abs", WITH_ZEROS)
    yield from (case(name, X / 3) for name in ("acos", "asin", "atanh"))
    yield from (case(name, POSITIVE) for name in ("log", "log10", "log1p", "log2", "reciprocal", "rsqrt", "sqrt"))
    yield from (case(name, TRUE) for name in ("bitwise_not", "logical_not"))
    for name in ("bitwise_and", "bitwise_or", "bitwise_xor"):
        yield case(f"{name}.Tensor", TRUE, TRUE[::-1].copy())
        yield case(f"{name}.Scalar", whole(3, 4), 5)
    yield from (case(name, TRUE, TRUE[::-1].copy()) for name in ("logical_and", "logical_or", "logical_xor"))
    yield from (case(name, X, X[::-1].copy()) for name in ("atan2", "hypot", "maximum", "minimum"))
    for name in ("eq", "ge", "gt", "le", "lt", "ne"):
        yield case(f"{name}.Tensor", whole(3, 4), whole(3, 4))
        yield case(f"{name}.Scalar", whole(3, 4), 2)
    for name in ("fmod", "mul", "remainder"):
        yield case(f"{name}.Tensor", X, POSITIVE)
        yield case(f"{name}.Scalar", X, 0.7)
    yield case("floor_divide", whole(3, 4) - 2, whole(3, 4) + 1)
    yield case("floor_divide.Scalar", whole(3, 4) - 2, 2)
    for name in ("add", "sub", "rsub"):
        yield case(f"{name}.Tensor", X, X[:1].copy(), alpha=2)
        yield case(f"{name}.Scalar", X, 3)
    yield case("div.Tensor", whole(3, 4), whole(3, 4) + 1)
    yield case("div.Scalar", X, 3)
    yield case("div.Tensor_mode", X, POSITIVE, rounding_mode="trunc")
    yield case("div.Scalar_mode", X, 0.6, rounding_mode="floor")
    yield from (case("pow.Tensor_Scalar", X, exponent) for exponent in (2, 3.0, -1))
    yield case("pow.Tensor_Tensor", POSITIVE, X)
    yield case("pow.Scalar", 2.0, X)
    edges = np.array([-2, -1, 0, 1, 2, 6, 7], np.float32)
    yield case("clamp", edges, -1, 1)
    yield case("clamp", edges, max=1)
    yield case("clamp.Tensor", X, X[:1].copy() - 1)
    yield case("clamp_min", edges, 0)
    yield case("clamp_min.Tensor", X, X[:1].copy())
    yield case("clamp_max", edges, 0)
    yield case("clamp_max.Tensor", X, X[:1].copy())
    yield from (case("hardtanh", edges, *bounds) for bounds in ((), (0.0, 6.0)))
    yield case("relu6", edges)
    yield case("leaky_relu", edges, 0.2)
    yield case("_prelu_kernel", X, X[:1].copy())
    yield from (case("elu", 50 * X, *factors) for factors in ((), (1.6, 1.05)))
    yield from (case("gelu", X, approximate=how) for how in ("none", "tanh"))
    yield case("softplus", 30 * X, 2.0, 20.0)
    yield case("where.self", TRUE, X, X[:1].copy())
    yield case("where.ScalarOther", TRUE, X, 1.0)
    yield case("where.ScalarSelf", TRUE, 1.0, X)
    yield case("where.Scalar", TRUE, 1.0, 2.0)
    yield case("masked_fill.Scalar", X, TRUE, -1.0)
    yield case("masked_fill.Tensor", X, TRUE, np.float32(2))
    yield case("nan_to_num", np.array([1, np.nan, np.inf, -np.inf], np.float32), 2.0, 3.0, -3.0)

    for name in ("sum", "mean", "prod"):
        yield case(name, X)
    yield from (
        case(f"{name}", X, dims, keep)
        for name in ("sum.dim_IntList", "mean.dim")
        for dims, keep in (([1, -1], True), ([0], False))
    )
    yield case("sum.dim_IntList", TRUE, [0])
    yield case("prod.dim_int", X, 1)
    for name in ("var", "std", "var_mean", "std_mean"):
        yield case(f"{name}.correction", X, [0, 2], correction=0, keepdim=True)
        yield case(f"{name}.correction", X, [1])
        yield case(f"{name}.correction", WITH_ZEROS, [1])
    yield from (case(name, X, [1]) for name in ("amax", "amin"))
    yield from (case(name, X, *dims) for name in ("argmax", "argmin") for dims in ((), (1, True)))
    for name in ("any", "all"):
        yield from (
            case(f"{name}{overload}", TRUE, *dims)
            for overload, dims in ((".default", ()), (".dim", (1,)), (".dims", ([0, 1],)))
        )
    yield from (case(name, X) for name in ("max", "min"))
    ties = whole(4, 6).astype(np.float32)
    yield from (case(f"{name}.dim", ties, 1, keep) for name in ("max", "min") for keep in (True, False))
    yield case("sort", X, 1, True)
    yield case("sort.stable", X, stable=True, dim=0)
    yield from (case("topk", X, 2, 1, largest) for largest in (True, False))
    yield from (case(name, X, 1) for name in ("cumsum", "cumprod"))
    yield from (case("logcumsumexp", X, dim) for dim in (1, -1))
    yield from (case(name, a, dim) for name in ("cummax", "cummin") for a, dim in ((X, 0), (ties, -1)))
    yield case("logsumexp", X, [1], True)
    yield case("linalg_vector_norm", X, 2, [1])
    yield from (case("linalg_vector_norm", WITH_ZEROS, p, [1]) for p in (0, 0.5, 1, 1.5, 2, 3, np.inf))
    yield case("linalg_vector_norm", np.zeros((2, 3), np.float32))
    yield from (case("_cdist_forward", X, NEAR, p, None) for p in (1.0, 2.0, 3.0))
    yield case("_euclidean_dist", X[0], NEAR[0])
    yield from (case("median.dim", odd, dim, keep) for odd, dim, keep in ((X, 1, True), (X, -1, False)))
    yield case("_softmax", X, 1, False)
    yield case("softmax.int", X, 1)
    yield from (case("_safe_softmax", x, 1) for x in (X, np.where(X[:, :1] > 0, X, -np.inf)))
    yield case("_log_softmax", X, 1, False)
    yield case("log_softmax.int", X, 1)

    yield from (case(name, X, [5, -1]) for name in ("view", "reshape", "_unsafe_view"))
    yield from (case(name, X) for name in ("clone", "alias", "contiguous", "detach", "lift_fresh_copy"))
    yield case("_to_copy", whole(3), dtype=torch.float32)
    yield case("_to_copy", X, dtype=torch.int64)
    yield case("copy", whole(3, 4, 5), whole(4, 5))
    yield case("permute", X, [-1, 0, 1])
    yield case("transpose.int", X, 0, -1)
    yield case("t", MATRIX)
    yield from (case("unsqueeze", X, dim) for dim in (0, -1))
    thin = some(1, 3, 1, 2)
    yield case("squeeze", thin)
    yield from (case("squeeze.dim", thin, dim) for dim in (1, -2))
    yield case("squeeze.dims", thin, [0, 1, 2])
    yield case("expand", some(3, 1), [2, -1, 4])
    yield case("repeat", MATRIX, [2, 1, 3])
    yield from (case(name, [X, X], dim) for name in ("cat", "stack") for dim in (0, -1))
    yield case("split.Tensor", X, 2, 2)
    yield case("split_with_sizes", X, [1, 4], 2)
    yield case("chunk", X, 3, 2)
    yield case("unbind.int", X, 1)
    yield from (case("select.int", X, 1, index) for index in (2, -1))
    yield from (case("slice.Tensor", X, 2, *bounds) for bounds in ((1, 4), (-3, 2**62), (0, 5, 2), (4, 2)))
    yield case("slice_scatter", X, some(3, 4, 2), 2, 1, 5, 2)
    yield case("select_scatter", X, some(3, 5), 1, -1)
    yield from (case(name, X, [None, whole(2, 3, most=4)]) for name in ("index.Tensor", "_unsafe_index.Tensor"))
    yield case("index.Tensor", X, [whole(2, most=3), whole(2, most=4)])
    yield from (case("index_put", X, [np.array([0, 2])], some(2, 4, 5), add) for add in (True, False))
    yield from (case("index_put", X, [TRUE], np.float32(0.5), add) for add in (True, False))
    yield case("index_put", X, [None, TRUE[0, :, 0]], some(3, 1, 5))
    yield case("index_put", X, [TRUE[:, :, 0]], some(5), True)
    yield case("index_put", X, [None, np.array([True, False, True, False])], np.arange(5, dtype=np.float32))
    yield case("index_select", X, 1, whole(6, most=4))
    yield case("gather", X, 1, whole(2, 7, 5, most=4))
    yield case("scatter_add", X, 1, whole(2, 7, 5, most=4), some(2, 7, 5))
    yield case("scatter_add", X, -1, whole(3, 2, 4), some(3, 2, 4))
    once = np.argsort(RNG.random((3, 4, 5)), 1)[:2, :3]  # no place twice, where PyTorch says nothing
    yield from (case("scatter.src", X, dim, once, some(2, 3, 5)) for dim in (1, -2))
    yield case("scatter.value", X, 1, once, 0.5)
    numbers = whole(3, 4, 5)  # PyTorch's own has no derivative
    yield from (case("scatter.reduce", numbers, 1, once, whole(3, 4, 5), reduce=how) for how in ("add", "multiply"))
    yield from (case("scatter.value_reduce", numbers, 1, once, 2, reduce=how) for how in ("add", "multiply"))
    yield from (case("unfold", X, dim, *how) for dim, how in ((2, (3, 1)), (-2, (2, 2)), (1, (4, 3))))
    yield case("flip", X, [0, 2])
    yield from (case("roll", X, *how) for how in (([2],), ([1, -1], [0, 2])))
    yield case("constant_pad_nd", X, [1, 2, -1, 0], 3.0)
    yield case("reflection_pad1d", X, [2, 1])
    yield case("reflection_pad2d", IMAGE, [2, 1, 0, 3])
    yield case("reflection_pad3d", IMAGE[None], [2, 1, 0, 3, 1, 1])
    yield case("replication_pad1d", X, [2, 1])
    yield case("replication_pad2d", IMAGE, [2, 1, 0, 3])
    yield case("replication_pad3d", IMAGE[None], [2, 1, 0, 3, 1, 1])
    yield from (case(name, X, 1) for name in ("tril", "triu"))
    yield case("diagonal", X, 1, 0, 2)
    yield case("arange", 5)
    yield case("arange.start", 2, 5.0)
    yield case("arange.start_step", 2, 9, 3, dtype=torch.float32)
    yield case("full", [2, 3], 4.0)
    yield case("full", [2], 4, dtype=torch.int64)
    yield from (case(name, [2, 3], dtype=torch.float32) for name in ("zeros", "ones"))
    yield case("scalar_tensor", 3.0)
    yield case("full_like", X, 2)
    yield from (case(name, X) for name in ("zeros_like", "ones_like"))

    def convolution(
        x: np.ndarray,
        weight: np.ndarray,
        bias: Any,
        stride: int,
        padding: int,
        dilation: int,
        groups: int = 1,
        **more: int,
    ) -> tuple:
        n = weight.ndim - 2
        extra = [more.get("output_padding", 0)] * n
        return case(
            "convolution",
            x,
            weight,
            bias,
            [stride] * n,
            [padding] * n,
            [dilation] * n,
            "output_padding" in more,
            extra,
            groups,
        )

    yield convolution(IMAGE, some(6, 4, 3, 3), some(6), 1, 1, 1)
    yield convolution(IMAGE, some(6, 2, 3, 2), None, 2, 1, 2, groups=2)
    yield convolution(IMAGE, some(8, 1, 3, 3), some(8), 2, 1, 1, groups=4)
    yield convolution(X, some(6, 4, 3), some(6), 2, 1, 1)
    yield convolution(IMAGE[None], some(3, 2, 1, 3, 3), some(3), 1, 1, 1)
    yield convolution(IMAGE, some(4, 3, 3, 3), some(3), 2, 1, 1, output_padding=1)
    yield convolution(IMAGE, some(4, 2, 3, 2), some(4), 3, 1, 2, groups=2, output_padding=0)
    yield convolution(X, some(4, 3, 4), None, 2, 0, 1, output_padding=1)
    yield case("linear", X, some(6, 5), some(6))
    yield case("linear", X[0], some(6, 5))
    yield case("mm", MATRIX, some(6, 2))
    yield case("bmm", X, some(3, 5, 2))
    yield case("mv", MATRIX, some(6))
    yield case("dot", some(6), some(6))
    yield case("matmul", X, some(2, 3, 5, 4))
    yield case("addmm", some(2), MATRIX, some(6, 2), beta=0.5, alpha=2)
    yield case("baddbmm", some(3, 4, 2), X, some(3, 5, 2))
    yield case("einsum", "bij,kj->bik", [X, some(2, 5)])
    yield from (case("embedding", MATRIX, whole(3, 5, most=4), padding) for padding in (-1, 2))
    words, starts = whole(9, most=4), np.array([0, 3, 3, 7])  # with an empty bag
    yield from (
        case("_embedding_bag", some(4, 6), words, starts, False, mode, False, None, last, padding)
        for mode in (0, 1, 2)
        for last, padding in ((False, -1), (True, 2))
    )
    yield case("_embedding_bag", some(4, 6), words, starts, False, 0, False, some(9))
    yield case("_trilinear", some(3, 4), some(2, 4, 5), some(3, 5), [1, 3], [0], [1, 2], [2, 3])
    yield case("scaled_dot_product_attention", *ATTENTION)
    yield case("scaled_dot_product_attention", *ATTENTION, some(3, 5), scale=0.3)
    yield case("scaled_dot_product_attention", *ATTENTION, np.array([True, False, True, True, False]).reshape(1, 5))
    none = np.array([True, False, False])[:, None]  # two queries may attend to nothing
    yield case("scaled_dot_product_attention", *ATTENTION, none)
    yield case("scaled_dot_product_attention", *ATTENTION, np.where(none, some(3, 5), -np.inf))
    yield case("scaled_dot_product_attention", *ATTENTION, is_causal=True)
    yield case("scaled_dot_product_attention", some(2, 4, 3, 4), *ATTENTION[1:], enable_gqa=True)
    yield case("pixel_shuffle", IMAGE, 2)
    yield case("upsample_nearest2d.vec", IMAGE, [13, 20], None)
    yield case("upsample_nearest2d.vec", IMAGE, None, [2.0, 1.5])
    for corners in (False, True):
        yield case("upsample_bilinear2d.vec", IMAGE, [13, 5], corners, None)
        yield case("upsample_bilinear2d.vec", IMAGE, [1, 8], corners, None)
        yield case("upsample_bilinear2d.vec", IMAGE, None, corners, [2.0, 1.3])
    far = some(2, 5, 6, 2, low=-1.4, high=1.4)  # beyond the image, too
    yield from (
        case("grid_sampler_2d", IMAGE, far, how, beyond, corners)
        for how in (0, 1)
        for beyond in (0, 1)
        for corners in (False, True)
    )

    norm = (IMAGE, some(4), some(4), some(4), some(4, low=0.5))
    yield case("_native_batch_norm_legit_no_training", *norm, 0.1, 1e-5)
    yield case("_native_batch_norm_legit_no_training", IMAGE, None, None, *norm[3:], 0.1, 1e-5)
    yield case("_native_batch_norm_legit.no_stats", *norm[:3], True, 0.1, 1e-5)
    yield from (case("_native_batch_norm_legit_functional", *norm, train, 0.3, 1e-3) for train in (True, False))
    yield case("_native_batch_norm_legit_functional", some(7, 4), None, None, *norm[3:], True, 0.1, 1e-5)
    yield case("native_layer_norm", X, [4, 5], some(4, 5), some(4, 5), 1e-5)
    yield case("native_layer_norm", X, [5], None, None, 1e-5)
    yield case("native_group_norm", IMAGE, some(4), some(4), 2, 4, 72, 2, 1e-5)
    yield case("native_group_norm", X, None, None, 3, 4, 5, 4, 1e-5)
    yield from (case("rms_norm", X, [5], some(5), eps) for eps in (1e-3, None))

    ordered = whole(2, 4, 9, 8, most=4).astype(np.float32)  # with ties
    for x in (IMAGE, ordered):
        yield from (
            case("max_pool2d", x, *how)
            for how in (([2, 2],), ([3], [2], [1]), ([2, 3], [2, 1], [1, 0], [1, 2], True), ([4, 4],))
        )
    yield case("max_pool1d", X, [2], [1])
    yield case("max_pool3d", IMAGE, [2, 2, 2])
    yield case("max_pool1d_with_indices", X, [3], [2])
    yield case("max_pool2d_with_indices", IMAGE, [3, 2], [2, 2])
    yield case("max_pool3d_with_indices", IMAGE, [2, 2, 1])
    yield case("max_pool2d_with_indices", ordered, [4, 3], [2, 1], [2, 1], [1, 2], True)
    yield from (
        case("avg_pool2d", IMAGE, *how)
        for how in (
            ([2, 2],),
            ([3], [2], [1], False, False),
            ([3, 2], [2, 3], [1, 1], True, True),
            ([2, 2], [2, 2], [0, 0], True, True, 3),
            ([5, 5], [3, 2], [2, 2], True, False),
        )
    )
    yield case("avg_pool1d", X, [3], [1], [1])
    yield case("avg_pool3d", IMAGE, [2, 2, 2])
    yield case("adaptive_avg_pool1d", X, [3])
    yield from (
        case(name, IMAGE, size)
        for name in ("adaptive_avg_pool2d", "_adaptive_avg_pool2d")
        for size in ([1, 1], [4, 8], [3, 5])
    )
    yield from (case(name, IMAGE, [2, 1, 8]) for name in ("adaptive_avg_pool3d", "_adaptive_avg_pool3d"))
    yield case("adaptive_max_pool1d", X, [3])
    yield case("adaptive_max_pool2d", IMAGE, [4, 3])
    yield case("adaptive_max_pool3d", IMAGE, [2, 4, 3])

    for bidirectional in (False, True):
        both = PARAMS * (2 if bidirectional else 1)
        yield case(
            "lstm.input",
            some(3, 7, 4),
            [s[: 1 + bidirectional] for s in STATES],
            both,
            True,
            1,
            0.0,
            True,
            bidirectional,
            True,
        )
    yield case(
        "lstm.input",
        some(7, 3, 4),
        [some(1, 3, 2), STATES[0][:1]],
        [some(20, 4), some(20, 2), some(20), some(20), some(2, 5)],
        True,
        1,
        0.0,
        True,
        False,
        False,
    )
    yield case(
        "lstm.input",
        some(7, 3, 4),
        [s[:2] for s in STATES],
        [some(20, 4), some(20, 5), some(20, 5), some(20, 5)],
        False,
        2,
        0.0,
        True,
        False,
        False,
    )
    gates = [some(15, 4), some(15, 5), some(15), some(15)]
    yield case("gru.input", some(3, 7, 4), STATES[0], gates + [g + 0.1 for g in gates], True, 1, 0.0, False, True, True)
    yield case("gru.input", some(7, 3, 4), STATES[0][:1], gates, True, 1, 0.0, False, False, False)
    plain = [some(5, 4), some(5, 5), some(5), some(5)]
    yield from (
        case(f"rnn_{kind}.input", some(3, 7, 4), STATES[0][:1], plain, True, 1, 0.0, True, False, True)
        for kind in ("tanh", "relu")
    )


CASES = list(_cases())
AT_ONCE = 40
RANDOM = {name for name, found in OPERATIONS.items() if found.random} - {name for name, _, _ in CASES}
FREE = {"aten.empty.memory_format", "aten.empty_like.default"}  # what PyTorch gives is not defined
# They have another name in PyTorch's own module, give views that its functions refuse, or have no derivative.
SAME = {"aten._reshape_copy.default", "aten.detach_copy.default", "aten._embedding_bag_forward_only.default"}


def test_every_operation_is_here_or_draws_at_random() -> None:
    assert set(OPERATIONS) - {name for name, _, _ in CASES} == RANDOM | FREE | SAME


def _theirs(a: Any, learn: bool = True) -> Any:
    if isinstance(a, np.ndarray | np.floating):
        tensor = torch.tensor(a)
        return tensor.requires_grad_() if learn and tensor.is_floating_point() else tensor
    return [_theirs(x) for x in a] if isinstance(a, list) else a


def _ours(a: Any) -> Any:
    if isinstance(a, torch.dtype):
        return jax_dtype(a, jnp.float32)
    return [_ours(x) for x in a] if isinstance(a, list) else jnp.asarray(a) if isinstance(a, np.floating) else a


def _no_draw() -> jax.Array:
    raise AssertionError("nothing is random here")


class Case:
    """An operation with its arguments, by PyTorch and by us: results, and the derivative of a weighted sum of them."""

    def __init__(self, name: str, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        self.name = name
        fixed = (3, 4) if "batch_norm_legit_" in name else ()  # running statistics
        tensors = [_theirs(a, i not in fixed) for i, a in enumerate(arguments)]
        space, operator, overload = name.split(".")
        found = getattr(getattr(getattr(torch.ops, space), operator), overload)(*tensors, **named)
        self.theirs = _leaves(found)
        self.learned = [leaf for leaf in jax.tree.leaves(tensors) if getattr(leaf, "requires_grad", False)]
        # The moments that norms give beside their result are PyTorch's own affair.
        few = self.theirs[:1] if "norm" in name else self.theirs
        self.valued = [i for i, tensor in enumerate(few) if tensor.requires_grad] if self.learned else []
        if self.valued:
            sum((_weights(few[i].shape, torch) * few[i]).sum() for i in self.valued).backward()
        extra = {"draw": _no_draw} if OPERATIONS[name].random else {}
        self.named = {key: _ours(value) for key, value in named.items() if key not in ("min", "max")} | extra
        positional = [*map(_ours, arguments), *((None, named["max"]) if "max" in named else ())]
        self.flat, self.structure = jax.tree.flatten(positional)
        skipped = {id(arguments[i]) for i in fixed}
        self.places = [i for i, leaf in enumerate(self.flat) if _is_float(leaf) and id(leaf) not in skipped]

    def run(self, floats: list[jax.Array]) -> list[Any]:
        given = dict(zip(self.places, floats, strict=True))
        leaves = [given.get(i, leaf) for i, leaf in enumerate(self.flat)]
        arguments = [jnp.asarray(leaf) if isinstance(leaf, np.ndarray) else leaf for leaf in leaves]
        return _leaves(OPERATIONS[self.name].function(*jax.tree.unflatten(self.structure, arguments), **self.named))

    def both(self, floats: list[jax.Array]) -> tuple[list[Any], list[jax.Array]]:
        def total(floats: list[jax.Array]) -> jax.Array:
            leaves = self.run(floats)
            return sum(jnp.sum(_weights(leaves[i].shape, jnp) * leaves[i]) for i in self.valued)

        return self.run(floats), jax.grad(total)(floats) if self.valued else []

    def check(self, values: list[Any], gradients: list[jax.Array]) -> None:
        for ours, theirs in zip(values, self.theirs, strict=True):
            if ours is not None and theirs.numel() and ours.size:
                assert ours.shape == tuple(theirs.shape), self.name
                np.testing.assert_allclose(ours, theirs.detach(), rtol=1e-4, atol=1e-5, err_msg=self.name)
                assert (ours.dtype == jnp.float32) == theirs.is_floating_point(), self.name
        for ours, tensor in zip(gradients, self.learned if self.valued else [], strict=True):
            theirs = torch.zeros_like(tensor) if tensor.grad is None else tensor.grad
            scale = max(1.0, float(theirs.abs().max()))
            np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=2e-5 * scale, err_msg=self.name)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, len(CASES), AT_ONCE))
def test_operations_and_derivatives_are_torchs(first: int) -> None:
    """Some of the cases: compiling them together takes a fraction of the time."""
    cases = [Case(*case) for case in CASES[first : first + AT_ONCE]]
    floats = [[case.flat[i] for i in case.places] for case in cases]
    found = jax.jit(lambda floats: [case.both(own) for case, own in zip(cases, floats, strict=True)])(floats)
    for case, (values, gradients) in zip(cases, found, strict=True):
        case.check(values, gradients)


def _is_float(leaf: Any) -> bool:
    return isinstance(leaf, np.ndarray | jax.Array) and leaf.dtype == np.float32


def _weights(shape: tuple[int, ...], library: Any) -> Any:
    """One for each number of a result, none like another."""
    return library.cos(library.arange(int(np.prod(shape)))).reshape(tuple(shape))


def _leaves(tree: Any) -> list[Any]:
    return list(tree) if isinstance(tree, list | tuple) else [tree]
