"""What an algorithm predicts with after a run: the server's state, and of the users' what their predictions need."""

from typing import Any, NamedTuple

import jax
import numpy as np
from jax.extend.core import Jaxpr, Var

from fedgen.core.contract import Algorithm, Task, Tree
from fedgen.core.wires import shapes


class Trained(NamedTuple):
    """The trained states of one algorithm and seed."""

    server: Tree
    users: Tree  # [user, ...] with None for what no prediction needs; None where users have no models of their own
    round: int  # after this many rounds


def needed_of_users(algorithm: Algorithm, task: Task) -> Tree:
    """A user's state with True for each array that its predictions depend on; None where users have no own models.

    Optimisers' moments, control variates and earlier models are then left out: they are for training alone.
    """
    if not algorithm.personal or algorithm.predict_local is None:
        return None
    forms = shapes(algorithm, task)
    x = jax.eval_shape(task.prepare, jax.ShapeDtypeStruct((1, *task.sample.shape), task.sample.dtype))
    jaxpr = jax.make_jaxpr(algorithm.predict_local)(forms.broadcast, forms.client, x).jaxpr
    before = len(jax.tree.leaves(forms.broadcast))
    inputs = jaxpr.invars[before : before + len(jax.tree.leaves(forms.client))]
    used = _used(jaxpr)
    needed = [one in used for one in inputs]
    # Of users that only fine-tune what they receive, nothing is needed.
    return jax.tree.unflatten(jax.tree.structure(forms.client), needed) if any(needed) else None


def only_needed(users: Tree, needed: Tree) -> Tree:
    """The users' states with None in place of what is not needed."""
    return None if needed is None else jax.tree.map(lambda keep, a: a if keep else None, needed, users)


def completed(user: Tree, form: Tree) -> Tree:
    """One user's state with zeros in place of what was left out, which no prediction looks at."""

    def is_absent(a: Any) -> bool:
        return a is None

    forms, structure = jax.tree.flatten(form, is_leaf=is_absent)  # a state may have None itself: what is elsewhere
    kept = jax.tree.leaves(user, is_leaf=is_absent)
    pairs = zip(kept, forms, strict=True)
    filled = [np.zeros(form.shape, form.dtype) if a is None and form is not None else a for a, form in pairs]
    return jax.tree.unflatten(structure, filled)


def _used(jaxpr: Jaxpr) -> set[Any]:
    """The variables that the results depend on; a nested function is taken to use all of its arguments."""
    used = {v for v in jaxpr.outvars if isinstance(v, Var)}
    for equation in reversed(jaxpr.eqns):
        if any(v in used for v in equation.outvars):
            used |= {v for v in equation.invars if isinstance(v, Var)}
    return used
