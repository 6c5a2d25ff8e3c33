"""`fedgen reproduce` as a user meets it, on a small experiment of its own and on the shipped results."""

import json
from pathlib import Path

import numpy as np
import pytest

from command import call as _fedgen
from fedgen.errors import FedgenError
from fedgen.grid import runner
from fedgen.grid.store import Store
from fedgen.paper import spec
from fedgen.paper.markdown_page import page
from fedgen.paper.results import all_results, results_like
from fedgen.paper.spec import Experiment, experiment, read_experiment
from helpers import SMALL, small_data
from reproduction_folder import reproduce

ROOT = Path(__file__).parents[2]


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Experiment:
    """Two algorithms on two divisions of small data, and a row whose data are not there."""
    data = small_data()
    np.savez(tmp_path / "blobs.npz", x_train=data.x_train, y_train=data.y_train, x_test=data.x_test, y_test=data.y_test)
    settings = {**SMALL, "dataset": str(tmp_path / "blobs.npz")}
    lines = "\n".join(f"{json.dumps(key)} = {json.dumps(value)}" for key, value in settings.items())
    rows = "\n".join(
        f'[[rows]]\nname = "{name}"\nlabel = "{name}"\n{more}'
        for name, more in (
            ("even", "settings.alpha = 10.0\npublished.fedavg = [90.0, 1.0]"),
            ("uneven", "settings.alpha = 0.3"),
            ("absent", 'settings.dataset = "absent.npz"'),
        )
    )
    figures = '[[figures]]\nname = "f"\ntitle = "Even"\nrows = ["even"]'
    text = (
        'title = "Small"\nabout = "A test."\nquick_rows = ["even"]\n'
        f'[settings]\n{lines}\n[[columns]]\nalgorithm = "fedavg"\n[[columns]]\nalgorithm = "fedgen"\n{rows}\n{figures}'
    )
    one = read_experiment("small", text)
    monkeypatch.setattr(spec, "experiment", lambda name: one if name == "small" else experiment(name))
    return one


def test_a_table_is_made_and_made_again_without_computing(
    small: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "results"
    assert _fedgen(monkeypatch, "reproduce", "small", "--out", out) == 1  # some cells cannot be computed
    shown = capsys.readouterr()
    table = json.loads((out / "small.paper.json").read_text())
    states = {name: [entry["status"] for entry in row.values()] for name, row in table["cells"].items()}
    assert states == {"even": ["done", "done"], "uneven": ["done", "done"], "absent": ["failed", "failed"]}
    assert f"{table['cells']['even']['fedgen']['mean']:.2f}" in shown.out
    assert "90.00 ±1.00" in shown.out
    assert "2 cells failed" in shown.err
    assert (out / "figures/small.paper.png").stat().st_size > 0

    monkeypatch.setattr(runner, "compute", lambda *_, **__: pytest.fail("computed again"))
    assert _fedgen(monkeypatch, "reproduce", "small", "--row", "even", "--out", out) == 0
    assert list(json.loads((out / "small.paper.json").read_text())["cells"]) == ["even", "uneven"]
    assert _fedgen(monkeypatch, "reproduce", "small", "--no-compute", "--out", out) == 0
    again = json.loads((out / "small.paper.json").read_text())
    assert again["cells"]["even"] == table["cells"]["even"]
    assert again["cells"]["absent"]["fedavg"]["status"] == "missing"


def test_quick_is_marked_and_kept_apart(
    small: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "results"
    assert _fedgen(monkeypatch, "reproduce", "small", "--quick", "--rounds", "2", "--out", out) == 0
    assert "preset paper, quick, 2 rounds: a look, not a result" in capsys.readouterr().out
    assert not (out / "small.paper.json").exists()
    table = json.loads((out / "small.paper.quick.rounds2.json").read_text())
    assert table["quick"] is True
    assert list(table["cells"]) == ["even"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["overvew"], "did you mean 'overview'?"),
        (["overview", "--row", "mnist-0.2"], "unknown row of overview 'mnist-0.2'"),
        (["ablation", "--preset", "reference"], "experiment ablation has no preset 'reference'; valid: paper"),
        (["overview", "--part", "3/2"], "--part is K/N with K from 1 to N, for example 2/4, not '3/2'"),
        (["page", "--out", "nowhere"], "nowhere holds no results"),
    ],
)
def test_bad_input_is_answered_in_a_sentence(
    arguments: list[str], message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _fedgen(monkeypatch, "reproduce", *arguments) == 2
    shown = capsys.readouterr().err
    assert message in " ".join(shown.split())
    assert "Traceback" not in shown


def test_the_list_names_every_experiment(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert _fedgen(monkeypatch, "reproduce", "list") == 0
    shown = capsys.readouterr().out
    for name in ("overview", "partial-sharing", "prototype", "ablation", "controls"):
        assert name in shown


def test_the_page_has_every_number_of_its_tables(tmp_path: Path) -> None:
    """Ours, the published and the authors' metric, of two presets apart."""
    for preset in ("paper", "reference"):
        reproduce(tmp_path, "overview", rows=("mnist-0.1",), preset=preset)
    tables = all_results(tmp_path)
    text = page(tmp_path, tmp_path)
    assert text.count("\n## ") == 2
    for table in tables:
        section = text.split(f"preset {table['preset']})\n\n")[1].split("\n## ")[0]
        for entry in table["cells"]["mnist-0.1"].values():
            assert f"{entry['mean']:.2f} ±{entry['std']:.2f} ({entry['published']['mean']:.2f}" in section
            assert f"{entry['metrics']['authors']['mean']:.2f}" in section


def test_the_shipped_page_is_made_of_the_shipped_results() -> None:
    folder = ROOT / "results"
    written = (ROOT / "docs/results.md").read_text(encoding="utf-8")
    assert written == page(folder, ROOT / "docs"), "make it again: fedgen reproduce page --page docs/results.md"


def test_the_shipped_tables_are_made_of_the_shipped_cells() -> None:
    store = Store(ROOT / "results")
    for table in all_results(ROOT / "results"):
        for row in table.get("cells", {}).values():
            for entry in row.values():
                path = store.cells / f"{entry['id']}.json"
                assert path.exists() == (entry["status"] in ("done", "diverged")), (table["experiment"], entry["id"])
                if entry["status"] == "done":
                    cell = json.loads(path.read_text())
                    kinds = [
                        r.get("headline", "accuracy" if r["accuracy"] is not None else "accuracy_users")
                        for r in cell["results"]
                    ]
                    own = [r[kind] for r, kind in zip(cell["results"], kinds, strict=True)]
                    assert entry["metrics"]["accuracy"]["mean"] == pytest.approx(np.mean(own), abs=1e-3)


def test_a_folder_without_results_is_said(tmp_path: Path) -> None:
    with pytest.raises(FedgenError, match="holds no results; make some with"):
        page(tmp_path, tmp_path)


def test_the_first_table_is_made_of_the_shipped_results() -> None:
    head = {"experiment": "controls", "preset": "paper", "quick": False, "overrides": {}}
    table = results_like(ROOT / "results", head)
    assert table is not None
    page = (ROOT / "docs/reading.md").read_text(encoding="utf-8")
    columns = {
        "FedAvg, `paper`": "fedavg",
        "FedGen, `paper`": "fedgen",
        "FedGen, `reference`": "fedgen-reference",
        "FedAvg, `tuned`": "fedavg-tuned",
        "FedGen, `tuned`": "fedgen-tuned",
    }
    for label, column in columns.items():
        entries = [table["cells"][f"mnist-{alpha}"][column] for alpha in ("0.05", "0.1", "1", "10")]
        row = " | ".join(f"{entry['mean']:.2f} ± {entry['std']:.2f}" for entry in entries)
        assert f"| {label} | {row} |" in page
