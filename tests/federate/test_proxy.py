"""A proxy in the environment: this machine is reached without it, and `doctor` says whether the server is, too."""

import os
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from fedgen.federate.deploy.folders import Folders
from fedgen.federate.deploy.record import Deployment
from fedgen.federate.deploy.scripts import Endpoints, write_scripts
from fedgen.federate.site import doctor
from fedgen.federate.site.doctor import Finding
from fedgen.federate.site.proxy import proxy_of

_PROXY = "http://keeper:secret@proxy.example.org:3128"


@pytest.fixture(autouse=True)
def _without_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)


@pytest.mark.parametrize(
    ("given", "upper", "lower"),
    [
        ({}, "", ""),
        ({"NO_PROXY": "fed.example.org"}, "fed.example.org", "fed.example.org"),
        ({"no_proxy": "fed.example.org"}, "fed.example.org", "fed.example.org"),
        ({"NO_PROXY": ".one.org,10.0.0.1", "no_proxy": "two.org"}, ".one.org,10.0.0.1", "two.org"),
    ],
)
def test_every_script_reaches_this_machine_directly(
    given: dict[str, str], upper: str, lower: str, tmp_path: Path
) -> None:
    """And asks the proxy for all that it asked it before: of two variables Python takes the small one."""
    folders = Folders(tmp_path)
    programs = tmp_path / "bin"
    programs.mkdir()
    for program in ("fedgen", "python3", "flwr"):  # which print their environment
        (programs / program).write_text("#!/bin/sh\nenv\n")
        (programs / program).chmod(0o755)
    environment = {"PATH": f"{programs}{os.pathsep}{os.environ['PATH']}", "HTTPS_PROXY": _PROXY, **given}
    for listen in ("", "0.0.0.0:8000"):
        write_scripts(folders, ["north"], Endpoints(listen, 8001, "fed.example.org:8000"))
        for script in (*folders.server.glob("*.sh"), folders.site("north") / "start.sh"):
            once = ["--help"] if script.name == "start.sh" else []  # else it starts what ended again
            said = subprocess.run(
                ["/bin/sh", script, *once], env=environment, capture_output=True, text=True, check=True, timeout=600
            )
            lines = said.stdout.splitlines()
            assert f"NO_PROXY=127.0.0.1,localhost,{upper}" in lines, script.name
            assert f"no_proxy=127.0.0.1,localhost,{lower}" in lines, script.name
            assert f"HTTPS_PROXY={_PROXY}" in lines


@pytest.mark.parametrize("host", ["fed.example.org", "FED.example.org", "10.0.0.7", "2001:db8::7", "localhost"])
@pytest.mark.parametrize(
    "rules",
    [
        "", "*", "a,*", "fed.example.org", "FED.Example.org", "example.org", ".example.org", "ed.example.org", "org",
        ".fed.example.org", "fed.example.org:8000", "fed.example.org:9000", "https://fed.example.org", "10.0.0.7",
        "http://fed.example.org", "all://10.0.0.7", "all://example.org", "10.0.0.0/8", "10.0.0", "0.7", "2001:db8::7",
        "2001:db8::8", "localhost", " a , fed.example.org ", ",,", "https://10.0.0.7:8000", "https://10.0.0.7:8001",
    ],
)  # fmt: skip
def test_who_is_asked_is_found_as_httpx_does_it(host: str, rules: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("https_proxy", _PROXY)
    monkeypatch.setenv("no_proxy", f"127.0.0.1,localhost,{rules}")  # as start.sh does it
    url = httpx.URL(f"https://{f'[{host}]' if ':' in host else host}:8000/v1")
    with httpx.Client() as client:
        asked = client._transport_for_url(url) is not client._transport
    monkeypatch.setenv("no_proxy", rules)
    assert proxy_of(host, 8000) == (_PROXY if asked else "")


@pytest.mark.parametrize(
    ("environment", "proxy"),
    [
        ({}, ""), ({"http_proxy": "http://one"}, ""), ({"ALL_PROXY": "http://one"}, "http://one"),
        ({"HTTPS_PROXY": "two:1", "ALL_PROXY": "http://one"}, "two:1"),
        ({"HTTPS_PROXY": "two:1", "https_proxy": "http://three"}, "http://three"),
    ],
)  # fmt: skip
def test_the_variables(environment: dict[str, str], proxy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert proxy_of("fed.example.org", 8000) == proxy


@pytest.fixture
def ends_at_once() -> Iterator[int]:
    """The port of a proxy that closes every connection."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            try:
                while True:
                    server.accept()[0].close()
            except OSError:
                pass

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)
        thread.join(60)


def found(tmp_path: Path) -> tuple[list[Finding], bool]:
    """What the doctor says of the proxy, and whether it looks no further."""
    findings, looks = [], doctor._only_through_proxy(tmp_path, Deployment(host="fed.example.org", port=8000))
    while True:
        try:
            findings.append(next(looks))
        except StopIteration as ended:
            return findings, ended.value


@pytest.mark.parametrize("directly", [True, False])
def test_a_proxy_that_does_not_lead_to_the_server_is_a_warning(
    directly: bool, ends_at_once: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", f"http://keeper:secret@127.0.0.1:{ends_at_once}")
    monkeypatch.setattr(doctor, "_direct_trouble", lambda _: "" if directly else "Network is unreachable")
    ((warning,), ends) = found(tmp_path)
    assert (warning.state, warning.what, ends) == ("warning", "proxy", False)
    begin = f"start.sh would reach fed.example.org through http://127.0.0.1:{ends_at_once} (HTTPS_PROXY): "
    assert warning.text.startswith(begin)
    assert warning.text.endswith(
        "directly it answers" if directly else "directly it does not answer either: Network is unreachable"
    )
    assert "secret" not in warning.text
    assert "add fed.example.org to no_proxy for start.sh" in warning.advice
    assert ("the proxy must let connections to fed.example.org:8000 through" in warning.advice) == (not directly)


def test_what_is_no_proxy_is_a_warning_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A SuperNode ends with this error before it connects."""
    monkeypatch.setattr(doctor, "_direct_trouble", lambda _: "")
    for proxy, said in (("ftp://proxy.example.org", "Unknown scheme"), ("http://a b:c", "InvalidURL")):
        monkeypatch.setenv("all_proxy", proxy)
        ((warning,), _) = found(tmp_path)
        assert (warning.state, said in warning.text) == ("warning", True), warning.text


@pytest.mark.parametrize("directly", [True, False])
def test_a_proxy_that_leads_there_is_in_order(directly: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("https_proxy", _PROXY)
    monkeypatch.setattr(doctor, "_direct_trouble", lambda _: "" if directly else "Network is unreachable")
    monkeypatch.setattr(doctor, "trouble_through_proxy", lambda address, trusted: "")
    (way, *more), ends = found(tmp_path)
    assert (way.state, way.what) == ("ok", "proxy")
    assert "http://proxy.example.org:3128 (https_proxy), which leads there" in way.text
    assert ends == (not directly), "nothing that is asked directly can be said"
    assert [finding.state for finding in more] == ([] if directly else ["skipped"])


def test_a_direct_connection_is_tried(ends_at_once: int) -> None:
    assert doctor._direct_trouble(Deployment(host="127.0.0.1", port=ends_at_once)) == ""
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        assert doctor._direct_trouble(Deployment(host="127.0.0.1", port=nobody.getsockname()[1]))


def test_without_a_proxy_nothing_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert found(tmp_path) == ([], False)
    monkeypatch.setenv("https_proxy", _PROXY)
    monkeypatch.setenv("no_proxy", "example.org")
    assert found(tmp_path) == ([], False)
