"""The command line, called within the test's process."""

import sys
from pathlib import Path

import pytest

from fedgen.cli.main import main


def call(monkeypatch: pytest.MonkeyPatch, *arguments: str | Path) -> int:
    """Run `fedgen ARGUMENTS` on a wide terminal, and give its exit code."""
    monkeypatch.setattr(sys, "argv", ["fedgen", *map(str, arguments)])
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)
