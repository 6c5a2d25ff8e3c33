"""The gradient of an exported graph against the module's own, by PyTorch alone."""

import contextlib
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import nn

from fedgen.errors import FedgenError
from fedgen.models.check import saying
from fedgen.models.torch.export import Exported, logits_by_torch, no_fast_path, quiet

_BATCH = 3  # samples, where the graph takes any number
_PART, _OF_ALL = 1e-3, 1e-5  # how far two gradients may be apart: of their own norm, and of the largest one
_SHIFT = 0.05  # of a weight, so that a layer that starts with zeros passes gradients on


def check_gradients(module: nn.Module, training: Exported, evaluation: Exported, example: torch.Tensor) -> None:
    """Refuse a module whose backward pass is not the derivative of its operations; `example` is one sample."""
    train = not training.draws  # two dropouts cannot be compared, but the module without them can
    exported = training if train else evaluation
    learned = [name for name, parameter in module.named_parameters() if parameter.requires_grad]
    draw = torch.Generator().manual_seed(0)
    with quiet(), no_fast_path(), torch.enable_grad(), shifted(module, draw):
        x = random_batch(module, example, batch_size(exported), draw)
        tensors = {name: tensor.detach().clone() for name, tensor in _tensors(module)}
        copies = {name: tensor.requires_grad_(name in learned) for name, tensor in tensors.items()}
        with saying("PyTorch cannot compute the gradient of what the module gives"):
            own = _own_gradients(module.train(train), x, [module.get_parameter(name) for name in learned])
        found = _gradients(logits_by_torch(exported, copies, x), [copies[name] for name in learned])
    largest = max((float(gradient.norm()) for gradient in own), default=0.0)
    for name, ours, theirs in zip(learned, found, own, strict=True):
        if float((ours - theirs).norm()) > _PART * float(theirs.norm()) + _OF_ALL * largest:
            raise FedgenError(
                f"PyTorch's gradient of '{name}' is not the derivative of what the module computes: an"
                " autograd.Function with its own backward, a hook on gradients or a change in place under no_grad does"
                " not reach JAX; say it with detach(), as in x + (f(x) - x).detach()"
            )


def _tensors(module: nn.Module) -> list[tuple[str, torch.Tensor]]:
    return [*module.named_parameters(), *module.named_buffers()]


@contextlib.contextmanager
def shifted(module: nn.Module, draw: torch.Generator) -> Iterator[None]:
    """Its parameters a little elsewhere for a while; parameters and buffers are as they were afterwards."""
    before = {name: tensor.detach().clone() for name, tensor in _tensors(module)}
    try:
        with torch.no_grad():
            for parameter in module.parameters():
                if parameter.requires_grad:
                    noise = torch.randn(parameter.shape, generator=draw).to(parameter.dtype)
                    parameter.add_(_SHIFT * noise * (parameter.abs() + _SHIFT))
        yield
    finally:
        _set(module, before)


def _set(module: nn.Module, values: dict[str, torch.Tensor]) -> None:
    with torch.no_grad():
        for name, tensor in _tensors(module):
            tensor.copy_(values[name])


def batch_size(exported: Exported) -> int:
    """How many samples a comparison takes: several, where the graph takes any number."""
    return _BATCH if exported.holds_for(_BATCH) else 2


def random_batch(
    module: nn.Module, example: torch.Tensor, count: int, draw: torch.Generator, most: int = 3
) -> torch.Tensor:
    """Random samples that the module takes; whole numbers are below `most`, or fewer where it knows fewer."""
    shape = (count, *example.shape)
    if example.is_floating_point():
        tried = [torch.randn(shape, generator=draw), torch.rand(shape, generator=draw)]
    else:
        tried = [torch.randint(0, below, shape, generator=draw) for below in dict.fromkeys((most, 3, 2))]
    own = example.expand(shape).clone()
    return next((x for x in (x.to(example.dtype) for x in tried) if _takes(module, x)), own)


def _takes(module: nn.Module, x: torch.Tensor) -> bool:
    """Whether the module makes numbers of these samples."""
    try:
        with torch.no_grad():
            return bool(module.eval()(x).isfinite().all())
    except Exception:  # whatever its own code raises: another batch is tried
        return False


def _own_gradients(module: nn.Module, x: torch.Tensor, learned: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The module's own, by `backward` where a checkpoint with use_reentrant=True takes nothing else."""
    try:
        return _gradients(module(x), learned)
    except RuntimeError as error:
        if "use_reentrant" not in str(error):
            raise
        return _gradients(module(x), learned, _by_backward)


def _by_backward(total: torch.Tensor, learned: Sequence[torch.Tensor]) -> Sequence[torch.Tensor | None]:
    before = [tensor.grad for tensor in learned]
    try:
        for tensor in learned:
            tensor.grad = None
        total.backward()
        return [tensor.grad for tensor in learned]
    finally:
        for tensor, gradient in zip(learned, before, strict=True):
            tensor.grad = gradient


def _by_autograd(total: torch.Tensor, learned: Sequence[torch.Tensor]) -> Sequence[torch.Tensor | None]:
    return torch.autograd.grad(total, learned, allow_unused=True)


def _gradients(
    logits: torch.Tensor,
    learned: Sequence[torch.Tensor],
    differentiate: Callable[[torch.Tensor, Sequence[torch.Tensor]], Sequence[torch.Tensor | None]] = _by_autograd,
) -> list[torch.Tensor]:
    """Of a weighted sum of logits; zeros where there is none or it is no number."""
    if not logits.requires_grad:
        return [torch.zeros_like(tensor) for tensor in learned]
    weights = torch.cos(torch.arange(logits.numel())).reshape(logits.shape)
    found = differentiate((weights * logits).sum(), learned)
    return [
        torch.zeros_like(tensor) if gradient is None else torch.nan_to_num(gradient, 0.0, 0.0, 0.0)
        for tensor, gradient in zip(learned, found, strict=True)
    ]
