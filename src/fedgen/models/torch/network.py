"""A module's tensors, sorted by who owns them, and its graphs as functions of JAX arrays."""

import copy
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase

from fedgen.core.contract import Array, Params, Tree
from fedgen.errors import FedgenError
from fedgen.models.torch.export import Exported, Exporter, array_of, first_names
from fedgen.models.torch.gradients import check_gradients
from fedgen.models.torch.graph import Part
from fedgen.models.torch.layout import as_module_takes
from fedgen.models.torch.logits import check_logits
from fedgen.models.torch.python_state import check_python_state


class Network:
    """What a `Model` is made of; `example` is one sample as the module takes it."""

    def __init__(self, module: nn.Module, predictor: str, example: torch.Tensor, channels_last: bool | None) -> None:
        self._sample, self._integer = tuple(example.shape), not example.is_floating_point()
        self._channels_last = channels_last
        _check_momentum(module)
        check_python_state(module, example)
        self._export = Exporter(module, predictor, example)
        self._first = first_names(module)
        self._state = _state_of(module)
        arrays = arrays_of(module)
        learned = [name for name, parameter in module.named_parameters() if parameter.requires_grad]
        # The server averages statistics, so only numbers that have a mean are among them: not BatchNorm's counter.
        updated = self._export(True).updates
        self.statistics = [name for name in updated if np.issubdtype(arrays[name].dtype, np.floating)]
        before, after = self._needed()
        # What neither needs goes with the submodule that it is in.
        own = {name for name in learned if name in after or name.startswith(f"{predictor}.")} - before
        self.extractor = [name for name in learned if name not in own]
        self.predictor = [name for name in learned if name in own]
        variances = {self._first[name] for name in _variances(module)}
        self.never_negative = [name for name in self.statistics if name in variances]
        moving = {*learned, *self.statistics}
        self._fixed = {name: array for name, array in arrays.items() if name not in moving}
        self._check(predictor, before & after & set(learned))
        self.random, width = self._draws(arrays)
        self._check_modes(arrays, width)
        check_gradients(module, self._export(True), self._export(False), example)
        check_logits(module, self._logits, self._export(False), example)

    def extract(
        self, extractor: Tree, statistics: Tree, x: Array, train: bool, key: Array | None = None
    ) -> tuple[Array, Tree]:
        """z, and the statistics after the batch, from samples as they are stored."""
        if self._integer and jnp.issubdtype(x.dtype, jnp.floating):
            raise FedgenError(
                f"the module takes whole numbers, and gets samples of {x.dtype}: uint8 and uint16 are pixels, which are"
                " scaled; store words and categories as int32 (fedgen.from_arrays, .npz): x.astype('int32')"
            )
        x = as_module_takes(x, self._sample, self._channels_last)
        draw = _Keys(key, _IN_TRAINING) if train else _Keys(None, _IN_EVALUATION)
        return self._extract(extractor, statistics, x, train, draw)

    def _extract(self, extractor: Tree, statistics: Tree, x: Array, train: bool, draw: "_Keys") -> tuple[Array, Tree]:
        exported = self._export(train, x.shape[0])
        floating = _type_of(extractor, x)
        part = exported.extractor(self._updated(exported, train))
        values = self._values(exported, part, {**extractor, **statistics}, floating)
        values[exported.x] = x.astype(jnp.int32 if self._integer else floating)
        z, *after = part(values, floating, draw)
        return z, {**statistics, **dict(zip(self._updated(exported, train), after, strict=True))}

    def predict(self, predictor: Tree, z: Array) -> Array:
        """The logits of z [..., latent]."""
        # Of the two modes' predictors, which are the same, PyTorch takes any number of samples in evaluation alone.
        logits = self._predict(predictor, z.reshape(-1, z.shape[-1]), False)
        return logits.reshape(*z.shape[:-1], -1)

    def _predict(self, predictor: Tree, z: Array, train: bool) -> Array:
        floating = _type_of(predictor, z)
        exported = self._export(train, z.shape[0])
        values = self._values(exported, exported.predictor, predictor, floating)
        values |= {exported.z: z.astype(floating), **dict.fromkeys(exported.batch_sizes, z.shape[0])}
        (logits,) = exported.predictor(values, floating, _Keys(None, _IN_PREDICTOR if train else _IN_EVALUATION))
        return logits

    def state_dict(self, params: Params, statistics: Tree) -> dict[str, Any]:
        """The module's own state_dict with what was trained; what does not learn is as it was in the module."""
        moved = {**params.extractor, **params.predictor, **statistics}
        values = {**self._fixed, **{name: np.array(array, np.float32) for name, array in moved.items()}}
        return {
            name: torch.tensor(values[found]) if isinstance(found, str) else copy.deepcopy(found.value)
            for name, found in self._state.items()
        }

    def _logits(self, tensors: Mapping[str, Array], x: Array) -> Array:
        """In evaluation mode, of samples as the module takes them and of its parameters and buffers by name."""

        def of(names: Sequence[str]) -> dict[str, Array]:
            return {name: tensors[name] for name in names}

        draw = _Keys(None, _IN_EVALUATION)
        z, _ = self._extract(of(self.extractor), of(self.statistics), x, False, draw)
        return self._predict(of(self.predictor), z, False)

    def _needed(self) -> tuple[set[str], set[str]]:
        """The parameters and buffers that the extractor needs in either mode, and those that the predictor needs."""
        before, after = set[str](), set[str]()
        for train in (True, False):
            exported = self._export(train)
            extractor = exported.extractor(self._updated(exported, train))
            before |= {exported.tensors[name] for name in extractor.inputs if name in exported.tensors}
            after |= {exported.tensors[name] for name in exported.predictor.inputs if name in exported.tensors}
        return before, after

    def _updated(self, exported: Exported, train: bool) -> list[str]:
        return [name for name in self.statistics if train and name in exported.updates]

    def _values(self, exported: Exported, part: Part, own: Mapping[str, Array], floating: Any) -> dict[str, Any]:
        """A part's inputs but for x; what is fixed has the type that the network computes in."""
        found = {}
        for name in part.inputs:
            tensor = exported.tensors.get(name)
            if tensor is None:  # x
                continue
            if tensor in own:
                found[name] = own[tensor]
            else:
                array = jnp.asarray(exported.constants[tensor] if tensor in exported.constants else self._fixed[tensor])
                found[name] = array.astype(floating) if jnp.issubdtype(array.dtype, jnp.floating) else array
        return found

    def _check(self, predictor: str, shared: set[str]) -> None:
        """Refuse what cannot be split or has no counterpart, before anything is computed.

        `shared` are the parameters that both the extractor and the predictor need.
        """
        training, evaluation = self._export(True), self._export(False)
        before = training.extractor(self._updated(training, True))
        evaluated = evaluation.extractor([])
        parts = before, evaluated, training.predictor, evaluation.predictor
        if missing := {name: place for part in parts for name, place in part.missing().items()}:
            name, where = next(iter(missing.items()))
            place = f"in {where!r}" if where else "in the module itself"
            others = f" (nor have {', '.join(list(missing)[1:])})" if len(missing) > 1 else ""
            raise FedgenError(
                f"PyTorch's operation {name}, {place}, has no counterpart"
                f'{others}; add one, a function of JAX arrays: @fedgen.models.torch.operation("{name}")'
            )
        counters = {training.tensors.get(name) for name in before.inputs} & (
            set(training.updates) - set(self.statistics)
        )
        if counters:
            raise FedgenError(
                f"what the module computes in training depends on its counter '{min(map(str, counters))}', which users'"
                " averages cannot keep; make it a buffer of floating-point numbers"
            )
        self._check_split(predictor, training)
        self._check_split(predictor, evaluation)
        if shared:
            raise FedgenError(
                f"the extractor and the predictor '{predictor}' both use the parameter '{min(shared)}'; name another"
                " predictor"
            )

    def _check_split(self, predictor: str, exported: Exported) -> None:
        after = {exported.tensors.get(name, name) for name in exported.predictor.inputs}
        if exported.x in after:
            raise FedgenError(
                f"after its predictor '{predictor}' the module uses more than what that receives and gives; name"
                " another predictor, through which all of it passes"
            )
        if norms := after & set(self._export(True).updates):
            raise FedgenError(
                f"the predictor '{predictor}' has running statistics ({min(norms)}); name a later submodule"
            )

    def _check_modes(self, arrays: Mapping[str, np.ndarray], width: int) -> None:
        """Refuse a module that makes other logits of z in evaluation mode, since `predict` has no mode."""
        rng = np.random.default_rng(0)
        own = {name: arrays[name] + rng.standard_normal(arrays[name].shape, np.float32) / 10 for name in self.predictor}
        for _ in range(_TRIED):
            z = jnp.asarray(np.stack([rng.normal(size=width), rng.random(width)]), jnp.float32)
            trained, evaluated = (np.asarray(self._predict(own, z, train)) for train in (True, False))
            largest = np.abs(np.nan_to_num(trained)).max()
            if not np.allclose(trained, evaluated, rtol=1e-4, atol=1e-5 * largest, equal_nan=True):
                raise FedgenError(
                    "the module makes other logits of its features in evaluation mode than in training, and a predictor"
                    " must be the same in both; let it give the same logits, and correct them outside the module"
                )

    def _draws(self, arrays: Mapping[str, np.ndarray]) -> tuple[bool, int]:
        """Whether training draws at random, and how long z is.

        Shapes are computed in both modes, so that what fails does so now.
        """

        def forms(names: Sequence[str]) -> dict[str, jax.ShapeDtypeStruct]:
            return {name: jax.ShapeDtypeStruct(arrays[name].shape, jnp.float32) for name in names}

        keys = _Keys(jax.random.key(0), _IN_TRAINING)
        tensors = forms(self.extractor), forms(self.statistics)
        x = jax.ShapeDtypeStruct((2, *self._sample), jnp.int32 if self._integer else jnp.float32)
        for train, draw in ((False, _Keys(None, _IN_EVALUATION)), (True, keys)):
            z, _ = jax.eval_shape(partial(self._extract, train=train, draw=draw), *tensors, x)
        jax.eval_shape(partial(self._predict, train=True), forms(self.predictor), z)
        return keys.drawn > 0, z.shape[-1]


_TRIED = 3  # pairs of random features that the modes are compared with
_IN_TRAINING = "the module draws at random in training and needs a key: extract(..., key=key)"
_IN_EVALUATION = "the module draws at random in evaluation mode, where nothing may be random"
_IN_PREDICTOR = (
    "the predictor draws at random in training (dropout?), and only the extractor may; name a later submodule"
)


class _Keys:
    """A key for each draw, counted."""

    def __init__(self, key: Array | None, without: str) -> None:
        self._key, self._without, self.drawn = key, without, 0

    def __call__(self) -> Array:
        if self._key is None:
            raise FedgenError(self._without)
        self.drawn += 1
        return jax.random.fold_in(self._key, self.drawn - 1)


class _Kept(NamedTuple):
    """What a state_dict has beside parameters and buffers."""

    value: Any


def _state_of(module: nn.Module) -> dict[str, str | _Kept]:
    """For each name of the module's state_dict its parameter or buffer, or what is kept as it is."""
    # Hooks may give a parameter another name; it is the same object.
    own = {id(tensor): name for name, tensor in [*module.named_parameters(), *module.named_buffers()]}
    found = module.state_dict(keep_vars=True)
    return {name: own.get(id(value)) or _Kept(_detached(value)) for name, value in found.items()}


def _detached(value: Any) -> Any:
    return copy.deepcopy(value.detach() if isinstance(value, torch.Tensor) else value)


def _check_momentum(module: nn.Module) -> None:
    """Refuse BatchNorm whose statistics are means over all batches."""
    module.train()
    for name, inner in module.named_modules():
        if isinstance(inner, _BatchNorm) and inner.momentum is None and inner.track_running_stats and inner.training:
            raise FedgenError(
                f"the statistics of {repr(name) if name else 'the module'} depend on a count of all batches"
                " (momentum=None), which users' averages cannot keep; give BatchNorm a momentum:"
                f" {type(inner).__name__}(..., momentum=0.1)"
            )


def arrays_of(module: nn.Module) -> dict[str, np.ndarray]:
    """A module's parameters and buffers, each once."""
    return {name: array_of(tensor) for name, tensor in [*module.named_parameters(), *module.named_buffers()]}


def _variances(module: nn.Module) -> list[str]:
    """The running variances of all kinds of BatchNorm, and of InstanceNorm where that has them."""
    norms = ((name, inner) for name, inner in module.named_modules() if isinstance(inner, _NormBase))
    return [f"{name}.running_var".lstrip(".") for name, inner in norms if inner.running_var is not None]


def _type_of(params: Tree, x: Array) -> Any:
    """The type that a network with these parameters computes in."""
    leaves = jax.tree.leaves(params)
    return leaves[0].dtype if leaves else x.dtype if jnp.issubdtype(x.dtype, jnp.floating) else jnp.float32
