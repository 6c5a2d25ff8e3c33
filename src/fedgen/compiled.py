"""The cache of compiled programs between processes: JAX's, with entries that are written atomically."""

import contextlib
import os
import threading
from importlib import import_module
from pathlib import Path
from typing import Any

import jax

from fedgen.files import cache_folder


def use_compilation_cache(least_seconds: float) -> None:
    """Keep what takes at least so long to compile in the user's cache folder, unless JAX is configured otherwise."""
    if not jax.config.jax_compilation_cache_dir:  # type: ignore[attr-defined]
        jax.config.update("jax_compilation_cache_dir", str(cache_folder() / "compiled"))
    if "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS" not in os.environ:
        jax.config.update("jax_persistent_cache_min_compile_time_secs", least_seconds)
    use_whole_entries()


def use_whole_entries() -> bool:
    """Let JAX's cache write entries whole and drop damaged ones; False where this JAX's cache is another.

    JAX writes an entry in place, so that a second process reads half of it, and a process that is killed leaves a half
    that every later one warns of. The class is private to JAX: where it is not as expected, JAX's own cache stays.
    """
    try:
        module: Any = import_module("jax._src.compilation_cache")
        cache, decompress = module.LRUCache, module.decompress_executable
        if getattr(cache, "has_whole_entries", False):
            return True
        module.LRUCache = _with_whole_entries(cache, decompress)
        module.reset_cache()  # one that was made before is of JAX's own class
    except (ImportError, AttributeError, TypeError):
        return False
    return True


def _with_whole_entries(cache: Any, decompress: Any) -> Any:
    class WholeEntries(cache):  # type: ignore[misc]
        """JAX's cache of files, whose entries are written under a temporary name and renamed."""

        has_whole_entries = True

        def get(self, key: str) -> bytes | None:
            value = super().get(key)
            if value is None:
                return None
            try:
                decompress(value)
            except Exception:  # each way of compressing has its own error
                with contextlib.suppress(OSError):
                    (Path(self.path) / f"{key}-cache").unlink()
                return None  # so that it is compiled and kept anew
            return value

        def put(self, key: str, value: bytes) -> None:
            # With a limit to its size the cache has a lock; elsewhere than in a folder there is no renaming.
            folder = Path(self.path)
            if not key or self.eviction_enabled or not folder.is_dir():
                return super().put(key, value)
            temporary = folder / f"{key}.{os.getpid()}.{threading.get_ident()}.tmp"
            try:
                temporary.write_bytes(value)
                temporary.replace(folder / f"{key}-cache")
            finally:
                temporary.unlink(missing_ok=True)

    return WholeEntries
