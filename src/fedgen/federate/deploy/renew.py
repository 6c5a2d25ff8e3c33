"""Another certificate for the server, before its own ends."""

import datetime
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from fedgen.errors import FedgenError
from fedgen.federate.deploy.keys import Authority, renewed_certificate
from fedgen.federate.deploy.turns import changing
from fedgen.files import write_whole


class Renewed(NamedTuple):
    """What was done: until when the certificates are valid, and where the old one is kept."""

    before: datetime.datetime
    until: datetime.datetime
    kept: Path


def server_certificate(given: Path) -> Path:
    """The certificate that is given as a file, by the federation's folder, or by the server's within it."""
    if not given.exists():
        raise FedgenError(
            f"there is no {given}; give the folder of a federation, the server's within it, or the server's certificate"
        )
    for path in (given, given / "server.crt", given / "server" / "server.crt"):
        if path.is_file():
            return path
    raise FedgenError(
        f"{given} holds no certificate of a server (no server.crt and no server/server.crt); give the folder that"
        " `fedgen federate init` wrote, or the certificate itself"
    )


def renew_certificate(path: Path, authority: Path) -> Renewed:
    """Replace a server's certificate by another for the same key and names, signed by the authority in this folder."""
    if not (authority / "ca.key").exists():
        raise FedgenError(
            f"{authority / 'ca.key'} is not here. Run this where the authority's key is kept (--authority names its"
            f" folder) and give it {path}, alone or in its folder: nothing else is needed there. The new one is then"
            " copied back to the server"
        )
    with changing(path.parent):
        return _renew(path, authority)


def _renew(path: Path, authority: Path) -> Renewed:
    old, root = _certificate(path), _certificate(authority / "ca.crt")
    now = datetime.datetime.now(datetime.UTC)
    if root.not_valid_after_utc - now < datetime.timedelta(days=1):
        raise FedgenError(
            f"the authority's own certificate ended on {root.not_valid_after_utc:%Y-%m-%d}: set up a new federation"
        )
    try:
        key = load_pem_private_key((authority / "ca.key").read_bytes(), None)
        old.verify_directly_issued_by(root)
    except (OSError, ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise FedgenError(f"the authority in {authority} cannot be used: {error}") from error
    except InvalidSignature:
        raise FedgenError(f"{path} was not issued by the authority in {authority}; give the right one") from None
    if key.public_key() != root.public_key():
        raise FedgenError(f"{authority / 'ca.key'} is not the key of {authority / 'ca.crt'}")
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise FedgenError(f"{authority / 'ca.key'} is not an elliptic-curve key, as `fedgen federate init` makes them")
    try:
        content = renewed_certificate(Authority(key, root), old)
    except x509.ExtensionNotFound:
        raise FedgenError(
            f"{path} names no hosts, by which sites know the server; one that can be renewed has them as subject"
            " alternative names, as `fedgen federate init` makes it"
        ) from None
    except (ValueError, UnsupportedAlgorithm) as error:
        raise FedgenError(f"{path} cannot be renewed: its key or its extensions cannot be read: {error}") from error
    kept = path.with_name(f"server.crt.until-{old.not_valid_after_utc:%Y-%m-%d-%H%M%S}")
    write_whole(kept, path.read_bytes())
    write_whole(path, content)
    return Renewed(old.not_valid_after_utc, x509.load_pem_x509_certificate(content).not_valid_after_utc, kept)


def _certificate(path: Path) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except (OSError, ValueError) as error:
        raise FedgenError(f"{path} cannot be read: {error}") from error
