"""Where a module is split: its predictor receives z, a vector for each sample, and the module gives logits."""

from collections.abc import Mapping

import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence

from fedgen.errors import FedgenError, unknown
from fedgen.models.torch.export import checked_logits, no_fast_path

_FLATTEN = "flatten before it (nn.Flatten), and in place of a convolution of 1 x 1 use the nn.Linear that it is"
_ONE_LAYER = "it is a single layer: put it into an nn.Sequential, of which it is the last"


def find_predictor(module: nn.Module, name: str | None, example: torch.Tensor) -> str:
    """The predictor's name: the given one, or that of the `nn.Linear` that is called last; checked by a batch of two.

    `example` is one sample.
    """
    submodules = {path: inner for path, inner in module.named_modules() if path}
    if name is not None and name not in submodules:
        raise unknown("predictor", name, submodules)
    watched = [name] if name else _outermost_linear(submodules)
    calls: list[tuple[str, tuple[object, ...]]] = []
    packed: list[str] = []

    def watch(path: str, given: tuple[object, ...]) -> None:
        if path in watched:
            calls.append((path, given))
        if any(isinstance(argument, PackedSequence) for argument in given):
            packed.append(path)

    hooks = [
        inner.register_forward_pre_hook(lambda _, given, path=path: watch(path, given))
        for path, inner in submodules.items()
    ]
    try:
        logits = _called(module, example)
    except Exception as error:  # whatever the module's own code raises
        raise FedgenError(_not_taken(module, example, error)) from error
    finally:
        for hook in hooks:
            hook.remove()
    if packed:
        raise FedgenError(
            f"the submodule '{packed[0]}' receives a packed sequence, which torch.export does not follow; give it the"
            " padded one, and take what it gives at the last word of each sample"
        )
    if not calls:
        which = f"its submodule '{name}'" if name else "any nn.Linear"
        named = f"name the predictor, one of {', '.join(submodules)}" if submodules else _ONE_LAYER
        raise FedgenError(f"the module does not call {which}; {named}")
    found, given = calls[-1]
    if [path for path, _ in calls].count(found) > 1:
        others = ", ".join(dict.fromkeys(path for path in submodules if path != found)) or "none"
        raise FedgenError(
            f"the module calls '{found}' more than once for a batch, so what it receives is ambiguous; name another"
            f" predictor: {others}"
        )
    z = given[0] if len(given) == 1 else None
    if not isinstance(z, torch.Tensor) or z.ndim != 2 or len(z) != 2:
        shown = tuple(z.shape) if isinstance(z, torch.Tensor) else f"{len(given)} arguments"
        pooled = isinstance(z, torch.Tensor) and z.ndim > 2 and z.shape[2:].numel() == 1
        remedy = _FLATTEN if pooled else "name a later submodule, or pool before it"
        raise FedgenError(
            f"the predictor '{found}' receives {shown} for a batch of 2; it must receive one vector for each sample:"
            f" {remedy}"
        )
    checked_logits(logits, 2)
    return found


def _outermost_linear(submodules: Mapping[str, nn.Module]) -> list[str]:
    """All `nn.Linear`, also of a subclass (with weight_norm, say), but for those that are inside another."""
    found = [path for path, inner in submodules.items() if isinstance(inner, nn.Linear)]
    return [path for path in found if not any(path.startswith(f"{other}.") for other in found)]


def _called(module: nn.Module, example: torch.Tensor) -> object:
    """What the module gives in evaluation mode for a batch of two."""
    with torch.no_grad(), no_fast_path():
        return module.eval()(example.expand(2, *example.shape))


def _not_taken(module: nn.Module, example: torch.Tensor, error: Exception) -> str:
    """Why the module does not take the sample, and of which type it would be taken."""
    said = f"the module does not take samples of shape {tuple(example.shape)} of {example.dtype}"
    remedies = {
        torch.float32: "give samples of floating-point numbers: x.astype('float32')",
        torch.int64: "give samples of whole numbers, and sample=torch.zeros(..., dtype=torch.int64)",
        torch.float64: "make it single with module.float()",
        torch.float16: "make it single with module.float()",
        torch.bfloat16: "make it single with module.float()",
    }
    for dtype, remedy in remedies.items():
        try:
            _called(module, example.to(dtype))
        except Exception:  # as little as the sample itself
            continue
        return f"{said}, but of {dtype}; {remedy}"
    return f"{said}: {error}"
