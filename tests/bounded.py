"""No test runs for ever: one that takes too long fails, and what it started is ended on the way out."""

import faulthandler
import os
import signal
from collections.abc import Generator
from typing import Any

import pytest

# Seconds for one test with its fixtures, for one that hangs: no test is so slow, whatever else the machine does.
LIMIT = int(os.environ.get("FEDGEN_TEST_LIMIT", "3600"))
_STUCK = 60  # seconds more until a process that does not even hear the alarm is ended


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol() -> Generator[None, Any, Any]:
    def late(number: int, frame: Any) -> None:
        pytest.fail(f"it took longer than {LIMIT} seconds")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(LIMIT)
    faulthandler.dump_traceback_later(LIMIT + _STUCK, exit=True)
    try:
        return (yield)
    finally:
        signal.alarm(0)
        faulthandler.cancel_dump_traceback_later()
        signal.signal(signal.SIGALRM, before)
