"""What the pictures of a run and of a partition say; an SVG names its texts in comments."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

from fedgen.bench import show
from fedgen.paper.figures import draw
from fedgen.report.figures import learning_curves
from fedgen.report.partitions import _ticks, bubbles
from reproduction_folder import reproduce
from run_folders import run_folder, summary_of


def _texts(svg: Path) -> list[str]:
    return re.findall(r"<!-- (.*?) -->", svg.read_text())


@pytest.mark.parametrize(("score", "above"), [("accuracy", 0), ("seen", 1), ("authors", 1), ("matching", 2)])
def test_the_curves_are_those_of_the_score(tmp_path: Path, score: str, above: int) -> None:
    path = run_folder(tmp_path / "run", score=score)
    texts = _texts(learning_curves(summary_of(path), path)[1])
    for name, level in (("fedavg", 80), ("fedgen", 84)):  # and half a point, the mean of seeds 0 and 1
        assert f"{name}  {level + 0.5 + above:.1f}" in texts
    assert {0: "fedavg", 1: "accuracy, labels a user trained on", 2: "accuracy, each user's own label distribution"}[
        above
    ] in " ".join(texts)


def test_the_curves_of_the_authors_score_are_of_their_slices_where_these_were_measured(tmp_path: Path) -> None:
    path = run_folder(tmp_path / "run", score="authors")
    records = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    lines = [json.dumps({**r, "accuracy_authors": 50.0}) for r in records]
    (path / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    texts = _texts(learning_curves(summary_of(path), path)[1])
    assert "fedavg  50.0" in texts
    assert "accuracy, the authors' slices" in " ".join(texts)


def test_users_and_labels_are_whole_numbers(tmp_path: Path) -> None:
    for users, labels in ((6, 4), (20, 10), (2, 2), (50, 62)):
        _, svg = bubbles({"even": np.ones((users, labels), int)}, tmp_path, f"{users}")
        ticks = [text for text in _texts(svg) if re.fullmatch(r"[−\d.]+", text)]
        assert 4 <= len(ticks) <= 20
        assert not set(ticks) - set(map(str, range(max(users, labels))))
    assert list(_ticks(20)) == [*range(0, 20, 2)]
    assert list(_ticks(62)) == [0, 10, 20, 30, 40, 50, 60]


def test_no_legend_of_the_benchmark_lies_over_its_lines() -> None:
    curve = {"size": [1, 2, 4], "timing": [{"seconds": s} for s in (1.0, 2.0, 4.0)], "exponent": 1.0}
    report = {
        "scaling": dict.fromkeys(("users", "cohort", "runs", "steps"), curve),
        "rounds": {"fedavg": {"seconds": 0.1}, "pytorch": {"seconds": 0.7}},
        "roofline": {"seconds": 0.02},
    }
    for panel in (show._curves, show._bars):
        figure = Figure(figsize=(6.4, 4.2), layout="constrained")
        axes = figure.add_subplot()
        panel(axes, report)
        figure.draw_without_rendering()
        legend, frame = axes.get_legend().get_window_extent(), axes.get_window_extent()
        assert legend.y1 < frame.y0
        assert legend.y0 >= 0
        assert not legend.overlaps(axes.xaxis.get_tightbbox())


def test_what_lies_below_a_figure_is_named_outside_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results = reproduce(tmp_path, "heterogeneity")
    for panel in results["figures"]:
        for one in panel["series"]:
            one["y"] = [90.0 for _ in one["y"]]
            one["published"] = []
        for one in panel["series"][1:]:  # more than a line holds
            one["y"] = [10.0 for _ in one["y"]]
    drawn = []
    monkeypatch.setattr("fedgen.paper.figures.save_figure", lambda figure, *_: drawn.append(figure) or [])
    draw(results, tmp_path)
    shown = [axes for axes in drawn[0].axes if axes.get_visible()]
    assert shown
    for axes in shown:
        assert axes.get_xlabel().endswith("FedGen\N{NO-BREAK SPACE}10)")
        assert "(below the frame:" in axes.get_xlabel()
        assert max(map(len, axes.get_xlabel().splitlines())) <= 40
        assert not axes.texts


def frame_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, curves: list[list[float]], **more: object
) -> tuple[float, float, str]:
    series = [
        {"name": name, "label": name, "x": [10, 20, 30, 40, 50, 60], "y": ys, "low": ys, "high": ys}
        for name, ys in zip(("fedavg", "fedgen", "fedprox"), curves, strict=False)
    ]
    panel = {"title": "", "kind": kind, "x_label": "round", "y_label": "", "log": False, "series": series, **more}
    columns = [{"name": one["name"], "label": one["label"], "algorithm": one["name"]} for one in series]
    head = {"experiment": "x", "title": "x", "preset": "paper", "quick": False, "overrides": {}}
    drawn = []
    monkeypatch.setattr("fedgen.paper.figures.save_figure", lambda figure, *_: drawn.append(figure) or [])
    draw({**head, "columns": columns, "figures": [panel]}, tmp_path)
    (axes,) = drawn[0].axes
    return (*axes.get_ylim(), axes.get_xlabel())


def test_a_figure_of_curves_shows_what_they_do_after_their_first_third(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bottom, top, label = frame_of(
        tmp_path, monkeypatch, "curves", [[20.0, 90.0, 95.0, 97.0, 98.0, 99.9], [10.0, 88.0, 94.0, 96.0, 97.0, 97.5]]
    )
    assert 86 < bottom < 88
    assert 99.9 < top <= 100
    assert label == "round"
    bottom, top, _ = frame_of(
        tmp_path, monkeypatch, "bytes", [[20.0, 80.0, 81.0, 82.0, 83.0, 84.0], [10.0, 40.0, 50.0, 75.0, 79.0, 80.0]]
    )
    assert 79 < bottom < 80
    assert 84 < top < 85


def test_a_figure_can_show_what_lies_far_below_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    curves = [[60.0] * 6, [20.0] * 6, [8.0, 7.0, 6.0, 7.0, 8.0, 9.0]]
    bottom, _, label = frame_of(tmp_path, monkeypatch, "lines", curves)
    assert bottom > 20
    assert label.endswith("fedprox\N{NO-BREAK SPACE}9)")
    bottom, top, label = frame_of(tmp_path, monkeypatch, "lines", curves, whole=True)
    assert 0 <= bottom < 6
    assert top > 60
    assert label == "round"
