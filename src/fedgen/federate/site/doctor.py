"""What is in order at a site and what is not, with what to do about it; nothing is changed, and no data is sent."""

import contextlib
import datetime
import os
import socket
import ssl
import stat
from base64 import b64encode
from collections.abc import Callable, Generator, Iterator
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, Literal, NamedTuple

import httpx
import numpy as np
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_ssh_private_key,
    load_ssh_public_key,
)

from fedgen.errors import FedgenError
from fedgen.federate.deploy.processes import try_port
from fedgen.federate.deploy.record import Deployment, installed, read_deployment
from fedgen.federate.deploy.scripts import DEFAULT_PORT, PORT_VARIABLE
from fedgen.federate.deploy.site_folder import EXPECTED
from fedgen.federate.flower import (
    FLEET_HTTP_PUBLIC_KEY_HEADER,
    FLEET_HTTP_SIGNATURE_HEADER,
    INVALID_INTERVAL,
    SYSTEM_TIME_TOLERANCE,
    TIMESTAMP_HEADER,
    TIMESTAMP_TOLERANCE,
    ActivateNodeRequest,
    sign_message,
)
from fedgen.federate.plan import Plan
from fedgen.federate.schema import SiteSettings, read_settings
from fedgen.federate.settings import AppSettings
from fedgen.federate.site.data import SiteData, load_site_data
from fedgen.federate.site.proxy import proxy_of, trouble_through_proxy, where_set
from fedgen.models.check_numbers import check_numbers

_TIMEOUT = 15.0  # seconds
_AHEAD, _BEHIND = SYSTEM_TIME_TOLERANCE, TIMESTAMP_TOLERANCE + SYSTEM_TIME_TOLERANCE
_SOON = 30  # days before its end from which a certificate is a warning
_ACTIVATION = "/v1/fleet/activate-node"  # asked with an interval that SuperLink refuses, once it has found the key
_REFUSED = "refused by the gate: "
_UNKNOWN = 412  # SuperLink's answer to the activation of a key that it does not know


class Finding(NamedTuple):
    """The result of one check."""

    state: Literal["ok", "warning", "wrong", "skipped"]
    what: str
    text: str  # what was found
    advice: str = ""  # what to do about it


Check = Callable[[], Iterator[Finding]]


def examine(folder: Path) -> Iterator[Finding]:
    """The findings about a site's folder, one after the other; they end early where nothing else can be checked."""
    sent = "give the folder that the server's operator sent, unchanged"
    try:
        settings = read_settings(folder / "site.toml", SiteSettings)
    except FedgenError as error:
        yield Finding("wrong", "folder", str(error), sent)
        return
    deployment = None
    try:
        deployment = read_deployment(folder / EXPECTED)
        yield Finding("ok", "folder", f"site {settings.name}, number {settings.number}, of {deployment.address}")
        yield from _versions(deployment)
    except FedgenError as error:
        advice = f"{sent}; the user that runs start.sh must be able to read all of it (chown, or chmod -R u+rwX)"
        yield Finding("wrong", "folder", str(error), advice)
    key = None
    for found in _own_key(folder):
        if isinstance(found, Finding):
            yield found
        else:
            key = found
    yield _own_port()
    if deployment is None:
        yield Finding("skipped", "server", "it is not known where the server is")
    else:
        yield from _connection(folder, deployment, key)
    for found in _data_and_model(folder, settings):
        unknown = deployment is None and found.what == "settings"  # which are beside it: this was said above
        yield found._replace(state="skipped", advice="") if unknown else found


def _versions(deployment: Deployment) -> Iterator[Finding]:
    here = installed()
    for name in ("fedgen", "flwr", "python"):
        there = getattr(deployment, name)
        if not there:
            continue
        same = here[name] == there if name != "python" else here[name].split(".")[:2] == there.split(".")[:2]
        if same:
            yield Finding("ok", f"version of {name}", here[name])
        elif name == "python":
            yield Finding("warning", "version of python", f"{here[name]}; the server has {there}", "usually no trouble")
        else:
            advice = f"install {name} {there} here, in the environment of start.sh"
            yield Finding("wrong", f"version of {name}", f"{here[name]}; the server has {there}", advice)


def _own_key(folder: Path) -> Iterator[Any]:
    path = folder / "site.key"
    again = "get it from the server's operator, or make one and send its public half for `fedgen federate rotate-key`"
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
        key = load_ssh_private_key(path.read_bytes(), None)
    except (OSError, ValueError, TypeError, UnsupportedAlgorithm) as error:
        yield Finding("wrong", "key", f"{path} cannot be read: {error}", again)
        return
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        yield Finding("wrong", "key", f"{path} is not an elliptic-curve key, as Flower needs", again)
        return
    if mode & 0o077:
        yield Finding("wrong", "key", f"others on this machine can read {path} (mode {mode:o})", f"chmod 600 {path}")
    else:
        yield Finding("ok", "key", f"{path.name} can be read by its owner only")
    public = path.with_suffix(".pub")
    if public.exists():
        try:
            same = load_ssh_public_key(public.read_bytes()) == key.public_key()
        except (OSError, ValueError, UnsupportedAlgorithm):
            same = False
        if not same:
            advice = "`ssh-keygen -y -f site.key > site.pub` writes the right one; it is only there to be sent"
            yield Finding("warning", "key", "site.pub is not the public key of site.key", advice)
    yield key


def _own_port() -> Finding:
    """Whether a SuperNode can listen where its own child processes reach it."""
    said, what = os.environ.get(PORT_VARIABLE) or str(DEFAULT_PORT), "own port"
    if not (said.isdecimal() and 0 < int(said) < 65536):
        return Finding("wrong", what, f"{PORT_VARIABLE} is '{said}', no port", "set it to a number from 1024 to 65535")
    try:
        try_port(int(said))
    except OSError as error:
        advice = (
            "it may be taken by this site's own SuperNode, which runs already; else set"
            f" {PORT_VARIABLE} to the number of a free port where start.sh is started (under systemd: in the file"
            " `environment`)"
        )
        return Finding("warning", what, f"127.0.0.1:{said} cannot be used: {error.strerror or error}", advice)
    return Finding("ok", what, f"127.0.0.1:{said} is free")


def _connection(folder: Path, deployment: Deployment, key: ec.EllipticCurvePrivateKey | None) -> Iterator[Finding]:
    host, port = deployment.host, deployment.port
    if (yield from _only_through_proxy(folder, deployment)):
        return
    try:
        addresses = sorted({str(found[4][0]) for found in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)})
    except OSError as error:
        yield Finding("wrong", "name", f"{host} has no address: {error.strerror or error}", "check DNS, or /etc/hosts")
        return
    yield Finding("ok", "name", f"{host} is {', '.join(addresses)}")
    try:
        socket.create_connection((host, port), timeout=_TIMEOUT).close()
    except OSError as error:
        advice = f"outgoing connections to port {port} must be allowed here, and superlink.sh must run at the server"
        yield Finding("wrong", "port", f"{deployment.address} does not answer: {error.strerror or error}", advice)
        return
    yield Finding("ok", "port", f"{deployment.address} answers")
    try:
        trusted = ssl.create_default_context(cafile=folder / "ca.crt")
    except (OSError, ssl.SSLError) as error:
        yield Finding("wrong", "certificate", f"ca.crt cannot be read: {error}", "get it from the server's operator")
        return
    certificate = _certificate(host, port, trusted)
    yield certificate
    if certificate.state != "wrong":
        yield from _gate(deployment, trusted, key)


def _only_through_proxy(folder: Path, deployment: Deployment) -> Generator[Finding, None, bool]:
    """Whether there is a way to the server for start.sh and none for this command, which asks no proxy."""
    if not (proxy := proxy_of(deployment.host, deployment.port)):
        return False
    trusted = None
    with contextlib.suppress(OSError):  # of which there is another finding
        trusted = ssl.create_default_context(cafile=folder / "ca.crt")
    said = f"start.sh would reach {deployment.host} through {where_set(proxy)}"
    trouble, direct = trouble_through_proxy(deployment.address, trusted), _direct_trouble(deployment)
    if not trouble:
        yield Finding("ok", "proxy", f"{said}, which leads there")
        if direct:
            yield Finding("skipped", "key at the server", "it is asked directly, and there is no direct way to it")
        return bool(direct)
    advice = f"add {deployment.host} to no_proxy for start.sh, which then connects directly"
    if direct:
        advice = (
            f"the proxy must let connections to {deployment.address} through, unchanged; if direct ones work, {advice}"
        )
    text = f"{said}: {trouble}; directly it {f'does not answer either: {direct}' if direct else 'answers'}"
    yield Finding("warning", "proxy", text, advice)
    return False


def _direct_trouble(deployment: Deployment) -> str:
    try:
        socket.create_connection((deployment.host, deployment.port), timeout=_TIMEOUT).close()
    except OSError as error:
        return error.strerror or str(error)
    return ""


def _certificate(host: str, port: int, trusted: ssl.SSLContext) -> Finding:
    try:
        with (
            socket.create_connection((host, port), timeout=_TIMEOUT) as plain,
            trusted.wrap_socket(plain, server_hostname=host) as connection,
        ):
            ends = str((connection.getpeercert() or {}).get("notAfter"))
    except ssl.SSLCertVerificationError as error:
        advice = (
            "the server's operator runs `fedgen federate renew-certificate`; check this machine's date, too"
            if "expired" in error.verify_message
            else "make sure that ca.crt is this federation's, and the address its server's: somebody may be in between"
        )
        return Finding("wrong", "certificate", f"the server's is not accepted: {error.verify_message}", advice)
    except OSError as error:
        return Finding("wrong", "certificate", f"no TLS connection: {error}", "is another program on that port?")
    until = datetime.datetime.fromtimestamp(ssl.cert_time_to_seconds(ends), datetime.UTC)
    days = (until - datetime.datetime.now(datetime.UTC)).days
    if days < _SOON:
        advice = "the server's operator runs `fedgen federate renew-certificate`"
        return Finding("warning", "certificate", f"issued by ca.crt; it ends in {days} days ({until:%Y-%m-%d})", advice)
    return Finding("ok", "certificate", f"issued by ca.crt, valid until {until:%Y-%m-%d}")


def _gate(deployment: Deployment, trusted: ssl.SSLContext, key: ec.EllipticCurvePrivateKey | None) -> Iterator[Finding]:
    """The clock, and whether gate and SuperLink know the key: by their answers to a request that asks for nothing."""
    url = f"https://{deployment.address}{_ACTIVATION}"
    with httpx.Client(verify=trusted, trust_env=False, timeout=_TIMEOUT) as client:
        try:
            before = datetime.datetime.now(datetime.UTC)
            answer = client.post(url, content=b"")
            after = datetime.datetime.now(datetime.UTC)
            server = parsedate_to_datetime(answer.headers["date"])
            # It was said at some time between these two, in whole seconds: only what is certain counts.
            least, most = (before - server).total_seconds() - 1, (after - server).total_seconds()
            yield _clock(max(least, 0.0) + min(most, 0.0))
            if key is None:
                yield Finding("skipped", "key at the server", "there is no key to ask with")
                return
            # Signed with the server's time, so that a wrong clock here is one finding and not two.
            nothing = ActivateNodeRequest(public_key=public_pem(key), heartbeat_interval=0.0).SerializeToString()
            answer = client.post(url, content=nothing, headers=signed(key, server))
        except KeyError:
            yield Finding("warning", "clock", "the server does not say its time", "is it an older version?")
            return
        except httpx.HTTPError as error:
            yield Finding("wrong", "gate", f"no answer: {error}", "is superlink.sh running at the server?")
            return
    reason = answer.text.partition(_REFUSED)[2].rstrip('"} ')
    if reason:
        advice = (
            "if the key was replaced, put the new pair in place of site.key and site.pub; else send site.pub to the"
            " server's operator, who runs `fedgen federate rotate-key ... --public-key`"
        )
        yield Finding("wrong", "key at the server", reason, advice)
    elif answer.status_code in (502, 503):
        text = "the gate knows it, but SuperLink does not answer"
        yield Finding("warning", "key at the server", text, "wait for the server")
    else:
        yield _at_superlink(answer)


def _at_superlink(answer: httpx.Response) -> Finding:
    """Whether SuperLink knows a key that the gate knows, by its answer to an activation without an interval."""
    if answer.status_code == _UNKNOWN:
        advice = (
            "the server's operator runs server/register.sh while SuperLink runs; if that says that the key was once"
            " removed, send the public half of a new pair for `fedgen federate rotate-key ... --public-key`"
        )
        return Finding("wrong", "key at the server", "the gate knows it, but SuperLink does not", advice)
    try:
        code = answer.json()["code"]
    except (ValueError, LookupError, TypeError):
        code = None
    if code == INVALID_INTERVAL:
        return Finding("ok", "key at the server", "gate and SuperLink know it, and let this site in")
    text = "the gate knows it; whether SuperLink does is seen when start.sh connects"
    return Finding(
        "warning", "key at the server", text, "if it does not, the server's operator runs server/register.sh"
    )


def signed(key: ec.EllipticCurvePrivateKey, when: datetime.datetime) -> dict[str, str]:
    """The headers by which SuperLink and the gate recognise a site."""
    at = when.isoformat()
    return {
        FLEET_HTTP_PUBLIC_KEY_HEADER: b64encode(public_pem(key)).decode(),
        TIMESTAMP_HEADER: at,
        FLEET_HTTP_SIGNATURE_HEADER: b64encode(sign_message(key, at.encode())).decode(),
    }


def public_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    """The public key, as Flower holds it."""
    return key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def _clock(ahead: float) -> Finding:
    """`ahead`: seconds by which this clock is ahead of the server's, at least."""
    said = f"{abs(ahead):.0f} seconds {'ahead of' if ahead > 0 else 'behind'} the server's"
    if not -_BEHIND < ahead < _AHEAD:
        limits = f"at most {_AHEAD} seconds ahead and {_BEHIND} behind are allowed"
        return Finding("wrong", "clock", f"{said}; {limits}", "set it, and use NTP (`timedatectl set-ntp true`)")
    if abs(ahead) > _AHEAD / 2:
        return Finding("warning", "clock", said, "use NTP (`timedatectl set-ntp true`), also at the server")
    return Finding("ok", "clock", "as the server's")


def _data_and_model(folder: Path, settings: SiteSettings) -> Iterator[Finding]:
    try:
        shared = AppSettings(folder / EXPECTED, folder)
    except FedgenError as error:
        yield Finding("wrong", "settings", str(error), "if it is a plug-in, install it here; else ask the operator")
        return
    try:
        data = load_site_data(settings, shared.task, folder)
    except FedgenError as error:
        advice = "point `data` in site.toml at the right file, or change it to what federation/task.toml says"
        yield Finding("wrong", "data", str(error), advice)
        data = None
    except Exception as error:  # whatever a reader of a foreign file raises
        yield Finding("wrong", "data", f"{type(error).__name__}: {error}", "check `data` in site.toml")
        data = None
    if data is not None:
        yield from _about(data, shared)
    try:
        task = shared.task_with(settings.model, settings.model_options, sample=settings.sample, proxy_samples=1)
        Plan(shared.config, task)
        if data is not None:
            check_numbers(task, data.x, data.x_test)
    except Exception as error:  # the site's own model may raise anything
        text = str(error) if isinstance(error, FedgenError) else f"{type(error).__name__}: {error}"
        yield Finding("wrong", "model", text, "check `model` and `sample` in site.toml, and what they need")
        return
    name = settings.model or shared.config.model
    yield Finding("ok", "model", f"{name} takes such samples, for {', '.join(shared.config.algorithms)}")


def _about(data: SiteData, shared: AppSettings) -> Iterator[Finding]:
    shape = "x".join(map(str, data.x.shape[1:]))
    tests = f", {len(data.y_test):,} for tests" if len(data.y_test) else ""
    yield Finding("ok", "data", f"{len(data.y):,} samples of {shape} ({data.x.dtype}){tests}")
    if not len(data.y_test):
        yield Finding("warning", "data", "no test samples (x_test, y_test)", "without them the site reports no score")
    counts = np.bincount(data.y, minlength=shared.task.classes)
    held = [f"{name} {count:,}" for name, count in zip(shared.task.names, counts, strict=True) if count]
    rest = f" and {len(held) - 12} more" if len(held) > 12 else ""
    text = f"{len(held)} of {shared.task.classes} classes: {', '.join(held[:12])}{rest}"
    yield Finding("ok" if len(held) > 1 else "warning", "labels", text, "" if len(held) > 1 else "only one class?")
