"""The fields of a request that SuperLink does not check itself, or writes to its log as they come."""

from typing import Any

from fedgen.federate.gate.messages import HASH, MessageQueue
from fedgen.federate.gate.rules import GET_FAB, GET_RUN, PULL_MESSAGE, RequestRefusedError


def check_fields(target: str, request: Any, queue: MessageQueue) -> None:
    """Refuse a request with what no SuperNode asks, and clear what none says.

    After 403 a SuperNode gives up the message that it fetches and asks for the next one: so does an honest one that
    fetches a message while the gate is started again.
    """
    request.DiscardUnknownFields()
    if target == PULL_MESSAGE:
        request.ClearField("message_ids")  # only apps ask for certain ones
    if target in (GET_RUN, GET_FAB) and not queue.has_run(request.run_id):
        raise RequestRefusedError(403, "a run of which this site has no message", queue.site)
    if target == GET_FAB and not HASH.fullmatch(request.hash_str):
        raise RequestRefusedError(403, "an app whose name is not a hash", queue.site)
