"""What a site says of its answer when it announces it, besides the objects: nothing that no SuperNode says.

SuperLink stores it as it comes. A time to live that is NaN it stores as none at all, and then fails whenever the server
asks for that answer, alone or with others, and never deletes it.
"""

import time
from typing import Any

from fedgen.federate.flower import MESSAGE_TTL_TOLERANCE, PushMessagesRequest

_DAY, _YEAR = 86_400.0, 366 * 86_400.0  # seconds; more than a clock is set by while its site works on an answer


class InvalidAnnouncementError(Exception):
    """An announcement that is not a SuperNode's; its text is the reason."""


def check_announcement(request: PushMessagesRequest, question: Any) -> None:
    """Check the message of an answer, without its objects, against the metadata of the message that it answers."""
    message = request.messages_list[0]
    about = message.metadata
    for name in ("run_id", "group_id", "message_type"):  # Flower takes all three from the question
        if getattr(about, name) != getattr(question, name):
            raise InvalidAnnouncementError(f"an answer with another {name} than the message that it answers")
    # Each comparison is one that NaN fails.
    if not question.created_at - _DAY <= about.created_at <= time.time() + _DAY:
        raise InvalidAnnouncementError("an answer that was not made between its message and now")
    # Flower lets an answer live as long as its message, also one that comes too late: then for less than no time.
    left = question.created_at + question.ttl - about.created_at
    if not abs(about.ttl - left) <= MESSAGE_TTL_TOLERANCE:
        raise InvalidAnnouncementError("an answer that does not live as long as the message that it answers")
    if message.HasField("content") == message.HasField("error") or message.content.items:
        raise InvalidAnnouncementError("an answer that has other content than its objects")
    seconds = request.clientapp_runtime_list
    if len(seconds) > 1 or not all(abs(one) <= _YEAR for one in seconds):
        raise InvalidAnnouncementError("an answer that took no possible time")
