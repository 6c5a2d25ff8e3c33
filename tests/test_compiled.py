"""The cache of compiled programs: what two processes write at once, and what one left half written."""

import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax._src import compilation_cache

from fedgen.compiled import use_whole_entries

# Writes one key again and again, under the eyes of another process that does the same.
HAMMER = """
import sys
from jax._src import compilation_cache
from fedgen.compiled import use_whole_entries
assert use_whole_entries()
cache, _ = compilation_cache.get_file_cache(sys.argv[1])
value = compilation_cache.compress_executable(bytes(range(256)) * 20_000)
large = value + b"x" * 5_000_000  # what follows the compressed stream is not read; long enough to be seen half written
for _ in range(60):
    cache.put("key", large)
    found = (cache.path / "key-cache").read_bytes()
    assert len(found) == len(large), f"an entry of {len(found)} bytes"
"""


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """An empty cache that keeps every program, for this process."""
    names = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")
    before = {name: getattr(jax.config, name) for name in names}
    jax.config.update(names[0], str(tmp_path))
    jax.config.update(names[1], 0.0)
    compilation_cache.reset_cache()
    assert use_whole_entries()
    yield tmp_path
    for name, value in before.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()


def _compute() -> float:
    jax.clear_caches()
    return float(jax.jit(lambda x: (jnp.sin(x) * 3).sum())(jnp.arange(7.0)))


def test_two_processes_never_see_half_an_entry(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HAMMER, str(tmp_path)]
    processes = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    said = [process.communicate()[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], said
    assert [file.name for file in tmp_path.iterdir()] == ["key-cache"]


def test_a_damaged_entry_is_compiled_anew_without_a_warning(folder: Path) -> None:
    expected = _compute()
    whole = {file.name: file.read_bytes() for file in folder.glob("*-cache")}
    assert whole
    for name, content in whole.items():
        (folder / name).write_bytes(content[: len(content) // 2])
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # JAX warns of an entry that it cannot read
        assert _compute() == expected
    for name in whole:
        assert compilation_cache.decompress_executable((folder / name).read_bytes())


def test_a_write_that_fails_leaves_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache, _ = compilation_cache.get_file_cache(str(folder))

    def full(*_: Any) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(OSError, match="no space left"):
        cache.put("key", b"value")
    assert not list(folder.iterdir())


def test_another_cache_of_jaxs_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    other = SimpleNamespace(get_file_cache=lambda path: None)  # of a later JAX, say
    monkeypatch.setattr(jax._src, "compilation_cache", other)
    monkeypatch.setitem(sys.modules, "jax._src.compilation_cache", other)
    assert not use_whole_entries()
    assert vars(other).keys() == {"get_file_cache"}
