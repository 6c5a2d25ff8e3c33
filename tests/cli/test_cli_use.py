"""`fedgen predict`, `evaluate` and `export` as a user meets them."""

import csv
import json
from pathlib import Path
from threading import Timer

import numpy as np
import pytest
from PIL import Image

import fedgen
from command import call as _fedgen
from fedgen.cli import predict as predict_command
from locked import held_by_another
from use_runs import NAMES, named_data, small_run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("use") / "run"
    small_run(out, "fedavg", "fedgen", lr=0.1)
    return out


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The first test samples as images in a folder for each class, as .npz and as .csv."""
    folder, data = tmp_path_factory.mktemp("files"), named_data()
    x, y = data.x_test[:20], data.y_test[:20]
    for number, (image, label) in enumerate(zip(x, y, strict=True)):
        place = folder / "images" / NAMES[label]
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image[..., 0]).save(place / f"{number:02}.png")
    np.savez(folder / "samples.npz", x=x, y=y)
    with (folder / "samples.csv").open("w") as file:
        file.write("label," + ",".join(f"pixel{i}" for i in range(64)) + "\n")
        for image, label in zip(x, y, strict=True):
            file.write(f"{NAMES[label]}," + ",".join(map(str, image.ravel())) + "\n")
    return folder


@pytest.mark.parametrize("given", ["samples.npz", "samples.csv", "images"])
def test_predict_says_the_same_of_the_same_samples(
    given: str, run: Path, files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    out = tmp_path / "found.csv"
    monkeypatch.setattr(predict_command.console, "width", 250)  # room for the whole path
    assert _fedgen(monkeypatch, "predict", run, files / given, "--algorithm", "fedgen", "--out", out) == 0
    shown = capsys.readouterr().out
    assert "fedgen, seed 0, after 3 rounds" in shown
    with out.open() as file:
        rows = list(csv.DictReader(file))
    expected = fedgen.load(run).model("fedgen").predict_proba(named_data().x_test[:20])
    if given == "images":  # by name, not by number
        order = sorted(range(20), key=lambda i: (NAMES[named_data().y_test[i]], i))
        expected = expected[order]
    assert [int(row["label"]) for row in rows] == np.argmax(expected, axis=1).tolist()
    found = [[float(row[f"p({name})"]) for name in NAMES] for row in rows]
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)
    assert rows[0]["class"] in NAMES
    assert rows[0]["input"] in shown


def test_predict_takes_images_one_by_one_and_writes_json(
    run: Path, files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    images = sorted((files / "images").rglob("*.png"))[:2]
    Image.open(images[0]).resize((30, 30)).convert("RGB").save(tmp_path / "large.jpg")  # another size, in colour
    out = tmp_path / "found.json"
    assert _fedgen(monkeypatch, "predict", run, *images, tmp_path / "large.jpg", "--out", out) == 0
    rows = json.loads(out.read_text())
    assert [row["input"] for row in rows] == [*map(str, images), str(tmp_path / "large.jpg")]
    assert sum(rows[0]["probabilities"].values()) == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["predict", "RUN", "absent.png"], "does not exist"),
        (["predict", "RUN", "FILES/samples.npz", "--out", "x.txt"], ".csv or .json"),
        (["predict", "RUN", "FILES/samples.npz", "--algorithm", "fedagv"], "did you mean 'fedavg'"),
        (["predict", "RUN", "FILES/samples.npz", "--user", "9"], "users 0 to 5"),
        (["predict", "RUN", "FILES/short.csv"], "3 columns of numbers, and a sample of this run has 64"),
        (["predict", "RUN", "FILES/other.npz"], "array x"),
        (["predict", "FILES", "FILES/samples.npz"], "no config.toml"),
        (["evaluate", "RUN", "--part", "half"], "--part must be"),
        (["evaluate", "RUN"], "name another with --dataset"),
        (["evaluate", "RUN", "--dataset", "mnits"], "did you mean 'mnist'"),
        (["evaluate", "RUN", "--dataset", "FILES/unlabelled.npz"], "no labels"),
        (["evaluate", "RUN", "--dataset", "FILES/unknown.csv"], "no class 'eel'"),
        (["export", "RUN", "--to", "tensorflow"], "format 'tensorflow'"),
        (["export", "RUN", "--to", "torch", "--best"], "--keep-best"),
    ],
)
def test_wrong_input_is_one_sentence_and_code_2(
    arguments: list[str],
    message: str,
    run: Path,
    files: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
) -> None:
    monkeypatch.chdir(tmp_path)
    (files / "short.csv").write_text("a,b,c\n1,2,3\n")
    np.savez(files / "other.npz", images=np.zeros(3))
    np.savez(files / "unlabelled.npz", x=named_data().x_test[:2])
    (files / "unknown.csv").write_text(
        "label," + ",".join(f"p{i}" for i in range(64)) + "\neel," + ",".join("1" * 64) + "\n"
    )
    given = [one.replace("RUN", str(run)).replace("FILES", str(files)) for one in arguments]
    assert _fedgen(monkeypatch, *given) == 2
    error = capsys.readouterr().err.strip()
    assert error.startswith("error: ")
    assert message in error
    assert "\n" not in error


def test_evaluate_writes_numbers_pictures_and_the_page(
    run: Path, files: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    for algorithm, dataset in (("fedavg", "samples.npz"), ("fedgen", "samples.npz"), ("fedavg", "images")):
        given = ["--algorithm", algorithm, "--dataset", files / dataset]
        assert _fedgen(monkeypatch, "evaluate", run, *given) == 0
        shown = capsys.readouterr().out
    assert _fedgen(monkeypatch, "evaluate", run, *given, "--json") == 0  # again: it replaces the earlier one
    printed = json.loads(capsys.readouterr().out)
    kept = json.loads((run / "evaluation.json").read_text())["evaluations"]
    assert len(kept) == 3
    model, data = fedgen.load(run).model("fedavg"), named_data()
    right = model.predict(data.x_test[:20]) == data.y_test[:20]
    for entry in (kept[0], kept[2], printed):  # the same samples, from an array and from images
        assert entry["accuracy"] == pytest.approx(100 * right.mean())
        assert np.trace(entry["confusion"]) == right.sum()
        assert [one["name"] for one in entry["classes"]] == list(NAMES)
    assert f"{100 * right.mean():.2f}" in shown
    assert "cow" in shown
    assert len(list((run / "evaluation").glob("*.png"))) == 6
    page = (run / "report.html").read_text()
    assert page.count("Models measured on") >= 2
    assert '"kind":"matrix"' in page


def test_two_may_measure_a_run_at_once_and_none_while_it_goes_on(
    run: Path, files: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    given = ["evaluate", run, "--dataset", files / "samples.npz", "--seed", 0]
    with held_by_another(run) as process:
        other = Timer(1, process.kill)  # which then has written
        other.start()
        assert _fedgen(monkeypatch, *given) == 0
        other.join()
    assert not (run / "run.lock").exists()
    written = (run / "evaluation.json").read_bytes()
    capsys.readouterr()
    monkeypatch.setattr("fedgen.cli.evaluate.PATIENCE", 0.2)
    with held_by_another(run):
        assert _fedgen(monkeypatch, *given, "--algorithm", "fedgen") == 2
    shown = capsys.readouterr()
    assert "accuracy" in shown.out, "the numbers are there nevertheless"
    assert "is in use" in shown.err
    assert (run / "evaluation.json").read_bytes() == written


def test_export_names_what_it_wrote(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    assert _fedgen(monkeypatch, "export", run, "--to", "safetensors") == 0
    assert str(run / "export/fedavg-seed0.safetensors") in capsys.readouterr().out
    assert _fedgen(monkeypatch, "export", run, "--to", "torch", "--user", "1", "--out", tmp_path / "there") == 0
    assert {file.name for file in (tmp_path / "there").iterdir()} == {
        "fedavg_seed0_user1.py",
        "fedavg_seed0_user1.safetensors",
    }
