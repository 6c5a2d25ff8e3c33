"""The terminal's table shows the summary's numbers, and fits."""

import pytest
from rich.console import Console

from fedgen.report.tables import comparison

SUMMARY = {
    "config": {"dataset": "mnist", "partition": "dirichlet", "alpha": 0.1, "preset": "paper", "score": "accuracy"},
    "table": [
        {"algorithm": name, "mean": 93.8, "std": 0.5, "diff_to_fedavg": diff, "diff_ci95": interval}
        for name, diff, interval in (("fedavg", None, None), ("feddistill+", -1.25, [-59.71, -55.54]))
    ],
    "results": [
        {
            "algorithm": name, "accuracy": 93.8, "accuracy_users": None, "accuracy_seen_labels": 94.4,
            "bytes_up": 1_000_000, "bytes_down": 2_000_000, "seconds_train": 31.4,
        }
        for name in ("fedavg", "feddistill+")
    ],
}  # fmt: skip


def _shown(width: int) -> str:
    console = Console(width=width)
    with console.capture() as capture:
        console.print(comparison(SUMMARY, console))
    return capture.get()


def test_a_wide_terminal_shows_every_column_that_says_something() -> None:
    text = _shown(120)
    for expected in ("93.80", "-1.25", "-59.71 … -55.54", "94.40", "3.00", "31"):
        assert expected in text
    assert "users' own" not in text, "nobody has such a score"


@pytest.mark.parametrize("width", [60, 80])
def test_a_narrow_terminal_shows_fewer_columns_and_none_torn(width: int) -> None:
    text = _shown(width)
    assert "feddistill+" in text
    assert "-59.71 … -55.54" in text
    assert max(map(len, text.splitlines())) <= width
    assert "…" not in text.replace(" … ", "")
