"""A part of an exported graph as a function of JAX arrays."""

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import torch
from torch.fx import Graph, Node

from fedgen.core.contract import Array
from fedgen.errors import FedgenError
from fedgen.models.torch.registry import OPERATIONS

# Arguments that say where and how PyTorch keeps a tensor.
_STORAGE = {"layout", "device", "pin_memory", "memory_format", "non_blocking", "generator", "implicit"}


@dataclass(frozen=True)
class Part:
    """Operations of a graph, in order, from what is given to what is wanted."""

    nodes: tuple[Node, ...]
    inputs: tuple[str, ...]  # names of the graph's own inputs that are needed
    outputs: tuple[str, ...]  # names of the nodes whose values are wanted

    def missing(self) -> dict[str, str]:
        """Operations that have no counterpart, and the submodule in which each is first met."""
        found: dict[str, str] = {}
        for node in self.nodes:
            if not _is_known(node):
                found.setdefault(_name(node), _submodule(node))
        return found

    def __call__(self, values: Mapping[str, Any], floating: Any, draw: Callable[[], Array]) -> list[Any]:
        """The outputs, from the inputs by name; `floating` is the type that stands for PyTorch's float32."""
        known = dict(values)
        for node in self.nodes:
            known[node.name] = _computed(node, known, floating, draw)
        return [known[name] for name in self.outputs]


def part(graph: Graph, outputs: Sequence[str], given: Iterable[str] = ()) -> Part:
    """What leads to the outputs from the graph's inputs, or from the nodes in `given`."""
    by_name, stop = {node.name: node for node in graph.nodes}, set(given)
    needed: set[str] = set()
    open_ends = [name for name in outputs if name not in stop]
    while open_ends:
        name = open_ends.pop()
        if name not in needed:
            needed.add(name)
            open_ends += [before.name for before in by_name[name].all_input_nodes if before.name not in stop]
    chosen = [node for node in graph.nodes if node.name in needed]
    inputs = [node.name for node in chosen if node.op == "placeholder"]
    return Part(tuple(node for node in chosen if node.op != "placeholder"), tuple(inputs), tuple(outputs))


def _name(node: Node) -> str:
    return str(node.target)


def _is_known(node: Node) -> bool:
    return _name(node) in OPERATIONS or _is_of_numbers(node) or node.target is operator.getitem


def _is_of_numbers(node: Node) -> bool:
    """Whether it is the size of an axis, or arithmetic on sizes."""
    return node.op == "call_function" and isinstance(node.meta.get("val"), int | float | torch.SymInt | torch.SymFloat)


def _submodule(node: Node) -> str:
    """The innermost submodule that an operation belongs to; "" for the module itself."""
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    return stack[-1][0].removeprefix("module").removeprefix(".") if stack else ""


def _computed(node: Node, known: Mapping[str, Any], floating: Any, draw: Callable[[], Array]) -> Any:
    def value(argument: Any) -> Any:
        if isinstance(argument, Node):
            return known[argument.name]
        if isinstance(argument, list | tuple):
            return [value(a) for a in argument]
        return jax_dtype(argument, floating) if isinstance(argument, torch.dtype) else argument

    target: Any = node.target
    if target is operator.getitem:
        return _result(node, known)
    if _name(node) not in OPERATIONS:
        arguments = [value(a) for a in node.args]
        return arguments[0].shape[arguments[1]] if _name(node) == "aten.sym_size.int" else target(*arguments)
    positional, named = _arguments(node)
    function, random = OPERATIONS[_name(node)]
    named = {name: value(a) for name, a in named.items() if name not in _STORAGE}
    return function(*map(value, positional), **named, **({"draw": draw} if random else {}))


def _result(node: Node, known: Mapping[str, Any]) -> Any:
    """One of an operation's results; None stands for one that its counterpart does not compute."""
    whole: Any
    whole, place = node.args
    found = known[whole.name][place]
    if found is None:
        where = _submodule(whole)
        raise FedgenError(
            f"PyTorch's operation {_name(whole)}, in {repr(where) if where else 'the module itself'}, has a counterpart"
            f" without its result {place}, which the module uses; add one that gives it, a function of JAX arrays:"
            f' @fedgen.models.torch.operation("{_name(whole)}")'
        )
    return found


def _arguments(node: Node) -> tuple[list[Any], dict[str, Any]]:
    """The arguments by position where the schema has them so, even if they were given by name."""
    schema = getattr(node.target, "_schema", None)
    if schema is None:
        return list(node.args), dict(node.kwargs)
    named, positional = dict(node.kwargs), list(node.args)
    by_position = [argument for argument in schema.arguments if not argument.kwarg_only]
    wanted = [place for place, argument in enumerate(by_position) if argument.name in named]
    for argument in by_position[len(positional) : max(wanted, default=-1) + 1]:
        positional.append(named.pop(argument.name, argument.default_value))
    return positional, named


def jax_dtype(dtype: torch.dtype, floating: Any) -> Any:
    """PyTorch's type in JAX, where 32 bits are the most; float32 is the type that the network computes in."""
    name = str(dtype).removeprefix("torch.")
    if name in ("float32", "float64"):
        return jnp.dtype(floating)
    return jnp.dtype({"int64": "int32", "complex128": "complex64"}.get(name, name))
