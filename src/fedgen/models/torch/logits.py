"""The logits that JAX computes against the module's own."""

from collections.abc import Callable, Mapping

import jax
import numpy as np
import torch
from torch import nn

from fedgen.core.contract import Array
from fedgen.errors import FedgenError
from fedgen.models.torch.export import Exported, no_fast_path, quiet
from fedgen.models.torch.gradients import batch_size, random_batch, shifted

_PART = 1e-3  # of the largest logit: a hundred times what float32 leaves in a deep network
# Compiling takes a third of the time, and for a few samples the program need not be fast.
_PLAINLY = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}


def check_logits(
    module: nn.Module,
    logits: Callable[[Mapping[str, Array], Array], Array],
    evaluation: Exported,
    example: torch.Tensor,
) -> None:
    """Refuse a module of which `logits`, in evaluation mode, gives others than PyTorch; `example` is one sample."""
    draw = torch.Generator().manual_seed(0)
    with quiet(), no_fast_path(), torch.no_grad(), shifted(module, draw):
        x = random_batch(module, example, batch_size(evaluation), draw, _words(module))
        theirs = module.eval()(x).float().numpy()
        tensors = {name: _array(tensor) for name, tensor in [*module.named_parameters(), *module.named_buffers()]}
    with jax.default_device(_cpu()), jax.default_matmul_precision("highest"):
        ours = np.asarray(jax.jit(logits, compiler_options=_PLAINLY)(tensors, _array(x)))
    # A tie that rounding decides, as between experts, changes one sample; another operation changes all.
    wrong = ~np.isclose(ours, theirs, _PART, _PART * _largest(theirs), equal_nan=True).all(1)
    if wrong.sum() > len(wrong) / 2:
        raise FedgenError(
            "JAX computes other logits than PyTorch for the same samples, in evaluation mode: whole numbers have 32"
            " bits here, beyond which they wrap around (a hash of words, say), floating-point ones have 32 at most, and"
            " an operation that you added may differ from PyTorch's; keep whole numbers below 2**31"
        )


def _largest(a: np.ndarray) -> float:
    return float(np.abs(np.nan_to_num(a, nan=0.0, posinf=0.0, neginf=0.0)).max(initial=0.0))


def _words(module: nn.Module) -> int:
    """How many words the module may know: the rows of its largest embedding."""
    kinds = nn.Embedding | nn.EmbeddingBag
    return max((inner.num_embeddings for inner in module.modules() if isinstance(inner, kinds)), default=3)


def _array(tensor: torch.Tensor) -> np.ndarray:
    """As JAX computes with it: 32 bits are the most."""
    array = (tensor.float() if tensor.is_floating_point() else tensor).numpy()
    return array.astype(np.int32) if array.dtype == np.int64 else array.copy()


def _cpu() -> jax.Device | None:
    """Where PyTorch computed; None, for the usual device, where JAX is told to use GPUs alone."""
    try:
        return jax.devices("cpu")[0]
    except RuntimeError:
        return None
