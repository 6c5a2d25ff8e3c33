"""How JAX uses this machine."""

import threading
from contextlib import suppress

import pytest

from fedgen.simulator import devices


@pytest.fixture
def returned(monkeypatch: pytest.MonkeyPatch) -> threading.Semaphore:
    """Counts how often freed memory was returned."""
    count = threading.Semaphore(0)

    class Library:
        @staticmethod
        def malloc_trim(keep: int) -> None:
            count.release()

    monkeypatch.setattr(devices.ctypes, "CDLL", lambda name: Library)
    return count


def test_freed_memory_is_returned_meanwhile_and_no_longer(
    returned: threading.Semaphore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "TRIM_SECONDS", 0.001)
    before = threading.active_count()
    with suppress(KeyError), devices.returning_freed_memory():
        assert returned.acquire(timeout=600)
        assert returned.acquire(timeout=600)
        raise KeyError  # as when compiling fails
    assert threading.active_count() == before


def test_what_was_freed_last_is_returned_at_the_end(
    returned: threading.Semaphore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "TRIM_SECONDS", 3600)
    with devices.returning_freed_memory():
        assert not returned.acquire(blocking=False)
    assert returned.acquire(blocking=False)


def test_a_library_that_cannot_return_memory_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices.ctypes, "CDLL", lambda name: object())
    before = threading.active_count()
    with devices.returning_freed_memory():
        assert threading.active_count() == before
