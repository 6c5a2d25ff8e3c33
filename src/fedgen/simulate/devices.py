"""How JAX uses this machine: one CPU device for each core, and a compilation cache between processes."""

import os

import jax

from fedgen.files import cache_folder


def use_machine_well() -> None:
    """Set JAX up for the simulator. Call it before the first computation; later it raises RuntimeError.

    A CPU device for each core lets a cohort's clients train side by side; compiled programs are kept in the
    user's cache folder, so that the next process starts at once.
    """
    if not os.environ.get("JAX_NUM_CPU_DEVICES") and "device_count" not in os.environ.get("XLA_FLAGS", ""):
        jax.config.update("jax_num_cpu_devices", available_cores())
    if not jax.config.jax_compilation_cache_dir:  # type: ignore[attr-defined]
        jax.config.update("jax_compilation_cache_dir", str(cache_folder() / "compiled"))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)


def available_cores() -> int:
    """The cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
