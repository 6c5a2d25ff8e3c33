"""Certificates and keys: a certificate authority for one federation, the server's certificate, key pairs of the sites.

Flower needs a server certificate with its hosts as subject alternative names, and elliptic-curve SSH keys for the
sites. Files with private keys are created readable by their owner only.
"""

import contextlib
import datetime
import ipaddress
import os
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import CertificatePublicKeyTypes
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_ssh_public_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedgen.errors import FedgenError

MAKE_ONE = "`ssh-keygen -t ecdsa -b 384 -N '' -f new.key` at the site makes new.key and new.key.pub"
_INSTEAD = "; put that site's public key (its site.pub) in its place, or move the file away if it is no site's"
_AUTHORITY_DAYS, _SERVER_DAYS = 3650, 825  # the latter is the most that some systems accept


class Authority(NamedTuple):
    """The certificate authority of one federation."""

    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate

    def private_bytes(self) -> bytes:
        """The private key, as PEM; it is only needed to sign server certificates."""
        return _pem(self.key)

    def certificate_bytes(self) -> bytes:
        """The certificate that server and sites trust, as PEM."""
        return self.certificate.public_bytes(Encoding.PEM)


def make_authority() -> Authority:
    """A new authority."""
    key = ec.generate_private_key(ec.SECP384R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "FedGen federation authority")])
    usage = x509.KeyUsage(
        digital_signature=False, content_commitment=False, key_encipherment=False, data_encipherment=False,
        key_agreement=False, key_cert_sign=True, crl_sign=True, encipher_only=False, decipher_only=False,
    )  # fmt: skip
    certificate = (
        _certificate(name, name, key.public_key(), _AUTHORITY_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA384())
    )
    return Authority(key, certificate)


def make_server_certificate(authority: Authority, hosts: list[str]) -> tuple[bytes, bytes]:
    """The server's private key and its certificate for these host names and addresses."""
    key = ec.generate_private_key(ec.SECP384R1())
    # Who connects looks at the alternative names only; a common name has 64 characters at most.
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "FedGen federation server")])
    names = x509.SubjectAlternativeName([_alternative(host) for host in hosts])
    return _pem(key), _server_certificate(authority, name, names, key.public_key())


def renewed_certificate(authority: Authority, old: x509.Certificate) -> bytes:
    """Another certificate for the same key, of whatever kind, and the same host names, which it must have."""
    names = old.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return _server_certificate(authority, old.subject, names, old.public_key())


def _server_certificate(
    authority: Authority, name: x509.Name, hosts: x509.SubjectAlternativeName, key: CertificatePublicKeyTypes
) -> bytes:
    left = authority.certificate.not_valid_after_utc - datetime.datetime.now(datetime.UTC)
    certificate = (
        _certificate(name, authority.certificate.subject, key, min(_SERVER_DAYS, left.days))
        .add_extension(hosts, critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key()), critical=False)
        .sign(authority.key, hashes.SHA384())
    )
    return certificate.public_bytes(Encoding.PEM)


def make_site_keys() -> tuple[bytes, bytes]:
    """A site's private and public key, in OpenSSH's format."""
    key = ec.generate_private_key(ec.SECP384R1())
    private = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    return private, key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH) + b"\n"


def public_keys(folder: Path) -> dict[str, bytes]:
    """The sites' public keys in a folder, by the sites' names, as Flower holds them."""
    found, damaged = readable_keys(folder)
    for reason in damaged.values():
        raise FedgenError(reason)
    return found


def readable_keys(folder: Path) -> tuple[dict[str, bytes], dict[str, str]]:
    """The public keys as `public_keys` gives them, and why the others cannot be read, by the names of their files."""
    found, damaged = {}, {}
    for path in sorted(folder.glob("*.pub")):
        try:
            found[path.stem] = as_pem(path.read_bytes(), path)
        except OSError as error:
            damaged[path.stem] = f"{path} cannot be read: {error}{_INSTEAD}"
        except FedgenError as error:
            damaged[path.stem] = f"{error}{_INSTEAD}"
    return found, damaged


def as_pem(public: bytes, path: Path) -> bytes:
    """A public key in OpenSSH's format, as Flower holds it; `path` is where it is from."""
    try:
        key = load_ssh_public_key(public)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise FedgenError(f"{path} cannot be read: {error}") from error
    return key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def checked_public_key(path: Path) -> bytes:
    """A site's own public key, which must be one that Flower takes."""
    try:
        public = path.read_bytes()
        if b"PRIVATE KEY" in public:
            beside = (other for other in (Path(f"{path}.pub"), path.with_suffix(".pub")) if other.exists())
            named = next((f" ({other})" for other in beside), "")
            raise FedgenError(f"{path} is a private key, which stays at the site; give the public one{named}")
        key = load_ssh_public_key(public)
    except FedgenError:
        raise
    except FileNotFoundError:
        raise FedgenError(f"there is no file {path}; {MAKE_ONE}") from None
    except OSError as error:
        raise FedgenError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, UnsupportedAlgorithm) as error:
        raise FedgenError(f"{path} is not a public key in OpenSSH's format: {error}; {MAKE_ONE}") from error
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise FedgenError(f"{path} is not an elliptic-curve key, as Flower needs; {MAKE_ONE}")
    return key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH) + b"\n"


def key_files(paths: Iterable[Path]) -> tuple[tuple[str, int, int, int], ...]:
    """What changes when one of these files is written, replaced or removed."""
    found = []
    for path in paths:
        with contextlib.suppress(OSError):
            about = path.stat()
            found.append((path.name, about.st_ino, about.st_mtime_ns, about.st_size))
    return tuple(found)


def write_private(path: Path, content: bytes) -> None:
    """Write a new file that only its owner can read."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
    except OSError as error:
        raise FedgenError(f"{path} cannot be written: {error.strerror}") from error


def _certificate(
    name: x509.Name, issuer: x509.Name, key: CertificatePublicKeyTypes, days: int
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))  # clocks differ a little
        .not_valid_after(now + datetime.timedelta(days=days))
    )


def _alternative(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
