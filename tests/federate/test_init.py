"""`fedgen federate init` writes what sites need, and Flower takes the app."""

import os
import shlex
import signal
import stat
import subprocess
import sys
import time
import tomllib
import zipfile
from pathlib import Path

import pytest
from cryptography import x509

from fedgen.cli.main import main
from fedgen.config import RunConfig, resolve
from fedgen.federate.deploy.folders import Folders
from fedgen.federate.deploy.process_tree import is_running, kill, process_tree
from fedgen.federate.deploy.record import bracketed
from fedgen.federate.deploy.scripts import Endpoints, write_scripts
from fedgen.federate.settings import AppSettings

ARGUMENTS = [
    "--site",
    "north",
    "--site",
    "south",
    "--host",
    "fed.example.org",
    "--classes",
    "10",
    "--sample",
    "28,28,1",
]


def init(monkeypatch: pytest.MonkeyPatch, *arguments: str | Path) -> int:
    monkeypatch.setattr(sys, "argv", ["fedgen", "federate", "init", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


def test_all_that_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "federation"
    assert init(monkeypatch, root, *ARGUMENTS, "--share", "predictor", "--round-timeout", "60") == 0
    keys = [
        root / "authority/ca.key",
        root / "server/server.key",
        root / "sites/north/site.key",
        root / "sites/south/site.key",
    ]
    assert sorted(root.rglob("*.key")) == sorted(keys)
    for key in keys:
        assert stat.S_IMODE(key.stat().st_mode) == 0o600
    server = x509.load_pem_x509_certificate((root / "server/server.crt").read_bytes())
    authority = x509.load_pem_x509_certificate((root / "authority/ca.crt").read_bytes())
    server.verify_directly_issued_by(authority)
    names = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert "fed.example.org" in names.get_values_for_type(x509.DNSName)
    public = (root / "sites/north/site.pub").read_text()
    assert public.startswith("ecdsa-sha2-nistp384 ")
    assert public == (root / "server/keys/north.pub").read_text()
    settings = tomllib.loads((root / "server/server.toml").read_text())
    assert settings["sites"] == ["north", "south"]
    assert settings["round_timeout"] == 60
    assert tomllib.loads((root / "sites/south/site.toml").read_text())["number"] == 1
    assert tomllib.loads((root / "fedgen-federation/config.toml").read_text())["share"] == "predictor"
    for script in (*root.glob("server/*.sh"), *root.glob("sites/*/start.sh")):
        assert script.stat().st_mode & stat.S_IXUSR
        subprocess.run(["/bin/sh", "-n", script], check=True)
        if script.name != "register.sh":
            assert script.name in (root / "README.md").read_text()

    superlink = (root / "server/superlink.sh").read_text()
    assert "federate.gate.superlink --host 127.0.0.1 --port 8001 " in superlink, "its control interface has no password"
    assert "gate --listen 0.0.0.0:8000 --superlink 127.0.0.1:8001 -- " in superlink
    connection = tomllib.loads((root / "server/flower/config.toml").read_text())["superlink"]["federation"]
    assert connection["address"] == "127.0.0.1:8001"

    # What the scripts start writes for its owner only.
    (tmp_path / "bin").mkdir()
    stand_in = tmp_path / "bin/fedgen"
    stand_in.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/called\n')
    stand_in.chmod(0o755)
    path = {**os.environ, "PATH": f"{tmp_path}/bin:{os.environ['PATH']}"}
    subprocess.run(["/bin/sh", root / "server/register.sh"], env=path, check=True, timeout=600)
    assert (tmp_path / "called").read_text() == f"federate register {root}/server\n"
    assert stat.S_IMODE((tmp_path / "called").stat().st_mode) == 0o600

    bundler = Path(sys.executable).with_name("flwr")
    quiet = {**os.environ, "FLWR_HOME": str(tmp_path / "flower"), "FLWR_TELEMETRY_ENABLED": "0"}
    build = [bundler, "build", "--app", root / "fedgen-federation"]
    subprocess.run(build, cwd=tmp_path, env=quiet, check=True, timeout=600)
    (bundle,) = tmp_path.glob("*.fab")
    with zipfile.ZipFile(bundle) as archive:
        assert {"config.toml", "task.toml", "fedgen_federation/client.py"} <= set(archive.namelist())
        assert not [name for name in archive.namelist() if "key" in name or "crt" in name]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--site", "north"], "a site is named twice"),
        (["--site", "North"], "north and North differ by capital letters only"),
        (["--port", "8001"], "--port and --superlink-port are both 8001"),
        (["--site", "../up"], "sites must be 1 to 40 of the letters A to Z and a to z, digits, '_', '.' and '-'"),
        (["--site", "a b"], "the first a letter or digit, not 'a b'"),
        (["--sample", "28x28"], "such as 28,28,1"),
        (["--dtype", "int8"], "dtype"),
        (["--set", "model=rnn"], "unknown model 'rnn'"),
        (["--set", "seeds=3"], "one seed"),
        (["--algorithm", "fedensemble", "--share", "predictor"], "--share all"),
        (["--sample", "3,3,1"], "error: model 'cnn' needs images of at least 8x8"),
        (["--host", ""], "--host '' is neither a name in DNS nor an address"),
        (["--host", "exämple.org"], "in ASCII, with xn-- where"),
        (["--host", "http://fed.example.org"], "without http:// and port"),
        (["--host", "fed.example.org:8000"], "without http:// and port"),
        (["--host", "[::1]"], "without http:// and port"),
        (["--host", "a b"], "--host 'a b' is neither"),
        (["--host", 'fed/../x"; rm'], "is neither a name in DNS nor an address"),
        (["--host", "a..b"], "is neither a name in DNS nor an address"),
        (["--host", "1.2.3.400"], "is neither a name in DNS nor an address"),
        (["--host", f"{'a' * 64}.org"], "is neither a name in DNS nor an address"),
        (["--host", ".".join(["a" * 60] * 5)], "is neither a name in DNS nor an address"),
        (["--host", "fe80::1%eth0"], "is neither a name in DNS nor an address"),
        (["--bind", "nonsense"], "--bind 'nonsense' is not an address"),
        (["--bind", "0.0.0.0:8000"], "or 0.0.0.0 or :: for all"),
    ],
)
def test_mistakes_are_one_sentence_and_leave_nothing(
    arguments: list[str],
    reason: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    root = tmp_path / "federation"
    assert init(monkeypatch, root, *ARGUMENTS, *arguments) == 2
    assert reason in capsys.readouterr().err.replace("\n", " ")
    assert not root.exists() or not any(root.iterdir())


@pytest.mark.parametrize(
    ("host", "bind"),
    [(f"{'a' * 40}.{'b' * 40}.example.org", "127.0.0.1"), ("xn--exmple-cua.org", "::"), ("2001:db8::7", "localhost")],
)
def test_names_that_are_long_or_of_other_letters_and_addresses_are_taken(
    host: str, bind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "f"
    assert init(monkeypatch, root, *ARGUMENTS, "--host", host, "--bind", bind) == 0
    server = x509.load_pem_x509_certificate((root / "server/server.crt").read_bytes())
    names = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    kind = x509.IPAddress if ":" in host else x509.DNSName
    assert host in map(str, names.get_values_for_type(kind))
    assert after("--listen", root / "server/superlink.sh") == f"{bracketed(bind)}:8000"
    assert after("--superlink", root / "sites/north/start.sh") == f"{bracketed(host)}:8000"


def after(option: str, script: Path) -> str:
    """What a shell passes on after this option."""
    line = next(line for line in script.read_text().splitlines() if option in line)
    words = shlex.split(line.removesuffix("\\"))
    return words[words.index(option) + 1]


def test_what_a_file_says_of_the_server_is_no_command(tmp_path: Path) -> None:
    """`add-site` reads the address from deployment.toml, which may have been written by hand."""
    folders = Folders(tmp_path)
    nasty = "$(touch here); touch there:8000"
    write_scripts(folders, ["north"], Endpoints("0.0.0.0:8000", 8001, nasty))
    assert after("--superlink", tmp_path / "sites/north/start.sh") == nasty
    assert f"'{nasty}'" in (tmp_path / "sites/north/start.sh").read_text()


def test_all_that_is_missing_is_said_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert init(monkeypatch, tmp_path / "federation", "--classes", "10") == 2
    assert "--site, --host, --sample must be given" in capsys.readouterr().err


def test_the_configuration_explains_itself_and_leaves_out_what_divides_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "federation"
    assert init(monkeypatch, root, *ARGUMENTS, "--algorithm", "feddistill+", "--set", "local_steps=7") == 0
    text = (root / "fedgen-federation/config.toml").read_text()
    assert "# mini-batches a user trains on in a round\nlocal_steps = 7\n" in text
    settings = {key: about for key, about in RunConfig.model_fields.items() if key in tomllib.loads(text)}
    for name, about in settings.items():
        assert name == "options" or f"# {about.description}\n{name} = " in text
    assert not {"partition", "alpha", "train_fraction", "data_dir", "seeds"} & set(tomllib.loads(text))
    assert "[options.partition]" not in text
    layers = {"algorithms": ["feddistill+"], "preset": "tuned", "users": 2, "active": 2, "rounds": 100}
    given = resolve({**layers, "dataset": "of-the-sites", "local_steps": 7, "train_fraction": 0.5}, own={"dataset"})
    assert AppSettings(root / "fedgen-federation", root / "server").config == given, "what is left out has its default"


def test_the_commands_in_the_readme_are_all_given_in_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert init(monkeypatch, "my fed; true", *ARGUMENTS) == 0
    monkeypatch.chdir("my fed; true")
    text = Path("README.md").read_text()
    scripts = [line.split()[0] for line in text.splitlines() if line.startswith("    server/")]
    assert scripts == ["server/superlink.sh", "server/register.sh", "server/run.sh"]
    assert all(Path(script).exists() for script in scripts)
    commands = [
        shlex.split(line, comments=True) for line in text.splitlines() if line.startswith("    fedgen federate ")
    ]
    assert [words[2:4] for words in commands[:5]] == [
        [command, "."] for command in ("status", "add-site", "remove-site", "rotate-key", "renew-certificate")
    ]
    assert "After a reboot" in text
    assert "call run.sh in" in Path("server/fedgen-server@.service").read_text()
    assert "run.sh" not in Path("sites/north/fedgen-site@.service").read_text()
    monkeypatch.setattr(sys, "argv", ["fedgen", "federate", "add-site", ".", "east"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert (ended.value.code or 0, Path("sites/east/site.key").exists()) == (0, True)


@pytest.mark.parametrize("sites", [1, 2, 3])
def test_a_federation_in_which_nothing_can_be_compared_is_pointed_out(
    sites: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    names = [word for number in range(sites) for word in ("--site", f"site-{number}")]
    assert init(monkeypatch, tmp_path / "f", *names, *ARGUMENTS[4:]) == 0
    assert tomllib.loads((tmp_path / "f/server/server.toml").read_text())["min_sites"] == min(sites, 2)
    shown = " ".join(capsys.readouterr().out.split())
    assert ("min_sites in server.toml is 1: nothing that it sends is compared" in shown) == (sites == 1)
    assert ("of two updates nothing tells which is the odd one" in shown) == (sites == 2)
    assert ("neither a bound nor taking back a round protects the model" in shown) == (sites < 3)


def test_a_folder_that_is_not_empty_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "letter.txt").write_text("keep me")
    assert init(monkeypatch, tmp_path, *ARGUMENTS) == 2
    assert "is not empty" in capsys.readouterr().err
    assert [p.name for p in tmp_path.iterdir()] == ["letter.txt"]


def start_sh(tmp_path: Path, ends: str) -> tuple[Path, dict[str, str]]:
    """A site's start.sh, and an environment in which SuperNode is a stand-in that notes its calls and ends so."""
    folders = Folders(tmp_path)
    write_scripts(folders, ["north"], Endpoints("0.0.0.0:8000", 8001, "fed.example.org:8000"))
    (tmp_path / "bin").mkdir()
    stand_in = tmp_path / "bin/python3"
    stand_in.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/calls\n{ends}\n')
    stand_in.chmod(0o755)
    kept = {key: value for key, value in os.environ.items() if not key.startswith("FEDGEN_")}
    return folders.site("north") / "start.sh", {**kept, "PATH": f"{tmp_path}/bin:{os.environ['PATH']}"}


@pytest.mark.parametrize(("ends", "code"), [("exit 7", 7), ("exit 0", 1)])
def test_a_site_whose_supernode_ends_tries_again_says_so_and_gives_up(ends: str, code: int, tmp_path: Path) -> None:
    """Flower's SuperNode ends with 0, too, when SuperLink no longer knows its key: systemd would leave it so."""
    script, environment = start_sh(tmp_path, ends)
    tries = {**environment, "FEDGEN_PAUSE": "0", "FEDGEN_TRIES": "4"}
    done = subprocess.run(["/bin/sh", script], env=tries, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == code, done
    assert done.stdout.count(f"SuperNode ended with code {ends[-1]}; trying again in 0 seconds") == 3
    assert "not connected after 4 tries" in done.stdout
    calls = (tmp_path / "calls").read_text().splitlines()
    assert len(calls) == 4
    (call,) = set(calls)
    assert call.startswith(
        "-P -m fedgen.federate.site.supernode --superlink fed.example.org:8000 --root-certificates ca.crt"
        " --auth-supernode-private-key"
    )
    assert call.endswith(f'--port 9094 --node-config folder="{script.parent}"')


def test_pauses_between_tries_grow_to_a_minute_and_tries_last_for_more_than_an_hour(tmp_path: Path) -> None:
    """As while the server's operator has not registered the site's key yet."""
    script, environment = start_sh(tmp_path, "exit 1")
    (tmp_path / "bin/sleep").write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/pauses\n')
    (tmp_path / "bin/sleep").chmod(0o755)
    done = subprocess.run(["/bin/sh", script], env=environment, capture_output=True, check=False, timeout=600)
    assert done.returncode == 1
    pauses = list(map(int, (tmp_path / "pauses").read_text().split()))
    assert pauses[:4] == [3, 6, 9, 12]
    assert (max(pauses), pauses == sorted(pauses), sum(pauses) > 3600) == (60, True, True)


def test_what_supernode_says_of_itself_it_says_once(tmp_path: Path) -> None:
    script, environment = start_sh(tmp_path, "exit 0")
    subprocess.run(["/bin/sh", script, "--help"], env=environment, check=True, timeout=600)
    assert len((tmp_path / "calls").read_text().splitlines()) == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("ends", ["exec sleep 3000", "exit 0"])
def test_a_signal_ends_a_site_whether_it_runs_or_pauses(ends: str, number: signal.Signals, tmp_path: Path) -> None:
    script, environment = start_sh(tmp_path, ends)
    # A shell cannot trap what was ignored when it began, as SIGINT is in a background job: tests may be run in one.
    begin = "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL); os.execv('/bin/sh', sys.argv)"
    process = subprocess.Popen([sys.executable, "-c", begin, script], env={**environment, "FEDGEN_PAUSE": "3000"})
    try:
        deadline = time.monotonic() + 600
        while len(whole := process_tree([process.pid])) < 2 or "sleep" not in {p.name() for p in whole}:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        process.send_signal(number)
        assert process.wait(600) == 0, "it ends, and what it started with it"
        assert not any(map(is_running, whole))
    finally:
        kill(process_tree([process.pid]))
        process.wait(600)


def test_a_run_is_started_where_the_folder_was_moved_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Flower takes an absolute path of the certificate only; what somebody has added to its file stays."""
    moved = tmp_path / 'else where\'s "place"'
    assert init(monkeypatch, tmp_path / "federation", *ARGUMENTS) == 0
    (tmp_path / "federation").rename(moved)
    file = moved / "server/flower/config.toml"
    file.write_text(f'# mine\n{file.read_text()}\n[superlink.other]\naddress = "elsewhere:1"\n')
    (tmp_path / "bin").mkdir()
    flwr = tmp_path / "bin/flwr"
    flwr.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/called\n')
    flwr.chmod(0o755)
    path = os.pathsep.join([f"{tmp_path}/bin", str(Path(sys.executable).parent), os.environ["PATH"]])
    for _ in range(2):
        subprocess.run(["/bin/sh", moved / "server/run.sh"], env={**os.environ, "PATH": path}, check=True, timeout=600)
        connections = tomllib.loads(file.read_text())["superlink"]
        assert connections == {
            "default": "federation",
            "federation": {"address": "127.0.0.1:8001", "root-certificates": f"{moved}/server/ca.crt"},
            "other": {"address": "elsewhere:1"},
        }
        assert file.read_text().startswith("# mine\n")
    called = 'run ../fedgen-federation federation --run-config run="run"\n'
    assert (tmp_path / "called").read_text() == called * 2
    file.write_text("[superlink")
    failed = subprocess.run(
        ["/bin/sh", moved / "server/run.sh"], env={**os.environ, "PATH": path}, capture_output=True, text=True,
        check=False, timeout=600,
    )  # fmt: skip
    assert (failed.returncode, failed.stderr.startswith(f"error: {file} cannot be read")) == (2, True)
    assert (tmp_path / "called").read_text() == called * 2


def test_what_sites_say_of_themselves_is_pointed_out_where_it_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for preset, said in (("reference", True), ("tuned", False)):
        assert init(monkeypatch, tmp_path / preset, *ARGUMENTS, "--preset", preset) == 0
        assert ("up to 1,000,000 samples" in " ".join(capsys.readouterr().out.split())) == said


@pytest.mark.parametrize(
    ("algorithm", "options", "said"),
    [
        ("scaffold", [], True),
        ("scaffold", ["--aggregation", "multi-krum"], False),
        ("fedopt", ["--set", "fedopt.server_momentum=0", "--set", "fedopt.server=sgd"], False),
        ("fedavg", [], False),
    ],
)
def test_a_server_that_accumulates_is_pointed_out_where_nothing_defends_it(
    algorithm: str,
    options: list[str],
    said: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert init(monkeypatch, tmp_path / "f", *ARGUMENTS, "--algorithm", algorithm, *options) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert (f"The server of {algorithm} accumulates" in shown) == said
    assert ("--aggregation multi-krum defends" in shown) == said
