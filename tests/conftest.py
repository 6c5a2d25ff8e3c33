"""Two CPU devices for all tests, and compiled programs kept for the session."""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")  # with "cuda" the tests of the GPU's kernels compile them
os.environ["JAX_NUM_CPU_DEVICES"] = "2"

import jax
import pytest

from bounded import pytest_runtest_protocol  # noqa: F401 (a hook of pytest)


@pytest.fixture(scope="session", autouse=True)
def compilation_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    jax.config.update("jax_compilation_cache_dir", str(tmp_path_factory.getbasetemp().parent / "compiled"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
