"""What each of PyTorch's operations is in JAX, by name; `operation` adds one."""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


class Operation(NamedTuple):
    """A function of the operation's arguments, as ATen's schema orders and names them, on JAX arrays.

    A random one gets `draw` as well, which gives another key each time that it is called.
    """

    function: Callable[..., Any]
    random: bool


OPERATIONS: dict[str, Operation] = {}


def operation(*names: str, random: bool = False) -> Callable[[F], F]:
    """Say what operations of these names are in JAX, e.g. `@operation("aten.sinc.default")`.

    The function gets what the operation gets: tensors as JAX arrays, numbers, lists and dtypes as they are. Memory
    formats, layouts and devices are left out.
    """

    def register(function: F) -> F:
        for name in names:
            OPERATIONS[name] = Operation(function, random)
        return function

    return register
