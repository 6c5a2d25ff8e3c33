"""The result of `fedgen.simulate`: a dictionary with models; callbacks, resuming, the same folder as the command's."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedgen
from fedgen.cli.typed_settings import PLACE, typed_settings
from fedgen.config import RunConfig
from fedgen.errors import FedgenError
from fedgen.runs.folder import RunFolder
from fedgen.settings import Settings
from use_runs import named_data, small_run


def test_a_result_is_the_dictionary_of_the_summary(whole: fedgen.Result) -> None:
    assert isinstance(whole, dict)
    written = RunFolder(Path(str(whole.path))).summary()
    assert json.loads(json.dumps(whole)) == written
    assert {row["algorithm"]: row["accuracy"] for row in whole["results"]}.keys() == {"fedgen", "fedavg"}
    assert repr(whole).startswith("<result on blobs: fedgen ")
    assert whole.finished


def test_the_folder_is_the_commands(whole: fedgen.Result) -> None:
    names = {file.name for file in Path(str(whole.path)).iterdir()}
    assert names == {
        "config.toml", "metrics.jsonl", "summary.json", "labels.json", "data.json", "report.html", "curves.png",
        "curves.svg", "checkpoint.safetensors", "models", "timing.json",
    }  # fmt: skip


def test_models_are_there_without_a_folder(whole: fedgen.Result) -> None:
    result = small_run(None, "fedgen", lr=0.1)
    x = named_data().x_test
    np.testing.assert_array_equal(result.model().logits(x), whole.model("fedgen", seed=0).logits(x))
    assert result.generator().sample(3).features.shape == (3, 6)
    assert result.path is None
    with pytest.raises(FedgenError, match="no best models"):
        result.model(best=True)


def test_a_table_for_pandas_and_a_page_for_a_notebook(whole: fedgen.Result) -> None:
    pandas = pytest.importorskip("pandas")
    table = whole.to_pandas()
    assert isinstance(table, pandas.DataFrame)
    assert len(table) == 12
    means = table.groupby("algorithm")["score"].mean()
    by_hand = np.mean([r["accuracy"] for r in whole.metrics if r["algorithm"] == "fedgen"])
    assert means["fedgen"] == pytest.approx(by_hand)
    assert list(whole.to_pandas("results")["seed"]) == [0, 1, 0, 1]
    assert len(fedgen.load(whole.path).to_pandas()) == 12
    html = whole._repr_html_()
    assert "<td>fedavg</td>" in html
    assert "data:image/png;base64," in html
    assert whole.plot().axes[0].get_xlabel() == "round"


def test_without_pandas_a_sentence_says_so(whole: fedgen.Result, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(FedgenError, match="pip install pandas"):
        whole.to_pandas()


def test_callbacks_see_each_evaluation_and_can_stop() -> None:
    seen = []

    def look(record: dict[str, Any]) -> bool:
        seen.append((record["algorithm"], record["round"]))
        return record["algorithm"] == "fedgen" and record["round"] == 2

    result = small_run(None, "fedgen", "fedavg", rounds=3, callbacks=look)
    assert seen == [("fedgen", 1), ("fedgen", 2), ("fedavg", 1), ("fedavg", 2), ("fedavg", 3)]
    stopped, through = result["results"]
    assert (stopped["rounds"], stopped["stopped_at"]) == (2, 2)
    assert "stopped_at" not in through
    assert [r.get("stopped") for r in result.metrics] == [None, "callback", None, None, None]
    assert result.model("fedgen").round == 2
    shorter = small_run(None, "fedgen", rounds=2)
    x = named_data().x_test
    np.testing.assert_array_equal(result.model("fedgen").logits(x), shorter.model().logits(x))


@pytest.mark.slow
def test_a_run_that_was_stopped_as_a_whole_is_resumed(whole: fedgen.Result, tmp_path: Path) -> None:
    def stop(record: dict[str, Any]) -> None:
        if (record["algorithm"], record["seed"], record["round"]) == ("fedgen", 1, 2):
            raise fedgen.StopRun

    settings: dict[str, Any] = {"seeds": 2, "lr": 0.1}
    first = small_run(tmp_path / "run", "fedgen", "fedavg", callbacks=[stop], **settings)
    assert not first.finished
    assert [(r["algorithm"], r["seed"]) for r in first["results"]] == [("fedgen", 0), ("fedgen", 1)]
    assert first["results"][1]["accuracy"] is None, "a score of fewer rounds is not comparable"
    assert first.model("fedgen", seed=0).round == 3
    with pytest.raises(FedgenError, match="has not come so far"):
        first.model("fedavg")
    with pytest.raises(FedgenError, match="holds a run already"):
        small_run(tmp_path / "run", "fedgen", "fedavg", **settings)
    with pytest.raises(FedgenError, match="needs out="):
        small_run(None, "fedgen", resume=True)
    with pytest.raises(FedgenError, match="other settings"):
        small_run(tmp_path / "run", "fedgen", "fedavg", seeds=2, lr=0.2, resume=True)
    second = small_run(tmp_path / "run", "fedgen", "fedavg", resume=True, **settings)
    assert second.finished
    assert (tmp_path / "run/metrics.jsonl").read_bytes() == (Path(str(whole.path)) / "metrics.jsonl").read_bytes()
    assert second.metrics == whole.metrics
    for model in (Path(str(whole.path)) / "models").iterdir():
        assert (tmp_path / "run/models" / model.name).read_bytes() == model.read_bytes()


def test_progress_is_shown_where_it_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    small_run(None, "fedavg", rounds=1)
    assert capsys.readouterr().err == ""
    small_run(None, "fedavg", rounds=1, progress=True)
    assert "1/1 rounds" in capsys.readouterr().err


def test_the_typed_settings_are_the_declared_ones() -> None:
    """`python -m fedgen.cli.typed_settings` makes the module again."""
    assert PLACE.read_text() == typed_settings()
    declared = set(RunConfig.model_fields) - {"algorithms", "model", "plugins", "options"}
    assert set(Settings.__annotations__) == declared


@pytest.mark.slow
def test_a_type_checker_knows_the_settings(tmp_path: Path) -> None:
    """With the settings and the cache of `make lint`, which has read what the package imports."""
    root = Path(__file__).parents[2]
    assert (root / "src/fedgen/py.typed").exists(), "or a user's type checker would not look"
    file = tmp_path / "uses.py"
    file.write_text(
        'import fedgen\nfedgen.simulate("fedavg", rounds=3, share="predictor")\n'
        'fedgen.simulate("fedavg", rounds="three")\nfedgen.simulate("fedavg", round=3)\n'
    )
    command = [sys.executable, "-m", "mypy", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=root, check=False)
    wrong = [line.split(":")[1] for line in done.stdout.splitlines() if ": error:" in line]
    assert wrong == ["3", "4"], done.stdout
