"""Two CPU devices for all tests. What one of them compiled, the others and the processes they start need not.

Most of a test's time is compiling, so that programs are compiled without the compiler's optimisations, except those of
tests marked `optimised`. Tests marked `waits` come first: while one worker waits for their processes, others compute.
"""

import gc
import os
from collections.abc import Iterator
from importlib import import_module
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")  # with "cuda" the tests of the GPU's kernels compile them
os.environ["JAX_NUM_CPU_DEVICES"] = "2"
os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"

import jax
import pytest

from bounded import pytest_runtest_protocol  # noqa: F401 (a hook of pytest)
from fedgen.compiled import use_whole_entries

# XLA's emitters of fused operations make faster programs; without them compiling takes half as long.
PLAIN = ("xla_cpu_use_fusion_emitters", "False")
FLAGS = os.environ.get("XLA_FLAGS", "").replace(f"--{'='.join(PLAIN)}", "").strip()


def compile_plainly() -> None:
    """Let JAX compile quickly where it is set not to optimise much, here and in processes that tests start."""
    compiler: Any = import_module("jax._src.compiler")
    usual = compiler.get_compile_options

    def options(*arguments: Any, **named: Any) -> Any:
        made = usual(*arguments, **named)
        if made.executable_build_options.debug_options.xla_llvm_disable_expensive_passes:  # as that setting asks
            made.env_option_overrides = [*made.env_option_overrides, PLAIN]
        return made

    compiler.get_compile_options = options
    os.environ["XLA_FLAGS"] = FLAGS  # also in a worker of xdist, which has the variable of the process that started it
    jax.devices()  # after which this process no longer looks at the variable
    os.environ["XLA_FLAGS"] = f"{FLAGS} --{'='.join(PLAIN)}"


compile_plainly()

# Tracing makes many objects and few cycles. What is there after collecting, PyTorch and Flower included, stays.
gc.set_threshold(50_000)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put those that wait first, in one worker's share; what it does not come to is taken from its end by others."""
    items.sort(key=lambda item: item.get_closest_marker("waits") is None)


def pytest_collection_finish() -> None:
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def compilation_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    own = str(tmp_path_factory.getbasetemp().parent / "compiled")
    folder, seconds = os.environ.get("FEDGEN_TEST_CACHE", own), 0.0
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
        monkeypatch.setenv("XLA_FLAGS", FLAGS)
        jax.config.update("jax_disable_most_optimizations", False)
    yield
    if marked:
        jax.config.update("jax_disable_most_optimizations", True)
