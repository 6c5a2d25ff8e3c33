"""The example of this folder's subject runs as it stands."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_use_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    import use_a_model

    assert use_a_model.main(tmp_path / "run", rounds=8) > 90
    shown = capsys.readouterr().out
    assert "predicted:" in shown
    assert (tmp_path / "run/export/fedgen_seed0.py").exists()
    del sys.modules["use_a_model"]
