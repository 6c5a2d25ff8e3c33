"""Flower's SuperLink as a process that does less for each request; superlink.sh runs it.

A message of two arrays is some forty requests. For each object that a site fetches or sends, SuperLink looks whether
the run goes on, which marks app processes without a heartbeat as failed, and adds the object's bytes to the run's: two
or three writing transactions, one after the other for all sites. Here it does both once a second. And each request
passes nine layers, of which most concern the operator's interface only, and each of them takes longer than what the
request is for. Here a request passes those that do something with it.
"""

import os
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any

from fedgen.federate.flower import CONTROL, FLEET, SuperLinkParts, superlink_command

_EVERY = 1.0  # seconds
# Flower's layers that pass on every other request as it is; each of them looks at the path itself, too.
_ONLY_FOR = {
    "ControlSensitiveResponseMiddleware": CONTROL,
    "ControlAuthenticationMiddleware": CONTROL,
    "ControlLicenseMiddleware": CONTROL,
    "ControlEventLogMiddleware": CONTROL,
    "NodeAuthMiddleware": FLEET,
}
_TRACING, _TRACED = "RuntimeTracingMiddleware", "FLWR_TRACING_ENABLED"
_FLEET_LOG, _FLEET_LOG_WRITER = "FleetEventLogMiddleware", "fleet_event_log_plugin"


def replaced(parts: SuperLinkParts) -> SuperLinkParts:
    """The parts of SuperLink as they are used here."""
    return SuperLinkParts(
        remembered(parts.ends), summed(parts.count_bytes), lambda: [narrowed(layer) for layer in parts.layers()]
    )


def narrowed(layer: Any) -> Any:
    """A layer of SuperLink, which a request goes past where the layer would only pass it on."""
    name = layer.cls.__name__
    if name == _TRACING and os.environ.get(_TRACED) != "1":
        return type(layer)(_Past, lambda scope: True, layer.cls, *layer.args, **layer.kwargs)
    if name == _FLEET_LOG:
        return type(layer)(_Past, _is_not_logged, layer.cls, *layer.args, **layer.kwargs)
    if name in _ONLY_FOR:
        start = _ONLY_FOR[name]
        return type(layer)(
            _Past, lambda scope: not scope["path"].startswith(start), layer.cls, *layer.args, **layer.kwargs
        )
    return layer


def _is_not_logged(scope: Any) -> bool:
    return getattr(scope["app"].state, _FLEET_LOG_WRITER, None) is None


class _Past:
    """An ASGI application before another one: some requests go past a layer between the two."""

    def __init__(self, app: Any, past: Callable[[Any], bool], layer: Any, *arguments: Any, **more: Any) -> None:
        self._app, self._past = app, past
        self._through = layer(app, *arguments, **more)

    def __call__(self, scope: Any, receive: Any, send: Any) -> Awaitable[None]:
        past = scope["type"] == "http" and self._past(scope)
        result: Awaitable[None] = (self._app if past else self._through)(scope, receive, send)
        return result


def remembered(look: Callable[..., Any], every: float = _EVERY) -> Callable[..., Any]:
    """The function of a run's number, remembered for a while where it was None: there is nothing against the run."""
    fine_until: dict[tuple[int, tuple[str, ...]], float] = {}

    def looked(run_id: int, against: list[str], state: Any) -> Any:
        key, now = (run_id, tuple(against)), time.monotonic()
        if now < fine_until.get(key, 0.0):
            return None
        found = look(run_id, against, state)
        if found is None:
            fine_until[key] = now + every
        else:
            fine_until.pop(key, None)
        return found

    return looked


def summed(store: Callable[..., None], every: float = _EVERY) -> Callable[..., None]:
    """The method that adds bytes to a run's, called with their sum now and then."""
    lock = threading.Lock()
    sums: dict[int, list[int]] = {}
    due: dict[int, float] = {}

    def added(state: Any, run_id: int, *, bytes_sent: int, bytes_recv: int) -> None:
        now = time.monotonic()
        with lock:
            total = sums.setdefault(run_id, [0, 0])
            total[0] += bytes_sent
            total[1] += bytes_recv
            if now < due.get(run_id, 0.0):
                return
            due[run_id] = now + every
            del sums[run_id]
        store(state, run_id, bytes_sent=total[0], bytes_recv=total[1])

    return added


if __name__ == "__main__":
    sys.argv[0] = "flower-superlink"  # Flower looks at its name
    superlink_command(replaced)()
