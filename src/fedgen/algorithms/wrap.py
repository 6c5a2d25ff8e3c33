"""Wrap an algorithm: add state, messages and loss terms to it, and leave its own unchanged.

A state or message of both together is `With(base, own)`. Only what is given is added: without a `client_init`, say, the
client's state is the base's alone.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax

from fedgen.core.contract import (
    Algorithm,
    Array,
    Batch,
    Federation,
    Local,
    Loss,
    Metrics,
    Needs,
    Pass,
    Round,
    Step,
    Tree,
)
from fedgen.core.streams import stream
from fedgen.errors import FedgenError

_NO_NEEDS = Needs()


class _Nameless:
    """The key of `own` in the names of arrays, which is empty: `.generator`, not `.own.generator`."""

    def __str__(self) -> str:
        return ""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Nameless)

    def __hash__(self) -> int:
        return 0


@jax.tree_util.register_pytree_with_keys_class
@dataclass(frozen=True)
class With:
    """The wrapped algorithm's part and the wrapping one's."""

    base: Any
    own: Any

    def tree_flatten_with_keys(self) -> tuple[tuple[tuple[Any, Any], tuple[Any, Any]], None]:
        """Its two parts."""
        return ((jax.tree_util.GetAttrKey("base"), self.base), (_Nameless(), self.own)), None

    @classmethod
    def tree_unflatten(cls, _: None, parts: tuple[Any, Any]) -> "With":
        """From its two parts."""
        return cls(*parts)


def innermost(state: Any) -> Any:
    """The state of the algorithm that all the others wrap."""
    return innermost(state.base) if isinstance(state, With) else state


def with_innermost(state: Any, value: Any) -> Any:
    """The same state with another innermost one."""
    return With(with_innermost(state.base, value), state.own) if isinstance(state, With) else value


def with_predictor(state: Any, change: Callable[[Tree], Tree]) -> Any:
    """The same state whose innermost model has another predictor."""
    parts = innermost(state)
    predictor = change(parts.params.predictor)
    return with_innermost(state, parts._replace(params=parts.params._replace(predictor=predictor)))


def need_predictor(federation: Federation, why: str) -> None:
    """Refuse to leave the predictor with the users, where the server works with it."""
    if federation.share == "extractor":
        raise FedgenError(f"{why}; leave out --share extractor")


def wrap(
    base: Algorithm,
    *,
    server_init: Callable[[Array], Tree] | None = None,
    client_init: Callable[[Array], Tree] | None = None,
    broadcast: Callable[[Tree, Array], Tree] | None = None,
    local_start: Callable[[Local], Tree] | None = None,
    local_loss: Callable[[Loss, Tree, Batch, Local, Step], Loss] | None = None,
    local_gradient: Callable[[Tree, Tree, Local, Step], Tree] | None = None,
    local_finish: Callable[[Tree, Tree, Local], tuple[Tree, Tree]] | None = None,
    server_update: Callable[[With, Tree, Tree, Round], tuple[With, Metrics]] | None = None,
    add_noise: Callable[[Tree, Array], Tree] | None = None,
    check_upload: Callable[[Tree], dict[str, Array]] | None = None,
    ahead: Callable[[Batch, Local, Step], Tree] | None = None,
    before: Pass | None = None,
    after: Pass | None = None,
    needs: Needs = _NO_NEEDS,
    **changes: Any,
) -> Algorithm:
    """Add state, messages and loss terms to an algorithm.

    Own functions get `local` with `received` and `client` as `With` (where there is an own part), and with their own
    `before`, `after` and `step.ahead`.

    Args:
        base: The algorithm that is added to.
        server_init: key -> the own state of the server.
        client_init: key -> the own state of a user.
        broadcast: own state of the server, round -> what is sent beside the base's message.
        local_start: local -> the own memo.
        local_loss: the base's loss with the own memo in place of the base's, params, batch, local, step -> that loss,
            changed.
        local_gradient: gradient after the base's change, params, local, step -> gradient.
        local_finish: params, the own memo (the base's where there is no own one), local -> own upload, own state.
        server_update: the state before as `With`, the base's state after its own update, uploads as `With`, round ->
            the whole state after, metrics. Without it the own part stays as it is.
        add_noise: own upload, key -> the own upload with noise.
        check_upload: own upload -> what no honest user sends, and whether it did.
        ahead: batch, local, step -> what `local_loss` finds in `step.ahead`.
        before: params, both memos as `With` (or the base's), batch, local -> sums over all of a user's data.
        after: The same after local training.
        needs: What it asks for beside the base's needs.
        **changes: Other fields of the base, replaced as they are.

    Returns:
        The algorithm of both together.
    """
    kept_at_server, kept_at_client, memo_added = (
        server_init is not None,
        client_init is not None,
        local_start is not None,
    )
    on_the_wire = broadcast is not None or local_finish is not None

    def base_of(value: Any, paired: bool) -> Any:
        return value.base if paired else value

    def paired(there: Any, own: Any) -> bool:
        return there is not None and own is not None

    def own_of(value: Any, there: Any, own: Any) -> Any:
        if own is None or value is None:  # not computed at all, or not yet
            return None
        return value.own if there is not None else value

    def inner(local: Local) -> Local:
        return local._replace(
            received=base_of(local.received, on_the_wire),
            client=base_of(local.client, kept_at_client),
            before=base_of(local.before, paired(base.before, before) and local.before is not None),
            after=base_of(local.after, paired(base.after, after) and local.after is not None),
        )

    def outer(local: Local) -> Local:
        return local._replace(
            before=own_of(local.before, base.before, before), after=own_of(local.after, base.after, after)
        )

    def inner_step(step: Step) -> Step:
        return step._replace(ahead=base_of(step.ahead, paired(base.ahead, ahead)))

    def outer_step(step: Step) -> Step:
        return step._replace(ahead=own_of(step.ahead, base.ahead, ahead))

    def start(local: Local) -> tuple[Tree, Tree]:
        params, memo = base.local_start(inner(local))
        return params, With(memo, local_start(outer(local))) if local_start is not None else memo

    def loss_of(params: Tree, memo: Tree, batch: Batch, local: Local, step: Step) -> Loss:
        loss = base.local_loss(params, base_of(memo, memo_added), batch, inner(local), inner_step(step))
        kept, own = loss.memo, memo.own if memo_added else None
        if local_loss is not None:
            loss = local_loss(loss._replace(memo=own), params, batch, outer(local), outer_step(step))
            own = loss.memo
        return loss._replace(memo=With(kept, own) if memo_added else kept)

    def gradient(value: Tree, params: Tree, local: Local, step: Step) -> Tree:
        if base.local_gradient is not None:
            value = base.local_gradient(value, params, inner(local), inner_step(step))
        return value if local_gradient is None else local_gradient(value, params, outer(local), outer_step(step))

    def finish(params: Tree, memo: Tree, local: Local) -> tuple[Tree, Tree]:
        upload, client = base.local_finish(params, base_of(memo, memo_added), inner(local))
        more, own = None, local.client.own if kept_at_client else None
        if local_finish is not None:
            more, own = local_finish(params, memo.own if memo_added else memo, outer(local))
        return With(upload, more) if on_the_wire else upload, With(client, own) if kept_at_client else client

    def update(server: Tree, uploads: Tree, round: Round) -> tuple[Tree, Metrics]:
        new, metrics = base.server_update(base_of(server, kept_at_server), base_of(uploads, on_the_wire), round)
        if server_update is None:
            return With(new, server.own) if kept_at_server else new, metrics
        whole, more = server_update(server, new, uploads, round)
        return whole, {**metrics, **more}

    def check(sent: Tree) -> dict[str, Array]:
        found = base.check_upload(base_of(sent, on_the_wire)) if base.check_upload else {}
        return {**found, **check_upload(sent.own)} if check_upload is not None else found

    def noisy(sent: Tree, key: Array) -> Tree:
        theirs = base_of(sent, on_the_wire)
        if base.add_noise is not None:
            theirs, key = base.add_noise(theirs, key), stream(key, "of the wrapper")  # never the same draws twice
        if not on_the_wire:
            return theirs
        return With(theirs, add_noise(sent.own, key) if add_noise is not None else sent.own)

    def both_ahead(batch: Batch, local: Local, step: Step) -> Tree:
        mine = ahead(batch, outer(local), step) if ahead is not None else None
        theirs = base.ahead(batch, inner(local), step) if base.ahead is not None else None
        return With(theirs, mine) if paired(base.ahead, ahead) else mine if base.ahead is None else theirs

    def both_pass(theirs: Pass | None, mine: Pass | None) -> Pass | None:
        def add_up(params: Tree, memo: Tree, batch: Batch, local: Local) -> Tree:
            of_base = theirs(params, base_of(memo, memo_added), batch, inner(local)) if theirs is not None else None
            if mine is None:
                return of_base
            of_own = mine(params, memo, batch, outer(local))
            return of_own if theirs is None else With(of_base, of_own)

        return None if theirs is None and mine is None else add_up

    def send(server: Tree, round: Array) -> Tree:
        sent = base.broadcast(base_of(server, kept_at_server), round)
        if not on_the_wire:
            return sent
        return With(sent, broadcast(server.own if kept_at_server else server, round) if broadcast is not None else None)

    def calibrate(server: Tree, shown: Tree, round: Round) -> Tree:
        assert base.calibrate is not None
        if not kept_at_server:
            return base.calibrate(server, shown, round)
        return With(base.calibrate(server.base, shown.base, round), shown.own)

    predict_global, predict_local = base.predict_global, base.predict_local
    lifted: dict[str, Any] = {
        "server_init": lambda key: (
            With(base.server_init(key), server_init(key)) if server_init else base.server_init(key)
        ),
        "client_init": lambda key: (
            With(base.client_init(key), client_init(key)) if client_init else base.client_init(key)
        ),
        "broadcast": send,
        "local_start": start,
        "local_loss": loss_of,
        "local_gradient": gradient if base.local_gradient or local_gradient else None,
        "local_finish": finish,
        "server_update": update,
        "add_noise": noisy if base.add_noise or add_noise else None,
        "check_upload": check if base.check_upload or check_upload else None,
        "ahead": both_ahead if base.ahead or ahead else None,
        "before": both_pass(base.before, before),
        "after": both_pass(base.after, after),
        "calibrate": calibrate if base.calibrate else None,
        "needs": Needs(*(a or b for a, b in zip(base.needs, needs, strict=True))),
        "predict_global": predict_global and (lambda server, x: predict_global(base_of(server, kept_at_server), x)),
        "predict_local": predict_local
        and (
            lambda received, client, x: predict_local(
                base_of(received, on_the_wire), base_of(client, kept_at_client), x
            )
        ),
    }
    return base._replace(**{**lifted, **changes})
