"""The wheel and the source distribution: what is in them, and that the wheel runs where nothing else is installed."""

import os
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest

import fedgen

ROOT = Path(__file__).parents[1]
LARGEST = 15_000_000  # bytes of the wheel


def _run(command: Sequence[object], folder: Path) -> str:
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "JAX"))}
    done = subprocess.run(
        list(map(str, command)), capture_output=True, text=True, cwd=folder, env=clean, timeout=1200, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_packages_as_a_release_makes_them(tmp_path: Path) -> None:
    """One test, since building takes longer than all checks: the wheel is made from the source distribution."""
    _run([sys.executable, "-m", "build", "--outdir", tmp_path / "dist", ROOT], tmp_path)
    (wheel,), (archive,) = (tmp_path / "dist").glob("*.whl"), (tmp_path / "dist").glob("*.tar.gz")
    _check_wheel(wheel)
    _check_archive(archive)
    _check_run(wheel, tmp_path)


def _check_wheel(wheel: Path) -> None:
    """It has what runs and nothing else."""
    assert wheel.name == f"fedgen-{fedgen.__version__}-py3-none-any.whl"
    assert wheel.stat().st_size < LARGEST
    names = set(zipfile.ZipFile(wheel).namelist())
    source = {path.relative_to(ROOT / "src").as_posix() for path in (ROOT / "src/fedgen").rglob("*") if path.is_file()}
    assert {name for name in source if "__pycache__" not in name} == {n for n in names if n.startswith("fedgen/")}
    assert {name.split("/")[0] for name in names} == {"fedgen", f"fedgen-{fedgen.__version__}.dist-info"}


def _check_archive(archive: Path) -> None:
    """It has tests and documentation, but no results."""
    with tarfile.open(archive) as content:
        names = {name.partition("/")[2] for name in content.getnames()}
    for needed in ("README.md", "LICENSE", "CHANGELOG.md", "mkdocs.yml", "docs/index.md", "tests/test_docs.py"):
        assert needed in names
    assert {"docs/tutorials/own_data.py", "examples/own_model.py", "tools/site/hooks.py"} <= names
    assert not [name for name in names if name.startswith(("results/", "site/", "runs/", ".venv/"))]
    assert archive.stat().st_size < LARGEST


def _check_run(wheel: Path, tmp_path: Path) -> None:
    """It runs where nothing else is installed."""
    _run([sys.executable, "-m", "venv", tmp_path / "empty"], tmp_path)
    binaries = tmp_path / "empty" / ("Scripts" if os.name == "nt" else "bin")
    _run([binaries / "python", "-m", "pip", "install", "--quiet", "--no-compile", wheel], tmp_path)
    assert _run([binaries / "fedgen", "--version"], tmp_path).strip() == f"fedgen {fedgen.__version__}"
    assert "scaffold" in _run([binaries / "fedgen", "list"], tmp_path)
    tiny = "--algorithm fedavg --rounds 2 --eval-every 1 --users 4 --active 2 --local-steps 2 --model mlp --out first"
    _run([binaries / "fedgen", "run", *tiny.split(), "--set", "model.hidden=4"], tmp_path)
    assert (tmp_path / "first/report.html").exists()
