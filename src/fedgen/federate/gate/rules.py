"""Which requests may pass from a site to SuperLink: its own, signed with a registered key, and not too large.

Nothing is interpreted: a target is one of a few strings or it is refused, so that there is no second way to spell a
path. A header that comes twice, or a body whose length is not said in plain digits, is refused too.
"""

import base64
import binascii
import datetime
from collections.abc import Mapping
from typing import NamedTuple

import h11
from cryptography.exceptions import UnsupportedAlgorithm
from flwr.common.constant import SYSTEM_TIME_TOLERANCE, TIMESTAMP_HEADER, TIMESTAMP_TOLERANCE
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER
from flwr.supercore.date import now
from flwr.supercore.primitives.asymmetric import bytes_to_public_key, verify_signature

PUSH_MESSAGE, PUSH_OBJECT = "/v1/fleet/push-messages", "/v1/fleet/push-object"
PULL_MESSAGE, PULL_OBJECT = "/v1/fleet/pull-messages", "/v1/fleet/pull-object"
CONFIRM, HEARTBEAT = "/v1/fleet/confirm-message-received", "/v1/fleet/send-node-heartbeat"
# What a SuperNode with a registered key asks for; registering itself is for federations without keys.
TARGETS = frozenset(
    {
        PUSH_MESSAGE,
        PUSH_OBJECT,
        PULL_MESSAGE,
        PULL_OBJECT,
        CONFIRM,
        HEARTBEAT,
        "/v1/fleet/activate-node",
        "/v1/fleet/deactivate-node",
        "/v1/fleet/get-run",
        "/v1/fleet/get-fab",
    }
)
STRIKES = TOO_LARGE, NOT_IN_ORDER = 413, 422  # statuses that the server holds against a site
_WHO = 412  # what SuperLink answers a key that it does not know; at 401 a SuperNode ends without a word
_BODY = 1 << 20  # bytes of a request that carries no arrays
_OBJECT = 6 << 20  # Flower sends arrays in pieces of 5 MiB, each in a request of its own


class TurnedAwayError(Exception):
    """A request that does not pass: the status to answer, why, and where known the site and what it was answering."""

    def __init__(self, status: int, reason: str, site: str = "", question: str = "") -> None:
        super().__init__(reason)
        self.status, self.reason, self.site, self.question = status, reason, site, question


class Head(NamedTuple):
    """A request that may pass, before its body was read."""

    target: str
    site: str
    headers: dict[str, str]  # those that SuperLink gets


class Rules:
    """Whose requests pass, and which."""

    def __init__(self, keys: Mapping[str, bytes]) -> None:
        self._names = {key: name for name, key in keys.items()}

    def examine(self, request: h11.Request) -> Head:
        """Refuse what must not pass, before any of its body is read."""
        target = request.target.decode("ascii", "replace")
        if request.method != b"POST" or target not in TARGETS:
            raise TurnedAwayError(403, f"{request.method.decode('ascii', 'replace')[:10]} {target[:80]}")
        headers = {name.decode("ascii"): value.decode("latin-1") for name, value in request.headers}
        if len(headers) < len(list(request.headers)):
            raise TurnedAwayError(400, "a header comes twice")
        if request.http_version != b"1.1" or "transfer-encoding" in headers:
            raise TurnedAwayError(400, "not HTTP/1.1 with a body of known length")
        length = headers.get("content-length", "")
        if not (length.isascii() and length.isdigit() and len(length) <= 12):
            raise TurnedAwayError(411, "the length of the body is not said")
        site = self._site(headers)
        limit = _OBJECT if target == PUSH_OBJECT else _BODY
        if int(length) > limit:
            raise TurnedAwayError(TOO_LARGE, f"a request of {int(length):,} bytes; {limit:,} are allowed", site)
        return Head(target, site, {n: v for n, v in headers.items() if n.startswith("flwr-")})

    def _site(self, headers: Mapping[str, str]) -> str:
        """The site whose key signed the request's time, as SuperLink will check once more."""
        try:
            key = base64.b64decode(headers[FLEET_HTTP_PUBLIC_KEY_HEADER], validate=True)
            signature = base64.b64decode(headers[FLEET_HTTP_SIGNATURE_HEADER], validate=True)
            signed_at = headers[TIMESTAMP_HEADER]
            if key not in self._names:
                raise TurnedAwayError(_WHO, "the key is not registered: it is not in the server's folder keys")
            age = (now() - datetime.datetime.fromisoformat(signed_at)).total_seconds()
            in_time = -SYSTEM_TIME_TOLERANCE < age < TIMESTAMP_TOLERANCE + SYSTEM_TIME_TOLERANCE
            if in_time and verify_signature(bytes_to_public_key(key), signed_at.encode(), signature):
                return self._names[key]
        except (KeyError, ValueError, TypeError, binascii.Error, UnsupportedAlgorithm):
            raise TurnedAwayError(_WHO, "the request is not signed by a site") from None
        raise TurnedAwayError(_WHO, f"the signature is not that of {self._names[key]}, or the site's clock is wrong")
