"""Which requests may pass to SuperLink: the known paths only, signed with a site's registered key, and not too large.

Nothing is normalised: a target must equal one of a few strings, so that no other spelling of a path gets through. A
repeated header, or a body whose length is not given in plain digits, is refused too.
"""

import base64
import binascii
import datetime
from collections.abc import Mapping
from typing import NamedTuple

import h11
from cryptography.exceptions import UnsupportedAlgorithm

from fedgen.federate.flower import (
    FLEET,
    FLEET_HTTP_PUBLIC_KEY_HEADER,
    FLEET_HTTP_SIGNATURE_HEADER,
    SYSTEM_TIME_TOLERANCE,
    TIMESTAMP_HEADER,
    TIMESTAMP_TOLERANCE,
    bytes_to_public_key,
    now,
    verify_signature,
)

PUSH_MESSAGE, PUSH_OBJECT = FLEET + "push-messages", FLEET + "push-object"
PULL_MESSAGE, PULL_OBJECT = FLEET + "pull-messages", FLEET + "pull-object"
CONFIRM, HEARTBEAT = FLEET + "confirm-message-received", FLEET + "send-node-heartbeat"
ACTIVATE, DEACTIVATE = FLEET + "activate-node", FLEET + "deactivate-node"
GET_RUN, GET_FAB = FLEET + "get-run", FLEET + "get-fab"
# What a SuperNode with a registered key requests; registering itself is only for federations without keys.
TARGETS = frozenset(
    {
        PUSH_MESSAGE,
        PUSH_OBJECT,
        PULL_MESSAGE,
        PULL_OBJECT,
        CONFIRM,
        HEARTBEAT,
        ACTIVATE,
        DEACTIVATE,
        GET_RUN,
        GET_FAB,
    }
)
STRIKE_STATUSES = TOO_LARGE, NOT_IN_ORDER = 413, 422  # statuses that the server counts as strikes against the site
NOT_AUTHENTICATED = 412  # as SuperLink answers an unknown key; after 401 a SuperNode exits without a message
# What says who sends a request; SuperLink needs no other header of Flower's.
_PASSED = FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER, TIMESTAMP_HEADER
_BODY = 1 << 20  # most bytes of a request without arrays
_OBJECT = 6 << 20  # most bytes of one with arrays: Flower sends chunks of 5 MiB, one in each request


class RequestRefusedError(Exception):
    """A refused request: status, reason and, where known, the site and the id of the message it was replying to."""

    def __init__(self, status: int, reason: str, site: str = "", question: str = "") -> None:
        super().__init__(reason)
        self.status, self.reason, self.site, self.question = status, reason, site, question


class Head(NamedTuple):
    """The checked head of a request that may pass."""

    target: str
    site: str
    headers: dict[str, str]  # those that are forwarded


class Rules:
    """Checks the heads of requests, given the sites' public keys by name."""

    def __init__(self, keys: Mapping[str, bytes]) -> None:
        self._names = {key: name for name, key in keys.items()}
        self._parsed = {key: bytes_to_public_key(key) for key in keys.values()}  # which takes as long as a signature

    def examine(self, request: h11.Request) -> Head:
        """Check a request before any of its body is read."""
        target = request.target.decode("ascii", "replace")
        if request.method != b"POST" or target not in TARGETS:
            raise RequestRefusedError(403, f"{request.method.decode('ascii', 'replace')[:10]} {target[:80]}")
        headers = {name.decode("ascii"): value.decode("latin-1") for name, value in request.headers}
        if len(headers) < len(list(request.headers)):
            raise RequestRefusedError(400, "a header is repeated")
        if request.http_version != b"1.1" or "transfer-encoding" in headers:
            raise RequestRefusedError(400, "not HTTP/1.1 with a body of known length")
        length = headers.get("content-length", "")
        if not (length.isascii() and length.isdigit() and len(length) <= 12):
            raise RequestRefusedError(411, "the length of the body is not given")
        site = self._site(headers)
        limit = _OBJECT if target == PUSH_OBJECT else _BODY
        if int(length) > limit:
            raise RequestRefusedError(TOO_LARGE, f"a request of {int(length):,} bytes; {limit:,} are allowed", site)
        return Head(target, site, {name: headers[name] for name in _PASSED})

    def _site(self, headers: Mapping[str, str]) -> str:
        """The site whose key signed the request's timestamp; SuperLink will check it once more."""
        try:
            key = base64.b64decode(headers[FLEET_HTTP_PUBLIC_KEY_HEADER], validate=True)
            signature = base64.b64decode(headers[FLEET_HTTP_SIGNATURE_HEADER], validate=True)
            signed_at = headers[TIMESTAMP_HEADER]
            if key not in self._names:
                raise RequestRefusedError(
                    NOT_AUTHENTICATED, "the key is not registered: it is not in the server's folder keys"
                )
            age = (now() - datetime.datetime.fromisoformat(signed_at)).total_seconds()
            in_time = -SYSTEM_TIME_TOLERANCE < age < TIMESTAMP_TOLERANCE + SYSTEM_TIME_TOLERANCE
            if in_time and verify_signature(self._parsed[key], signed_at.encode(), signature):
                return self._names[key]
        except (KeyError, ValueError, TypeError, binascii.Error, UnsupportedAlgorithm):
            raise RequestRefusedError(NOT_AUTHENTICATED, "the request is not signed by a site") from None
        raise RequestRefusedError(
            NOT_AUTHENTICATED, f"the signature is not that of {self._names[key]}, or the site's clock is wrong"
        )
