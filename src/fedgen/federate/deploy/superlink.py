"""SuperLink's control interface, on the loopback interface: which keys are registered, under which names."""

import ssl
from pathlib import Path
from typing import Any

import httpx

from fedgen.errors import FedgenError
from fedgen.federate.deploy.connection import read_connection
from fedgen.federate.deploy.keys import readable_keys
from fedgen.federate.deploy.turns import changing
from fedgen.federate.flower import (
    CONTROL_LIST_NODES,
    CONTROL_REGISTER_NODE,
    CONTROL_UNREGISTER_NODE,
    PROTOBUF_MEDIA_TYPE,
    ListNodesRequest,
    ListNodesResponse,
    NodeInfo,
    NodeStatus,
    RegisterNodeRequest,
    RegisterNodeResponse,
    UnregisterNodeRequest,
    UnregisterNodeResponse,
)
from fedgen.federate.schema import ServerSettings, read_settings

_TIMEOUT = 30.0  # seconds


class NotRunningError(FedgenError):
    """SuperLink does not answer."""


class SuperLink:
    """What the server's operator may ask of SuperLink; `folder` is the server's."""

    def __init__(self, folder: Path) -> None:
        about = read_connection(folder)
        self._address = str(about.get("address", ""))
        if not self._address:
            raise FedgenError(f"{folder / 'flower/config.toml'} does not say where SuperLink listens")
        self._tls = not about.get("insecure")
        try:
            self._trusted: Any = ssl.create_default_context(cafile=folder / "ca.crt") if self._tls else False
        except (OSError, ssl.SSLError) as error:
            raise FedgenError(f"{folder / 'ca.crt'} cannot be read: {error}") from error

    def nodes(self) -> list[NodeInfo]:
        """The nodes that are registered now."""
        found = ListNodesResponse.FromString(self._ask(CONTROL_LIST_NODES, ListNodesRequest()))
        return [node for node in found.nodes_info if node.status != NodeStatus.UNREGISTERED]

    def register(self, name: str, public_key: bytes) -> None:
        """Register a key under the name of a site."""
        answer = self._ask(CONTROL_REGISTER_NODE, RegisterNodeRequest(public_key=public_key, name=name))
        RegisterNodeResponse.FromString(answer)

    def unregister(self, node_id: int) -> None:
        """Disconnect a node, whose key is never taken again."""
        UnregisterNodeResponse.FromString(self._ask(CONTROL_UNREGISTER_NODE, UnregisterNodeRequest(node_id=node_id)))

    def _ask(self, path: str, request: Any) -> bytes:
        url = f"http{'s' if self._tls else ''}://{self._address}{path}"
        form = {"content-type": PROTOBUF_MEDIA_TYPE, "accept": PROTOBUF_MEDIA_TYPE}
        try:
            with httpx.Client(verify=self._trusted, trust_env=False, timeout=_TIMEOUT) as client:
                answer = client.post(url, content=request.SerializeToString(), headers=form)
        except httpx.HTTPError as error:
            raise NotRunningError(f"SuperLink does not answer at {self._address}: {error}") from error
        if answer.status_code != 200:
            raise FedgenError(f"SuperLink refused {path}: {answer.status_code} {answer.text[:200]}")
        return answer.content


def register_keys(folder: Path) -> list[str]:
    """Let SuperLink know exactly the keys of the server's folder; returns what was changed, a sentence for each.

    Keys of sites that were removed, and keys that were replaced, are unregistered. One that cannot be registered does
    not hinder the others: the error comes when all else is done.
    """
    with changing(folder):
        return _register_keys(folder)


def _register_keys(folder: Path) -> list[str]:
    settings = read_settings(folder / "server.toml", ServerSettings)
    keys, damaged = readable_keys(folder / "keys")
    _check_complete(folder / "keys", settings, {*keys, *damaged})
    superlink = SuperLink(folder)
    nodes, done, wrong = superlink.nodes(), [], list(damaged.values())
    for node in nodes:
        if node.name in settings.sites and node.name not in damaged and keys.get(node.name) != node.public_key:
            superlink.unregister(node.node_id)
            done.append(f"SuperLink no longer knows the old key of {node.name}")
    known = {node.public_key for node in nodes}
    for name, key in keys.items():
        if key not in known:
            try:
                superlink.register(name, key)
            except NotRunningError:
                raise
            except FedgenError as error:
                wrong.append(
                    f"the key of {name} was not registered ({error}); a key that was once removed is never taken again:"
                    f" `fedgen federate rotate-key` gives {name} a new one"
                )
            else:
                done.append(f"SuperLink knows the key of {name}")
    if wrong:
        raise FedgenError("; ".join([*wrong, *(f"done: {line}" for line in done)]))
    return done


def _check_complete(folder: Path, settings: ServerSettings, there: set[str]) -> None:
    """Refuse to go on without a site's key: SuperLink would forget it, and never take it again."""
    belong = [name for name in settings.sites if name not in settings.removed and settings.authenticated]
    missing = [str(folder / f"{name}.pub") for name in belong if name not in there]
    if missing:
        raise FedgenError(
            f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing; nothing was changed at SuperLink,"
            " which would never take such a key again: put it back from a backup (the site has the same as site.pub),"
            " or give an `add-site`, `remove-site` or `rotate-key` that was interrupted again"
        )
