"""An `nn.Module` as graphs of ATen operations, by `torch.export`: one in training and one in evaluation mode."""

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import sympy
import torch
from torch import nn
from torch.export import Dim
from torch.export.graph_signature import InputKind, OutputKind
from torch.func import functional_call
from torch.fx import Graph, Interpreter
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.utils.checkpoint import CheckpointFunction

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
    size: Any = None  # SymPy's symbol for that number, and
    guards: tuple[Any, ...] = ()  # what the module found true of it

    def holds_for(self, batch: Any) -> bool:
        """Whether a batch may have this size.

        torch.export says 2 or more also where 1 is as good, which is for the `Exporter` to find out.
        """
        if not isinstance(batch, int):  # a symbol of jax.export, for any
            return self.least <= 2 and self.most is None and not self.guards
        if not self.least <= (batch if self.guards else max(batch, 2)) or (self.most or batch) < batch:
            return False
        here = {self.size: sympy.Integer(batch)}
        return all(guard.xreplace(here) is sympy.true for guard in self.guards)

    @cached_property
    def predictor(self) -> Part:
        """From z to the logits."""
        return part(self.graph, [self.logits], given=[self.z, *self.batch_sizes])

    @cached_property
    def draws(self) -> bool:
        """Whether it draws at random."""
        found = (OPERATIONS.get(str(node.target)) for node in self.graph.nodes)
        return any(operation is not None and operation.random for operation in found)

    def extractor(self, buffers: Sequence[str]) -> Part:
        """From x to z, and to these buffers after the batch."""
        return part(self.graph, [self.z, *(self.updates[name] for name in buffers)])


class Exporter:
    """Exports a module when it is first needed: for batches of any size, or where that fails for each size."""

    def __init__(self, module: nn.Module, predictor: str, example: torch.Tensor) -> None:
        self._module, self._example, self._names = _Split(module, predictor), example, first_names(module)
        self._made: dict[tuple[bool, int | None], Exported | None] = {}
        self._for_one: dict[bool, bool] = {}

    def __call__(self, train: bool, batch: Any = _BATCH) -> Exported:
        """The graph for batches of this size, which may be a symbol of jax.export."""
        if (train, None) not in self._made:
            self._made[train, None] = self._for_any_size(train)
        general = self._made[train, None]
        several = isinstance(batch, int) and batch > 1
        if general is not None and general.holds_for(batch) and (several or self._is_for_one(train, general)):
            return general
        if not isinstance(batch, int):
            raise FedgenError("torch.export cannot follow the module for batches of any size")
        if (train, batch) not in self._made:
            self._made[train, batch] = self._for_one_size(train, batch)
        made = self._made[train, batch]
        assert made is not None
        return made

    def _is_for_one(self, train: bool, general: Exported) -> bool:
        """Whether a graph is the module's for one sample, too: torch.export takes `x.shape[0] > 1` to be true."""
        if train and general.draws:
            return self._is_for_one(False, self(False))
        if train not in self._for_one:
            self._for_one[train] = self._gives_the_same(train, general)
        return self._for_one[train]

    def _gives_the_same(self, train: bool, general: Exported) -> bool:
        """Whether the graph gives what the module gives for one sample, by PyTorch."""
        draw = torch.Generator().manual_seed(0)

        def moved(tensor: torch.Tensor) -> torch.Tensor:  # since a layer may do nothing at the start
            more = torch.rand(tensor.shape, generator=draw) / 10 if tensor.is_floating_point() else 0
            return (tensor.detach() + more).to(tensor.dtype)

        module, x = self._module.train(train), moved(self._example[None])
        own = [*module.module.named_parameters(), *module.module.named_buffers()]
        tensors = {name: moved(tensor) for name, tensor in own}
        with torch.no_grad(), quiet(), no_fast_path():
            try:
                ours = logits_by_torch(general, tensors, x)
                _, theirs = functional_call(module, {f"module.{name}": a for name, a in tensors.items()}, (x,))
            except Exception:  # PyTorch takes no single sample, as BatchNorm in training
                return True
        return torch.allclose(ours, theirs, rtol=1e-4, atol=1e-5, equal_nan=True)

    def _for_any_size(self, train: bool) -> Exported | None:
        try:
            program = self._program(train, _BATCH, ({0: Dim.DYNAMIC},))
        except Exception:  # torch.export raises many kinds; what has another cause is raised for one size as well
            return None
        (x,) = (node for node in program.graph.nodes if node.name == program.graph_signature.user_inputs[0])
        size = x.meta["val"].shape[0]
        if not isinstance(size, torch.SymInt):
            return None
        least, most = 1, None
        for symbol, bounds in program.range_constraints.items():
            if str(symbol) == str(size):
                least, most = int(bounds.lower), int(bounds.upper) if bounds.upper.is_Integer else None
        sizes = tuple(node.name for node in program.graph.nodes if _is(node, size))
        # Bounds alone would not say that the module asks whether the size is even, or in how many parts it is cut.
        guards = tuple(guard.expr for guard in size.node.shape_env.guards)
        return replace(_read(program, self._names, sizes, least, most), size=size.node.expr, guards=guards)

    def _for_one_size(self, train: bool, batch: int) -> Exported:
        try:
            program = self._program(train, batch, None)
        except FedgenError:
            raise
        except Exception as error:
            mode = "training" if train else "evaluation"
            said = f"{type(error).__name__}: {error}".strip().splitlines()[0]
            if isinstance(error, GuardOnDataDependentSymNode):
                said = "its Python code asks for the numbers in a tensor, as `if x.sum() > 0` does; use torch.where"
            raise FedgenError(f"torch.export cannot follow the module in {mode} mode: {said}") from error
        return _read(program, self._names, (), batch, batch)

    def _program(self, train: bool, batch: int, shapes: Any) -> Any:
        x = self._example.expand(batch, *self._example.shape).clone()
        self._module.train(train)
        with quiet(), _no_graphs(), no_fast_path(), _nothing_recomputed():
            program = torch.export.export(self._module, (x,), dynamic_shapes=shapes)
            _stop_gradients(program.graph_module)
            # What has a counterpart stays as it is; the rest is decomposed until it has one.
            table = torch.export.default_decompositions()
            for operation in [operation for operation in table if str(operation) in OPERATIONS]:
                del table[operation]
            return program.run_decompositions(table)


def _stop_gradients(module: torch.fx.GraphModule) -> None:
    """Detach what regions under no_grad receive; decomposition makes ordinary operations of them."""
    for node in list(module.graph.nodes):
        if str(node.target) != "wrap_with_set_grad_enabled" or node.args[0]:
            continue
        region = module.get_submodule(node.args[1].target)
        (end,) = region.graph.find_nodes(op="output")
        for given in region.graph.find_nodes(op="placeholder"):
            if isinstance(given.meta.get("val"), torch.Tensor):
                with region.graph.inserting_before(given.next):
                    detached = region.graph.call_function(torch.ops.aten.detach.default, (given,))
                detached.meta = dict(given.meta)
                # What only passes through the region keeps its gradient.
                given.replace_all_uses_with(detached, lambda user, kept=(detached, end): user not in kept)
        region.recompile()


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
        return received[0], checked_logits(logits, x.shape[0], " in training mode" if self.training else "")


def checked_logits(logits: object, batch: int, mode: str = "") -> torch.Tensor:
    """What a module gives for a batch, if it is logits."""
    if isinstance(logits, torch.Tensor) and logits.ndim == 2 and logits.shape[0] == batch:
        return logits
    shown = tuple(logits.shape) if isinstance(logits, torch.Tensor) else f"a {type(logits).__name__}"
    raise FedgenError(f"the module gives {shown} for a batch of {batch}{mode}; it must give logits [batch, class]")


def logits_by_torch(exported: Exported, tensors: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    """What the graph gives, operation by operation, by PyTorch."""
    inputs = []
    for node in exported.graph.nodes:
        if node.op == "placeholder":
            name = exported.tensors.get(node.name)
            constant = name is not None and name in exported.constants
            inputs.append(x if name is None else torch.tensor(exported.constants[name]) if constant else tensors[name])
    results: tuple[torch.Tensor, ...] = _Differentiable(nn.Module(), graph=exported.graph).run(*inputs)
    return results[-1]


class _Differentiable(Interpreter):
    """Computes a graph by operations that have derivatives; `aten.copy`, of writing in place, has none."""

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        """Compute one operation."""
        if target is torch.ops.aten.copy.default:
            to, source = args[:2]
            return source.to(to.dtype).expand_as(to)
        return super().call_function(target, args, kwargs)


def first_names(module: nn.Module) -> dict[str, str]:
    """name -> the first name of the same parameter or buffer, which may have several."""
    every = [*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False)]
    first = {id(tensor): name for name, tensor in reversed(every)}
    return {name: first[id(tensor)] for name, tensor in every}


def array_of(tensor: torch.Tensor) -> np.ndarray:
    """A tensor as NumPy's array, of which it knows no bfloat16."""
    tensor = tensor.detach().cpu()
    return (tensor.float() if tensor.dtype is torch.bfloat16 else tensor).numpy().copy()


def _read(
    program: Any, first: Mapping[str, str], batch_sizes: tuple[str, ...], least: int, most: int | None
) -> Exported:
    """What is needed of an exported program."""
    signature = program.graph_signature
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
    return Exported(program.graph, x, z, logits, tensors, constants, updates, batch_sizes, least, most)


def _is(node: torch.fx.Node, symbol: torch.SymInt) -> bool:
    return isinstance(node.meta.get("val"), torch.SymInt) and str(node.meta["val"]) == str(symbol)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Without the warnings of PyTorch's own parts about each other."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@contextlib.contextmanager
def _no_graphs() -> Iterator[None]:
    """Without the graphs that torch.export prints where it fails."""
    log = logging.getLogger("torch.fx.experimental.symbolic_shapes")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        log.setLevel(level)


@contextlib.contextmanager
def _nothing_recomputed() -> Iterator[None]:
    """Checkpoints by autograd.Function (use_reentrant=True) as plain calls: torch.export follows their forward pass.

    That is under no_grad, so nothing would have a gradient.
    """
    before = CheckpointFunction.__dict__.get("apply")
    CheckpointFunction.apply = staticmethod(lambda function, _, *arguments: function(*arguments))
    try:
        yield
    finally:
        if before is None:  # it is inherited
            del CheckpointFunction.apply
        else:
            CheckpointFunction.apply = before


@contextlib.contextmanager
def no_fast_path() -> Iterator[None]:
    """Attention by its ordinary operations in evaluation mode, too."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)
