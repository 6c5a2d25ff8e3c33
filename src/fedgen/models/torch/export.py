"""An `nn.Module` as graphs of ATen operations, by `torch.export`: one in training and one in evaluation mode."""

import contextlib
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.export import Dim
from torch.export.graph_signature import InputKind, OutputKind
from torch.fx import Graph

from fedgen.errors import FedgenError
from fedgen.models.torch.graph import Part, part
from fedgen.models.torch.registry import OPERATIONS

_BATCH = 2  # samples of the example that the module is exported with


@dataclass(frozen=True)
class Exported:
    """A module's graph in one mode. Names are those of its nodes, but for those of parameters and buffers."""

    graph: Graph
    x: str
    z: str
    logits: str
    tensors: dict[str, str]  # input -> parameter, buffer or constant
    constants: dict[str, np.ndarray]  # those that are neither parameter nor buffer
    updates: dict[str, str]  # buffer -> its value after a batch
    batch_sizes: tuple[str, ...]  # nodes that are the number of samples
    least: int  # and
    most: int | None  # numbers of samples in a batch that it holds for; None: any

    def holds_for(self, batch: int) -> bool:
        """Whether a batch may have this size. A graph that holds for any size has no 1, which it is right for too."""
        return self.least <= max(batch, 2) and (self.most is None or batch <= self.most)

    @cached_property
    def predictor(self) -> Part:
        """From z to the logits."""
        return part(self.graph, [self.logits], given=[self.z, *self.batch_sizes])

    def extractor(self, buffers: Sequence[str]) -> Part:
        """From x to z, and to these buffers after the batch."""
        return part(self.graph, [self.z, *(self.updates[name] for name in buffers)])


class Exporter:
    """Exports a module when it is first needed: for batches of any size, or where that fails for each size."""

    def __init__(self, module: nn.Module, predictor: str, example: torch.Tensor) -> None:
        self._module, self._example, self._names = _Split(module, predictor), example, first_names(module)
        self._made: dict[tuple[bool, int | None], Exported | None] = {}

    def __call__(self, train: bool, batch: int = _BATCH) -> Exported:
        """The graph for batches of this size."""
        if (train, None) not in self._made:
            try:
                self._made[train, None] = self._export(train, None)
            except Exception:  # torch.export raises many kinds; what is wrong for one size, too, is raised below
                self._made[train, None] = None
        general = self._made[train, None]
        if general is not None and general.holds_for(batch):
            return general
        if (train, batch) not in self._made:
            try:
                self._made[train, batch] = self._export(train, batch)
            except Exception as error:
                mode = "training" if train else "evaluation"
                said = f"{type(error).__name__}: {error}".strip().splitlines()[0]
                raise FedgenError(f"torch.export cannot follow the module in {mode} mode: {said}") from error
        made = self._made[train, batch]
        assert made is not None
        return made

    def _export(self, train: bool, batch: int | None) -> Exported:
        x = self._example.expand(batch or _BATCH, *self._example.shape).clone()
        self._module.train(train)
        with _quiet(), _no_fast_path():
            shapes = None if batch else ({0: Dim.DYNAMIC},)
            program = torch.export.export(self._module, (x,), dynamic_shapes=shapes)
            table = torch.export.default_decompositions()
            for operation in list(table):
                if str(operation) in OPERATIONS:
                    del table[operation]
            program = program.run_decompositions(table)
        return _read(program, batch, self._names)


class _Split(nn.Module):
    """A module that also gives what its predictor receives."""

    def __init__(self, module: nn.Module, predictor: str) -> None:
        super().__init__()
        self.module, self._predictor = module, predictor

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """z and the logits."""
        received: list[torch.Tensor] = []

        def keep(_: nn.Module, arguments: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
            received.append(arguments[0])
            return (arguments[0].clone(),)  # which the predictor may change in place

        hook = self.module.get_submodule(self._predictor).register_forward_pre_hook(keep)
        try:
            logits = self.module(x)
        finally:
            hook.remove()
        return received[0], logits


def first_names(module: nn.Module) -> dict[str, str]:
    """name -> the first name of the same parameter or buffer, which may have several."""
    every = [*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False)]
    first = {id(tensor): name for name, tensor in reversed(every)}
    return {name: first[id(tensor)] for name, tensor in every}


def array_of(tensor: torch.Tensor) -> np.ndarray:
    """A tensor as NumPy's array, of which it knows no bfloat16."""
    tensor = tensor.detach().cpu()
    return (tensor.float() if tensor.dtype is torch.bfloat16 else tensor).numpy().copy()


def _read(program: Any, batch: int | None, first: Mapping[str, str]) -> Exported:
    """What is needed of an exported program."""
    signature, graph = program.graph_signature, program.graph
    tensors: dict[str, str] = {}
    constants: dict[str, np.ndarray] = {}
    x = ""
    for spec in signature.input_specs:
        if spec.kind is InputKind.USER_INPUT:
            x = spec.arg.name
            continue
        name = spec.target.removeprefix("module.")
        tensors[spec.arg.name] = first.get(name, name)
        if name not in first:
            constants[name] = array_of(program.constants[spec.target])
    updates, outputs = {}, []
    for spec in signature.output_specs:
        if spec.kind is OutputKind.BUFFER_MUTATION:
            updates[first[spec.target.removeprefix("module.")]] = spec.arg.name
        elif spec.kind is OutputKind.USER_OUTPUT:
            outputs.append(spec.arg.name)
    z, logits = outputs
    sizes: tuple[str, ...] = ()
    least, most = (batch, batch) if batch else (1, None)
    if batch is None:
        (placeholder,) = (node for node in graph.nodes if node.name == x)
        symbol = placeholder.meta["val"].shape[0]
        if not isinstance(symbol, torch.SymInt):
            raise ValueError("the batch size became a constant")
        sizes = tuple(node.name for node in graph.nodes if _is(node, symbol))
        for bounded, bounds in program.range_constraints.items():
            if str(bounded) == str(symbol):
                least = int(bounds.lower)
                most = int(bounds.upper) if bounds.upper.is_finite else None
    return Exported(graph, x, z, logits, tensors, constants, updates, sizes, least, most)


def _is(node: torch.fx.Node, symbol: torch.SymInt) -> bool:
    return isinstance(node.meta.get("val"), torch.SymInt) and str(node.meta["val"]) == str(symbol)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without the warnings of PyTorch's own parts about each other."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@contextlib.contextmanager
def _no_fast_path() -> Iterator[None]:
    """Attention by its ordinary operations in evaluation mode, too."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)
