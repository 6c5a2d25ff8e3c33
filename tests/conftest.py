"""Two CPU devices for all tests. What one of them compiled, the others and the processes they start need not.

Most of a test's time is compiling, so that programs are compiled without the compiler's optimisations, except those of
tests marked `optimised`.
"""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")  # with "cuda" the tests of the GPU's kernels compile them
os.environ["JAX_NUM_CPU_DEVICES"] = "2"
os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"

from collections.abc import Iterator

import jax
import pytest

from bounded import pytest_runtest_protocol  # noqa: F401 (a hook of pytest)
from fedgen.compiled import use_whole_entries


@pytest.fixture(scope="session", autouse=True)
def compilation_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder, seconds = str(tmp_path_factory.getbasetemp().parent / "compiled"), 0.1
    jax.config.update("jax_compilation_cache_dir", folder)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", seconds)
    use_whole_entries()
    # and for the processes that tests start
    os.environ.update(JAX_COMPILATION_CACHE_DIR=folder, JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS=str(seconds))


@pytest.fixture(autouse=True)
def optimised(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """For a test that is marked so: programs, and those of processes that it starts, compiled as users' are."""
    marked = request.node.get_closest_marker("optimised") is not None
    if marked:
        monkeypatch.setenv("JAX_DISABLE_MOST_OPTIMIZATIONS", "0")
        jax.config.update("jax_disable_most_optimizations", False)
    yield
    if marked:
        jax.config.update("jax_disable_most_optimizations", True)
