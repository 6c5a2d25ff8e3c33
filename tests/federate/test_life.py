"""The commands for the life of a federation, on the folders that `init` writes."""

import datetime
import errno
import json
import os
import shutil
import socket
import ssl
import stat
import subprocess
import sys
import threading
import time
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
    load_ssh_public_key,
)
from cryptography.x509.oid import NameOID
from flwr.app import Context, RecordDict
from flwr.proto.node_pb2 import NodeInfo

from fedgen.cli import federate_life
from fedgen.cli.main import main
from fedgen.config import resolve
from fedgen.errors import FedgenError
from fedgen.federate import apps, journal
from fedgen.federate.deploy import superlink
from fedgen.federate.deploy.edit import set_values
from fedgen.federate.deploy.folders import Folders
from fedgen.federate.deploy.init import begin
from fedgen.federate.deploy.keys import make_authority, make_site_keys, public_keys
from fedgen.federate.deploy.processes import free_port
from fedgen.federate.deploy.scripts import PORT_VARIABLE
from fedgen.federate.flower import INVALID_INTERVAL, NOT_ACTIVATED
from fedgen.federate.gate.http import Response
from fedgen.federate.gate.rules import ACTIVATE
from fedgen.federate.journal import GATE_JOURNAL, Journal
from fedgen.federate.schema import ServerSettings, TaskSettings
from fedgen.federate.server.status import Status
from fedgen.federate.settings import NOT_DIVIDED
from fedgen.federate.site import doctor
from fedgen.federate.site.doctor import Finding, examine
from helpers import blobs


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A federation as `init` writes it."""
    layers = {"algorithms": ["fedavg"], "users": 2, "active": 2, "dataset": "of-the-sites", "model": "mlp"}
    config = resolve(NOT_DIVIDED, layers, own={"dataset"})
    task = TaskSettings(classes=4, class_names=("cat", "dog", "emu", "fox"), sample=(8, 8, 1))
    port = free_port()
    begin(
        tmp_path / "f", config, task, ServerSettings(sites=("north", "south"), min_sites=1),
        host="localhost", port=port, bind="127.0.0.1", superlink_port=free_port(),
    )  # fmt: skip
    return tmp_path / "f"


@pytest.fixture
def fedgen(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    def run(*arguments: str | Path) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["fedgen", "federate", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        said = capsys.readouterr()
        return int(ended.value.code or 0), " ".join((said.out + said.err).split())

    return run


def server_toml(root: Path) -> dict[str, Any]:
    return tomllib.loads((root / "server/server.toml").read_text())


def test_a_site_is_added_ready_to_send(root: Path, fedgen: Any) -> None:
    settings = root / "server/server.toml"
    settings.write_text(settings.read_text().replace("sites = [", "# mine\nsites = ["))
    code, said = fedgen("add-site", root, "east")
    assert code == 0
    assert "SuperLink does not run" in said and "register.sh" in said  # noqa: PT018
    assert "# mine\n" in settings.read_text(), "what the operator wrote stays"
    assert server_toml(root)["sites"] == ["north", "south", "east"]
    config = tomllib.loads((root / "fedgen-federation/config.toml").read_text())
    assert (config["users"], config["active"]) == (3, 3)
    there = {str(p.relative_to(root / "sites/east")) for p in (root / "sites/east").rglob("*")}
    assert there == {str(p.relative_to(root / "sites/south")) for p in (root / "sites/south").rglob("*")}
    site = root / "sites/east"
    assert tomllib.loads((site / "site.toml").read_text())["number"] == 2
    assert stat.S_IMODE((site / "site.key").stat().st_mode) == 0o600
    assert (site / "site.pub").read_bytes() == (root / "server/keys/east.pub").read_bytes()
    for file in ("start.sh", "ca.crt", "federation/task.toml"):
        assert (site / file).read_bytes() == (root / "sites/south" / file).read_bytes()
    assert os.access(site / "start.sh", os.X_OK)

    code, said = fedgen("add-site", root / "server", "east")
    assert (code, "east is a site already" in said) == (2, True)
    code, said = fedgen("add-site", root, "../up")
    assert (code, "name must be 1 to 40 of the letters A to Z and a to z, digits, '_', '.' and '-'" in said) == (
        2,
        True,
    )
    assert "../up" not in settings.read_text()
    code, said = fedgen("add-site", root, "East")
    assert (code, "east and East differ by capital letters only" in said) == (2, True)
    code, said = fedgen("add-site", root / "sites", "west")
    assert (code, "holds no federation" in said) == (2, True)


def test_a_removed_site_keeps_its_number_and_may_come_back(root: Path, fedgen: Any) -> None:
    code, said = fedgen("remove-site", root, "north")
    assert (code, f"{root}/sites/north is still there: delete it, or move it away" in said) == (0, True)
    assert server_toml(root)["sites"] == ["north", "south"]
    assert server_toml(root)["removed"] == ["north"]
    assert set(public_keys(root / "server/keys")) == {"south"}
    for arguments, reason in (
        (("remove-site", root, "north"), "`fedgen federate add-site` brings it back"),
        (("remove-site", root, "south"), "there are 0 sites, and min_sites in server/server.toml is 1"),
        (("rotate-key", root, "nroth"), "unknown site 'nroth'; did you mean 'south'?"),
        (("add-site", root, "north"), "exists already, and nothing is overwritten"),
    ):
        code, said = fedgen(*arguments)
        assert (code, reason in said) == (2, True), said
    shutil.rmtree(root / "sites/north")
    assert fedgen("add-site", root, "north")[0] == 0
    assert server_toml(root)["removed"] == []
    assert tomllib.loads((root / "sites/north/site.toml").read_text())["number"] == 0
    assert tomllib.loads((root / "fedgen-federation/config.toml").read_text())["users"] == 2


def test_keys_are_replaced_by_a_new_pair_or_the_sites_own(root: Path, fedgen: Any, tmp_path: Path) -> None:
    old = public_keys(root / "server/keys")
    code, said = fedgen("rotate-key", root, "north")
    assert (code, "Send site.key and site.pub in" in said) == (0, True)
    new = root / "new-keys/north/site.key"
    assert stat.S_IMODE(new.stat().st_mode) == 0o600
    assert public_keys(root / "server/keys")["north"] != old["north"]
    assert public_keys(root / "server/keys")["south"] == old["south"]
    assert new.with_suffix(".pub").read_bytes() == (root / "server/keys/north.pub").read_bytes()
    assert "exists already" in fedgen("rotate-key", root, "north")[1]

    own = tmp_path / "own.pub"
    first = new_key(own)
    code, said = fedgen("rotate-key", root, "south", "--public-key", own)
    assert (code, "mv new.key site.key; mv new.key.pub site.pub" in said) == (0, True)
    assert (root / "server/keys/south.pub").read_bytes() == first
    for comment in (b"", b" south@example"):  # a file that was written by hand may have one
        (root / "server/keys/south.pub").write_bytes(before := first.rstrip() + comment + b"\n")
        code, said = fedgen("rotate-key", root, "south", "--public-key", own)
        assert (code, f"This is done: {own} is the key that south has already." in said) == (0, True), said
        assert (root / "server/keys/south.pub").read_bytes() == before
    assert "every site needs its own" in fedgen("rotate-key", root, "north", "--public-key", own)[1]
    assert "the key that south has already" in fedgen("add-site", root, "east", "--public-key", own)[1]
    assert (
        f"give the public one ({new.with_suffix('.pub')})" in fedgen("add-site", root, "east", "--public-key", new)[1]
    )
    (other := tmp_path / "new.key").write_bytes(new.read_bytes())
    assert fedgen("add-site", root, "east", "--public-key", other)[1].endswith("give the public one")
    (tmp_path / "new.key.pub").touch()
    assert f"give the public one ({other}.pub)" in fedgen("add-site", root, "east", "--public-key", other)[1]
    code, said = fedgen("rotate-key", root, "south", "--public-key", tmp_path / "no.pub")
    assert (code, f"there is no file {tmp_path}/no.pub; `ssh-keygen" in said) == (2, True)
    own.write_text("ssh-rsa nothing")
    code, said = fedgen("rotate-key", root, "south", "--public-key", own)
    assert (code, "ssh-keygen -t ecdsa" in said) == (2, True)
    new_key(own)
    assert fedgen("add-site", root, "east", "--public-key", own)[0] == 0
    assert not (root / "sites/east/site.key").exists()


def new_key(path: Path) -> bytes:
    """The public key of a pair that a site has made itself."""
    path.write_bytes(public := make_site_keys()[1])
    return public


def test_a_key_that_a_site_had_before_is_refused_before_anything_changes(root: Path, fedgen: Any) -> None:
    """SuperLink would refuse it at the end, when the key that works is deleted."""
    north, south, gone = (root / f"{name}.pub" for name in ("north", "south", "gone"))
    for name, kept in (("north", north), ("south", south)):
        kept.write_bytes((root / f"sites/{name}/site.pub").read_bytes())
    assert fedgen("rotate-key", root, "north")[0] == 0
    assert fedgen("add-site", root, "gone", "--public-key", new_key(gone) and gone)[0] == 0
    assert fedgen("remove-site", root, "gone")[0] == 0
    shutil.rmtree(root / "sites/gone")
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    for arguments in (
        ("rotate-key", root, "north", "--public-key", north),
        ("rotate-key", root, "south", "--public-key", north),
        ("rotate-key", root, "south", "--public-key", gone),
        ("add-site", root, "west", "--public-key", north),
        ("add-site", root, "gone", "--public-key", gone),
    ):
        code, said = fedgen(*arguments)
        assert (code, "is a key that was replaced or removed before" in said) == (2, True), said
        assert "ssh-keygen" in said
        assert {path: path.read_bytes() for path in root.rglob("*") if path.is_file()} == before
    assert "the key that south has already" in fedgen("rotate-key", root, "south", "--public-key", south)[1]
    assert fedgen("add-site", root, "gone")[0] == 0, "with a new pair"
    assert set(public_keys(root / "server/keys")) == {"north", "south", "gone"}


def test_a_key_that_is_damaged_may_be_replaced_and_hinders_nobody(
    root: Path, fedgen: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / "server/keys/north.pub").write_text("half a k")
    assert fedgen("rotate-key", root, "north")[0] == 0
    new_key(root / "own.pub")
    assert fedgen("rotate-key", root, "south", "--public-key", root / "own.pub")[0] == 0
    (root / "server/keys/junk.pub").write_text("nothing")
    monkeypatch.setattr(superlink.SuperLink, "nodes", lambda self: [])
    monkeypatch.setattr(superlink.SuperLink, "register", lambda self, name, key: None)
    for arguments in (("register", root), ("rotate-key", root, "south", "--public-key", root / "own.pub")):
        code, said = fedgen(*arguments)
        assert (code, "junk.pub cannot be read" in said, "move the file away if it is no site's" in said) == (
            2, True, True,
        ), said  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "path"),
    [
        (["status", "{root}"], "server/log.jsonl"),
        (["add-site", "{root}", "east"], "fedgen-federation/config.toml"),
        (["rotate-key", "{root}", "north"], "server/keys/north.pub"),
        (["remove-site", "{root}", "north"], "server/keys/north.pub"),
    ],
)
def test_a_file_that_cannot_be_read_is_named_in_a_sentence(
    arguments: list[str], path: str, root: Path, fedgen: Any
) -> None:
    """Where permissions do not stop the tests, a folder in the file's place does."""
    file = root / path
    file.unlink(missing_ok=True)
    file.mkdir()
    before = sorted(root.rglob("*"))
    code, said = fedgen(*(argument.format(root=root) for argument in arguments))
    assert (code, said) == (2, f"error: {file} cannot be read or written: Is a directory")
    assert sorted(root.rglob("*")) == before


@pytest.mark.parametrize(
    ("arguments", "of", "name", "path"),
    [
        (["remove-site", "{root}", "north"], Path, "replace", "server/keys/north.pub"),
        (["renew-certificate", "{root}"], Path, "exists", "authority/ca.key"),
        (["status", "{root}"], Path, "stat", "server/server.toml"),
        (["add-site", "{root}", "east"], Path, "stat", "server/server.toml"),
        (["add-site", "{root}", "east"], Path, "read_bytes", "fedgen-federation/config.toml"),
    ],
)
def test_what_permissions_refuse_is_named_in_a_sentence(
    arguments: list[str],
    of: type,
    name: str,
    path: str,
    root: Path,
    fedgen: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real, refused = getattr(of, name), root / path
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}

    def call(path: Path, *rest: Any, **more: Any) -> Any:
        if path == refused:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return real(path, *rest, **more)

    with monkeypatch.context() as patch:
        patch.setattr(of, name, call)
        code, said = fedgen(*(argument.format(root=root) for argument in arguments))
    assert (code, said) == (2, f"error: {refused} cannot be read or written: Permission denied")
    assert {path: path.read_bytes() for path in root.rglob("*") if path.is_file()} == before


def test_the_certificate_is_renewed_for_the_same_key_and_names(root: Path, fedgen: Any, tmp_path: Path) -> None:
    server, authority = root / "server/server.crt", tmp_path / "safe"
    old = server.read_bytes()
    (root / "authority").rename(authority)
    code, said = fedgen("renew-certificate", root)
    assert (code, "Run this where the authority's key is kept" in said) == (2, True)
    alone = tmp_path / "server.crt"  # nothing else of the folder is needed
    alone.write_bytes((root / "server/server.crt").read_bytes())
    assert fedgen("renew-certificate", alone, "--authority", authority)[0] == 0
    assert alone.read_bytes() != (root / "server/server.crt").read_bytes()
    assert fedgen("renew-certificate", root, "--authority", authority)[0] == 0
    before, after = map(x509.load_pem_x509_certificate, (old, server.read_bytes()))
    after.verify_directly_issued_by(x509.load_pem_x509_certificate((authority / "ca.crt").read_bytes()))
    assert after.public_key() == before.public_key()
    assert after.serial_number != before.serial_number
    kind = x509.SubjectAlternativeName
    assert after.extensions.get_extension_for_class(kind) == before.extensions.get_extension_for_class(kind)
    (kept,) = (root / "server").glob("server.crt.until-*")
    assert kept.read_bytes() == old
    ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(server, root / "server/server.key")

    other = make_authority()
    (authority / "ca.crt").write_bytes(other.certificate_bytes())
    assert "was not issued by the authority" in fedgen("renew-certificate", root, "--authority", authority)[1]


def test_the_servers_folder_names_its_certificate_too(root: Path, fedgen: Any) -> None:
    for given in (root, root / "server", root / "server/server.crt"):
        code, said = fedgen("renew-certificate", given)
        assert (code, f"{root}/server/server.crt is now valid" in said) == (0, True), said


def test_a_folder_without_a_certificate_is_said_to_be_that(root: Path, fedgen: Any, tmp_path: Path) -> None:
    code, said = fedgen("renew-certificate", tmp_path / "nowhere")
    assert (code, f"there is no {tmp_path}/nowhere; give the folder of a federation" in said) == (2, True), said
    code, said = fedgen("renew-certificate", root / "sites")
    assert (code, "sites holds no certificate of a server" in said) == (2, True), said


@pytest.mark.parametrize("named", [True, False])
def test_a_certificate_that_was_made_by_hand_is_renewed_or_refused_in_a_sentence(
    named: bool, root: Path, fedgen: Any
) -> None:
    """With another kind of key, and perhaps without the names of its hosts, by which sites would know the server."""
    key = rsa.generate_private_key(65537, 2048)
    server = root / "server/server.crt"
    now = datetime.datetime.now(datetime.UTC)
    authority = x509.load_pem_x509_certificate((root / "authority/ca.crt").read_bytes())
    signs: Any = load_pem_private_key((root / "authority/ca.key").read_bytes(), None)
    made = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "by hand")]))
        .issuer_name(authority.subject)
        .public_key(key.public_key())
        .serial_number(7)
        .not_valid_before(now)
        .not_valid_after(now + datetime.timedelta(days=3))
    )
    if named:
        made = made.add_extension(x509.SubjectAlternativeName([x509.DNSName("by.hand.org")]), critical=False)
    server.write_bytes(made.sign(signs, hashes.SHA256()).public_bytes(Encoding.PEM))
    old = server.read_bytes()
    code, said = fedgen("renew-certificate", root)
    if not named:
        assert (code, "server.crt names no hosts, by which sites know the server" in said) == (2, True), said
        assert server.read_bytes() == old
        return
    assert code == 0, said
    new = x509.load_pem_x509_certificate(server.read_bytes())
    new.verify_directly_issued_by(authority)
    assert new.public_key() == key.public_key()
    names = new.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["by.hand.org"]


def test_an_authority_with_a_key_of_another_kind_is_refused_as_that(root: Path, fedgen: Any) -> None:
    key = rsa.generate_private_key(65537, 2048)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "by hand")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(7)
        .not_valid_before(now)
        .not_valid_after(now + datetime.timedelta(days=3))
        .sign(key, hashes.SHA256())
        .public_bytes(Encoding.PEM)
    )
    (root / "authority/ca.crt").write_bytes(made)
    (root / "server/server.crt").write_bytes(made)
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    (root / "authority/ca.key").write_bytes(private)
    code, said = fedgen("renew-certificate", root)
    assert (code, "is not an elliptic-curve key" in said) == (2, True), said


def test_superlink_is_told_of_exactly_these_keys(root: Path, fedgen: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = public_keys(root / "server/keys")
    nodes = [
        NodeInfo(node_id=1, name="north", public_key=b"an old key"),
        NodeInfo(node_id=2, name="south", public_key=keys["south"]),
        NodeInfo(node_id=3, name="somebody else", public_key=b"?"),
    ]
    calls: list[Any] = []
    monkeypatch.setattr(superlink.SuperLink, "nodes", lambda self: nodes)
    monkeypatch.setattr(superlink.SuperLink, "register", lambda self, name, key: calls.append((name, key)))
    monkeypatch.setattr(superlink.SuperLink, "unregister", lambda self, node: calls.append(node))
    assert fedgen("register", root)[0] == 0
    assert calls == [1, ("north", keys["north"])]


class Registered:
    """A stand-in for SuperLink: the keys that it knows and those that it has forgotten, which it never takes again."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.known = dict(public_keys(root / "server/keys"))
        self.forgotten: set[bytes] = set()
        for name in ("nodes", "register", "unregister"):
            call = getattr(self, name)
            monkeypatch.setattr(superlink.SuperLink, name, lambda _, *given, call=call: call(*given))

    def nodes(self) -> list[NodeInfo]:
        return [NodeInfo(node_id=n, name=name, public_key=self.known[name]) for n, name in enumerate(self.known)]

    def unregister(self, number: int) -> None:
        self.forgotten.add(self.known.pop(list(self.known)[number]))

    def register(self, name: str, key: bytes) -> None:
        if key in self.forgotten:
            raise FedgenError("SuperLink refused it: public key already in use")
        self.known[name] = key


def test_a_site_whose_key_is_missing_is_not_forgotten(root: Path, fedgen: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """SuperLink would never take its key again."""
    there = Registered(root, monkeypatch)
    north, before = root / "server/keys/north.pub", dict(there.known)
    north.rename(root / "mislaid.pub")
    for arguments in (("register", root), ("rotate-key", root, "south"), ("add-site", root, "east")):
        code, said = fedgen(*arguments)
        assert (code, f"{north} is missing; nothing was changed at SuperLink" in said) == (2, True), said
        assert "put it back from a backup" in said
        assert (there.known, there.forgotten) == (before, set())
    (root / "mislaid.pub").rename(north)
    assert fedgen("register", root)[0] == 0
    assert there.known == public_keys(root / "server/keys")
    assert there.forgotten == {before["south"]}
    north.unlink()
    assert fedgen("remove-site", root, "north")[0] == 0, "a site that leaves needs no key"
    assert set(there.known) == {"south", "east"}


def test_a_key_that_is_damaged_is_not_forgotten(root: Path, fedgen: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    there = Registered(root, monkeypatch)
    north = there.known["north"]
    (root / "server/keys/north.pub").write_text("half a k")
    code, said = fedgen("rotate-key", root, "south")
    assert (code, "north.pub cannot be read" in said, "done: SuperLink knows the key of south" in said) == (
        2, True, True,
    ), said  # fmt: skip
    assert there.known == {"north": north, "south": there.known["south"]}
    assert (root / "new-keys/south/site.pub").read_bytes() == (root / "server/keys/south.pub").read_bytes()


def test_a_key_that_is_refused_does_not_keep_others_from_being_registered(
    root: Path, fedgen: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = Registered(root, monkeypatch)
    there.forgotten.add(there.known.pop("north"))
    code, said = fedgen("rotate-key", root, "south")
    assert code == 2
    assert "the key of north was not registered (SuperLink refused it" in said
    assert "`fedgen federate rotate-key` gives north a new one" in said
    assert there.known == {"south": public_keys(root / "server/keys")["south"]}
    assert "done: SuperLink knows the key of south" in said
    assert fedgen("rotate-key", root, "north")[0] == 0
    assert there.known == public_keys(root / "server/keys")


def test_register_says_what_must_run_first(root: Path, fedgen: Any) -> None:
    code, said = fedgen("register", root)
    assert (code, "SuperLink does not answer at 127.0.0.1:" in said) == (2, True)
    assert said.endswith("; start server/superlink.sh first, then call server/register.sh again")


def test_only_what_is_asked_for_is_changed_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    file.write_text('# x\na = [\n  "b", # c\n]\nn = 1 # two\n\n[t]\nn = 2\n')
    set_values(file, a=["b", "d"], n=3)
    assert tomllib.loads(file.read_text()) == {"a": ["b", "d"], "n": 3, "t": {"n": 2}}
    assert "# x\n" in file.read_text() and "# two" in file.read_text()  # noqa: PT018
    set_values(file, new=[])
    assert tomllib.loads(file.read_text()) == {"a": ["b", "d"], "n": 3, "t": {"n": 2}, "new": []}
    file.write_text('"a" = 1 # one\n')
    set_values(file, a=2)
    assert file.read_text() == '"a" = 2 # one\n'
    file.write_text("a = \n")
    with pytest.raises(FedgenError, match="cannot be read"):
        set_values(file, a=2)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_takes_the_units(root: Path, tmp_path: Path) -> None:
    for folder, unit in ((root / "server", "fedgen-server@.service"), (root / "sites/north", "fedgen-site@.service")):
        escape = ["systemd-escape", "--path", folder]
        instance = subprocess.run(escape, capture_output=True, text=True, check=True).stdout.strip()
        file = tmp_path / unit.replace("@", f"@{instance}")
        file.write_text((folder / unit).read_text())
        (folder / "environment").write_text(f"PATH={os.environ['PATH']}\n")
        quiet = {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path), "SYSTEMD_LOG_LEVEL": "warning"}
        command = ["systemd-analyze", "verify", "--user", "--man=no", "--recursive-errors=no", file]
        done = subprocess.run(command, capture_output=True, text=True, env=quiet, check=False, timeout=600)
        assert (done.returncode, [line for line in done.stderr.splitlines() if unit[:8] in line]) == (0, []), (
            done.stderr
        )
        broken = file.read_text().replace("ExecStart=%f/", "ExecStart=%f/no-such-")
        file.write_text(broken)
        assert subprocess.run(command, capture_output=True, env=quiet, check=False, timeout=600).returncode, "it looks"


def test_status_tells_the_story_of_the_journals(root: Path, fedgen: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    log, gate = Journal(root / "server/log.jsonl", run="run"), Journal(root / "server" / GATE_JOURNAL)
    gate.write("open", address="x")
    gate.write("message", site="south", bytes_up=5, bytes_down=7)
    gate.write("open", address="x")
    gate.write("message", site="south", bytes_up=1_500, bytes_down=2_000_000)
    gate.write("refused", status=412, reason="unknown", address="10.0.0.1")
    log.write("started", algorithm="fedavg", rounds=9, pid=os.getpid())
    log.write("joined", site="north")
    log.write("joined", site="south")
    log.write("round", round=0, cohort=["north", "south"])
    log.write("answered", kind="train", round=0, site="south")
    status = Status(root / "server")
    status.update()
    assert [status.sites[name].state for name in ("north", "south")] == ["asked", "present"]
    log.write("refused", round=0, site="north", reason="evil \x1b[2J [red]text", strikes=2)
    log.write("done", round=0, sites=["south"], loss=1.0, seconds=2.5)
    log.write("score", round=1, accuracy=None, accuracy_users=61.5)
    with log.path.open("a") as file:
        file.write("half a li\n")
    status.update()
    assert (status.run.state, status.run.round, status.run.rounds, status.run.seconds) == ("running", 1, 9, 2.5)
    south, north = status.sites["south"], status.sites["north"]
    assert (south.state, south.round, south.bytes_up, south.bytes_down) == ("present", 1, 1_505, 2_000_007)
    assert south.seconds >= 0
    assert (north.state, north.round, north.refusals, north.strikes) == ("present", None, 1, 2)
    assert "does not answer" in status.superlink

    code, said = fedgen("status", root)
    assert code == 0
    assert "run run: running, fedavg, round 1 of 9, 2.5 s a round, accuracy_users 61.50 % after round 1" in said
    assert "refused 1 requests" in said
    assert "\x1b[2J" not in said
    assert "evil \\x1b[2J [red]text" in said, "as it is, and not as an instruction"
    code, said = fedgen("status", root, "--json")
    assert json.loads(said)["sites"][1]["bytes_up"] == 1_505

    log.write("excluded", site="north", reason="3 messages were refused")
    log.write("finished", round=9)
    fedgen("remove-site", root, "south")
    status.update()
    assert (status.run.state, north.state, south.state) == ("finished", "excluded", "removed")
    log.write("resumed", round=3, pid=2**22 + 1)
    status.update()
    assert status.run.state.startswith("interrupted")
    node = NodeInfo(name="north", status="online", online_until=1060.0, heartbeat_interval=30.0)
    monkeypatch.setattr(superlink.SuperLink, "nodes", lambda self: [node])
    fresh = Status(root / "server")
    fresh._log = fresh._gate  # as if no run had been
    fresh.update()
    assert (fresh.sites["north"].state, fresh.sites["north"].last_seen) == ("present", 1000.0)


def test_a_run_whose_process_is_gone_is_interrupted(root: Path) -> None:
    """Killed, and not reaped by what had started it; or before a reboot, after which another has its pid."""
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3000)"])
    log, status = Journal(root / "server/log.jsonl", run="run"), Status(root / "server")
    try:
        log.write("started", algorithm="fedavg", rounds=9, pid=process.pid)
        status.update()
        assert status.run.state == "running"
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and is still a process
        status.update()
        assert status.run.state.startswith("interrupted")
    finally:
        process.kill()
        process.wait(600)
    with log.path.open("a") as file:
        for ago in (7 * 86_400, 0):
            told = {"time": time.time() - ago, "event": "resumed", "run": "run", "round": 1, "pid": os.getpid()}
            file.write(json.dumps(told) + "\n")
            file.flush()
            status.update()
            assert status.run.state.startswith("interrupted" if ago else "running")


def test_a_run_that_is_started_once_more_goes_on(root: Path) -> None:
    """The second process ends, since the first one has the run's folder, and says so in the same journal."""
    log, status = Journal(root / "server/log.jsonl", run="run"), Status(root / "server")
    log.write("started", algorithm="fedavg", rounds=9, pid=os.getpid())
    log.write("round", round=0, cohort=["north"])
    log.write("ended", reason="runs/run is in use", pid=os.getpid() + 1)
    Journal(log.path, run="other").write("ended", reason="no such model", pid=os.getpid())
    status.update()
    assert (status.run.state, status.run.note) == ("running", "another start, of run other, ended: no such model")
    log.write("ended", reason="said by an earlier version")
    status.update()
    assert status.run.state == "ended: said by an earlier version"
    for event in ("done", "round"):
        log.write("ended", reason="said by an earlier version")
        log.write(event, round=0, cohort=["north"])
        status.update()
        assert status.run.state == "running"
    assert status.run.note == ""
    log.write("ended", reason="too few sites", pid=os.getpid())
    status.update()
    assert status.run.state == "ended: too few sites"


def test_a_process_that_ends_says_which_it_was(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apps, "_end_with_parent", lambda: None)
    monkeypatch.setattr(apps, "use_compilation_cache", lambda **_: None)
    monkeypatch.setenv(apps.SERVER_VARIABLE, str(root / "server"))
    context = Context(1, 1, {}, RecordDict(), {"run": "../up"})
    with pytest.raises(FedgenError, match="the run is called"):
        apps.server_app(root / "fedgen-federation")(Mock(), context)
    (ended,) = journal.read_journal(root / "server/log.jsonl")
    assert (ended["event"], ended["pid"]) == ("ended", os.getpid())


@pytest.mark.parametrize("end", ["answered", "failed", "refused", "done"])
def test_a_site_is_asked_until_its_answer_or_the_round_is_there(root: Path, end: str) -> None:
    """In round 2, in which it is not asked, it is there and nothing else."""
    log = Journal(root / "server/log.jsonl", run="run")
    log.write("started", algorithm="fedavg", rounds=9, pid=os.getpid())
    for name in ("north", "south"):
        log.write("joined", site=name)
    log.write("round", round=0, cohort=["north", "south"])
    status = Status(root / "server")
    status.update()
    assert {site.state for site in status.sites.values()} == {"asked"}
    log.write(end, round=0, kind="train", reason="", **({} if end == "done" else {"site": "north"}))
    status.update()
    assert status.sites["north"].state == "present"
    log.write("round", round=1, cohort=["south"])
    status.update()
    assert [status.sites[name].state for name in ("north", "south")] == ["present", "asked"]


def test_a_program_may_watch_a_federation(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    log, rounds = Journal(root / "server/log.jsonl", run="run"), iter([2, 3])
    log.write("started", algorithm="fedavg", rounds=9, round=1, pid=os.getpid())

    def pause(_: float) -> None:
        if (number := next(rounds, None)) is None:
            raise KeyboardInterrupt
        log.write("done", round=number - 1, sites=[], loss=1.0, seconds=1.0)

    monkeypatch.setattr(federate_life, "time", SimpleNamespace(sleep=pause, time=time.time))
    monkeypatch.setattr(sys, "argv", ["fedgen", "federate", "status", str(root), "--watch", "--json"])
    with pytest.raises(SystemExit) as ended:
        main()
    lines = capsys.readouterr().out.splitlines()
    assert (ended.value.code, [json.loads(line)["run"]["round"] for line in lines]) == (130, [1, 2, 3])


def test_status_knows_a_run_whose_beginning_was_rotated_away(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "_SERVER_LIMIT", 2_000)
    log = journal.server_journal(root / "server", "run")
    log.write("started", algorithm="fedavg", rounds=99, pid=os.getpid())
    watched = Status(root / "server")
    for number in range(50):
        if number == 20:
            log.write("resumed", algorithm="fedavg", rounds=99, round=20, pid=os.getpid())
        log.write("round", round=number, cohort=["north", "south"])
        log.write("answered", kind="train", round=number, site="south")
        log.write("done", round=number, sites=["south"], seconds=2.5)
        watched.update()
    assert sorted(path.name for path in (root / "server").glob("log.jsonl*")) == ["log.jsonl", "log.jsonl.1"]
    assert sum(path.stat().st_size for path in (root / "server").glob("log.jsonl*")) < 5_000
    assert json.loads(log.path.read_text().partition("\n")[0])["event"] == "continued"
    fresh = Status(root / "server")
    fresh.update()
    for status in (fresh, watched):
        run = status.run
        assert (run.name, run.state, run.algorithm, run.rounds, run.round) == ("run", "running", "fedavg", 99, 50)
    log.write("finished", round=50)
    fresh.update()
    assert fresh.run.state == "finished"


def findings(folder: Path) -> dict[str, list[Finding]]:
    found: dict[str, list[Finding]] = {}
    for finding in examine(folder):
        found.setdefault(finding.what, []).append(finding)
    return found


def test_the_doctor_looks_at_key_data_labels_model_and_versions(root: Path, fedgen: Any) -> None:
    site = root / "sites/north"
    x, y = blobs(30)
    np.savez(site / "data.npz", x_train=x, y_train=np.where(y == 3, 0, y), x_test=x, y_test=y)
    found = findings(site)
    assert found["port"][0].state == "wrong", "nobody listens there"
    assert "superlink.sh must run" in found["port"][0].advice
    right = ("folder", "version of fedgen", "version of flwr", "version of python", "key", "name", "data", "labels")
    assert {found[name][0].state for name in (*right, "model")} == {"ok"}
    assert "3 of 4 classes: cat" in found["labels"][0].text
    assert found["data"][0].text == "30 samples of 8x8x1 (uint8), 30 for tests"

    np.savez(site / "data.npz", x_train=x, y_train=y + 1)
    (site / "site.key").chmod(0o644)
    set_values(site / "federation/deployment.toml", fedgen="0.0.9", python="2.7.18")
    set_values(site / "federation/config.toml", model="no_such")
    found = findings(site)
    assert "chmod 600" in found["key"][0].advice
    assert found["version of fedgen"][0].advice.startswith("install fedgen 0.0.9")
    assert found["version of python"][0].state == "warning"
    assert "unknown model 'no_such'" in found["settings"][0].text
    set_values(site / "federation/config.toml", model="mlp")
    (site / "site.pub").write_bytes((root / "sites/south/site.pub").read_bytes())
    found = findings(site)
    assert "labels are 1 to 4; the federation has 0 to 3" in found["data"][0].text
    assert (found["key"][1].state, found["key"][1].text) == ("warning", "site.pub is not the public key of site.key")
    assert "ssh-keygen -y -f site.key > site.pub" in found["key"][1].advice
    np.savez(site / "data.npz", x_train=x, y_train=np.array(["cat", "owl"] * 15))
    assert "has class 'owl', and the classes are cat, dog, emu, fox" in findings(site)["data"][0].text
    set_values(site / "site.toml", sample=[3, 3, 1], model="cnn")
    assert findings(site)["model"][0].state == "wrong"
    code, said = fedgen("doctor", site)
    assert code == 1
    assert "things are wrong" in said
    code, said = fedgen("doctor", root)
    assert (code, "give the folder that the server's operator sent" in said) == (1, True)


def test_the_doctor_tries_the_port_of_the_sites_own_processes(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", free_port())) as listener:
        taken = str(listener.getsockname()[1])
        monkeypatch.setenv(PORT_VARIABLE, taken)
        (found,) = findings(root / "sites/north")["own port"]
        assert (found.state, f"127.0.0.1:{taken} cannot be used: Address already in use" in found.text) == (
            "warning", True,
        )  # fmt: skip
        assert "this site's own SuperNode" in found.advice
        assert "set FEDGEN_PORT to the number of a free port" in found.advice
        monkeypatch.setenv(PORT_VARIABLE, "")
        monkeypatch.setattr(doctor, "DEFAULT_PORT", int(taken))
        assert doctor._own_port().state == "warning", "as start.sh takes it"
    assert doctor._own_port() == Finding("ok", "own port", f"127.0.0.1:{taken} is free")
    for wrong in ("nine", "0", "65536"):
        monkeypatch.setenv(PORT_VARIABLE, wrong)
        assert (doctor._own_port().state, wrong in doctor._own_port().text) == ("wrong", True)


@pytest.mark.parametrize("what", ["folder", "file"])
def test_the_doctor_goes_on_where_it_may_not_read_what_is_expected(
    what: str, root: Path, fedgen: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = root / "sites/north"
    x, y = blobs(30)
    np.savez(site / "data.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    refused = site / "federation" if what == "folder" else site / "federation/deployment.toml"

    def refuse(name: str) -> None:
        real = getattr(Path, name)

        def call(path: Path, *rest: Any, **more: Any) -> Any:
            if refused in (path, *path.parents):
                raise PermissionError(errno.EACCES, "Permission denied", str(path))
            return real(path, *rest, **more)

        monkeypatch.setattr(Path, name, call)

    for name in ("stat", "read_text"):  # permissions do not stop the superuser
        refuse(name)
    found = findings(site)
    wrong = [finding for several in found.values() for finding in several if finding.state == "wrong"]
    (only,) = wrong
    assert f"{site}/federation/deployment.toml cannot be read: Permission denied" in only.text
    assert "chown" in only.advice
    assert (found["server"][0].state, found["key"][0].state) == ("skipped", "ok")
    assert "own port" in found
    assert ("data" in found, "settings" in found) == (what == "file", what == "folder")
    code, said = fedgen("doctor", site)
    assert (code, "1 thing is wrong" in said) == (1, True), said


@pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="OpenSSH is not installed")
def test_after_a_rotation_as_told_the_doctor_finds_a_key_in_order(root: Path, fedgen: Any) -> None:
    """As the server's operator hands the pair over, or as the site makes it; and what mends a forgotten site.pub."""
    north, south = root / "sites/north", root / "sites/south"
    assert fedgen("rotate-key", root, "south")[0] == 0
    (root / "new-keys/south/site.key").replace(south / "site.key")
    assert [found.state for found in findings(south)["key"]] == ["ok", "warning"]
    (root / "new-keys/south/site.pub").replace(south / "site.pub")
    old = (north / "site.key").read_bytes()
    subprocess.run(["ssh-keygen", "-q", "-t", "ecdsa", "-b", "384", "-N", "", "-f", "new.key"], cwd=north, check=True)
    assert (north / "site.key").read_bytes() == old, "until the server has the new one"
    assert fedgen("rotate-key", root, "north", "--public-key", north / "new.key.pub")[0] == 0
    (north / "new.key").replace(north / "site.key")
    assert [found.state for found in findings(north)["key"]] == ["ok", "warning"]
    written = subprocess.run(["ssh-keygen", "-y", "-f", "site.key"], cwd=north, check=True, capture_output=True).stdout
    (north / "site.pub").write_bytes(written)
    for site in (north, south):
        assert [found.state for found in findings(site)["key"]] == ["ok"]
        assert load_ssh_public_key((site / "site.pub").read_bytes()) == load_ssh_public_key(
            (root / f"server/keys/{site.name}.pub").read_bytes()
        )


def test_the_doctor_finds_words_beyond_the_embedding(root: Path) -> None:
    site = root / "sites/north"
    (site / "readers.py").write_text(
        "import flax.linen as nn\n\n\ndef reader(sample, classes, *, hidden=None, latent=None):\n"
        "    return nn.Sequential([nn.Embed(10, 4), lambda x: x.mean(1), nn.Dense(classes)])\n"
    )
    set_values(site / "federation/task.toml", sample=[3], dtype="int32")
    set_values(site / "federation/config.toml", model="readers:reader")
    for largest, said in ((9, "readers:reader takes such samples"), (10, "NaN for a sample with the number 10")):
        x = np.array([[1, 2, 0], [4, largest, 1]] * 5, np.int32)
        np.savez(site / "data.npz", x_train=x, y_train=np.arange(10) % 2, x_test=x, y_test=np.arange(10) % 2)
        assert said in findings(site)["model"][0].text


@pytest.mark.parametrize(
    ("ahead", "state"),
    [(0.5, "ok"), (-0.5, "ok"), (4.0, "warning"), (6.0, "wrong"), (-200.0, "warning"), (-306.0, "wrong")],
)
def test_the_clock(ahead: float, state: str) -> None:
    assert doctor._clock(ahead).state == state


def as_superlink(response: Response) -> tuple[Any, list[tuple[str, Any]]]:
    """A stand-in for the gate's connection to SuperLink, with this response to an activation, and what is asked."""
    asked: list[tuple[str, Any]] = []

    async def forward(head: Any, target: str, request: Any, client: Any) -> Response:
        asked.append((target, request))
        return response if target == ACTIVATE else Response(401, b"{}", ())

    return forward, asked


def test_the_doctor_says_ready_only_where_nothing_is_left_to_see(
    root: Path, fedgen: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for state, said in (("ok", "The site is ready"), ("warning", "Nothing is wrong, but read the warnings above")):
        monkeypatch.setattr(doctor, "examine", lambda folder, state=state: [Finding(state, "key at the server", "so")])
        code, shown = fedgen("doctor", root / "sites/north")
        assert (code, said in shown) == (0, True), shown


def test_the_doctor_asks_the_gate(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A whole gate without SuperLink: certificate, clock and key, and what is wrong with each."""
    import asyncio

    from fedgen.federate.gate import gate as gate_module
    from fedgen.federate.gate.gate import Address, Gate

    folders = Folders(root)
    port = int(tomllib.loads((root / "server/deployment.toml").read_text())["port"])
    gate = Gate(folders.server, public_keys(folders.server / "keys"), 1000, Address("127.0.0.1", free_port()))
    loop = asyncio.new_event_loop()
    serving = loop.create_task(gate.serve(Address("127.0.0.1", port)))

    def serve() -> None:
        with pytest.raises(asyncio.CancelledError):
            loop.run_until_complete(serving)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        while not (folders.server / GATE_JOURNAL).exists():
            pass
        found = findings(root / "sites/north")
        assert [found[name][0].state for name in ("port", "certificate", "clock")] == ["ok"] * 3
        assert found["key at the server"][0].text == "the gate knows it, but SuperLink does not answer"
        until = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=824)
        assert f"valid until {until:%Y}" in found["certificate"][0].text

        for status, code, state in (
            (400, INVALID_INTERVAL, "ok"),
            (412, NOT_ACTIVATED, "wrong"),
            (401, None, "warning"),
        ):
            said = {"detail": "so"} if code is None else {"code": code, "detail": "so"}
            response = Response(status, json.dumps(said).encode(), ())
            forward, asked = as_superlink(response)
            monkeypatch.setattr(gate, "_forward", forward)
            (seen,) = findings(root / "sites/north")["key at the server"]
            assert seen.state == state
            (activation,) = [request for target, request in asked if target == ACTIVATE]
            assert (activation.heartbeat_interval, len(activation.public_key) > 100) == (0.0, True)
            assert ("gate and SuperLink know it" in seen.text) == (state == "ok")
            assert ("register.sh" in seen.advice) == (state != "ok")
        monkeypatch.undo()

        gate_module_every, gate_module._KEYS_EVERY = gate_module._KEYS_EVERY, 0.0
        gate._keys_due = 0.0
        (root / "server/keys/north.pub").unlink()
        found = findings(root / "sites/north")
        assert found["key at the server"][0].state == "wrong"
        assert found["key at the server"][0].text.startswith("the key is not registered")
        gate_module._KEYS_EVERY = gate_module_every

        (root / "sites/north/ca.crt").write_bytes(make_authority().certificate_bytes())
        found = findings(root / "sites/north")
        assert found["certificate"][0].state == "wrong"
        assert "clock" not in found
    finally:
        loop.call_soon_threadsafe(serving.cancel)
        thread.join(60)
        loop.close()
