"""Classes by name, from every source; and where the channels of images are."""

from pathlib import Path

import numpy as np
import pytest

import fedgen
from data_files import write_class_folders
from fedgen.data.sources import load
from fedgen.data.sources.own import Reading
from fedgen.errors import FedgenError

X = np.arange(6 * 64, dtype=np.uint8).reshape(6, 8, 8, 1)
WORDS = np.array(["emu", "cat", "dog"] * 2)


def test_words_as_labels(tmp_path: Path) -> None:
    data = fedgen.from_arrays(X, WORDS, X, list(WORDS))
    assert data.class_names == ("cat", "dog", "emu")
    assert data.y_train.tolist() == data.y_test.tolist() == [2, 0, 1] * 2
    for words in (WORDS.astype(object), WORDS.astype("S")):
        assert fedgen.from_arrays(X, words, X, WORDS).y_train.tolist() == [2, 0, 1] * 2
    np.savez(tmp_path / "mine.npz", x_train=X, y_train=WORDS, x_test=X[:2], y_test=WORDS[:2])
    data = load(str(tmp_path / "mine.npz"))
    assert data.class_names == ("cat", "dog", "emu")
    assert data.y_test.tolist() == [2, 0]
    np.savez(tmp_path / "mine.npz", x_train=X, y_train=WORDS, x_test=X[:2], y_test=["owl", "cat"])
    with pytest.raises(FedgenError, match="class 'owl' has no training samples"):
        load(str(tmp_path / "mine.npz"))
    with pytest.raises(FedgenError, match="class 'owl' has no training samples"):
        fedgen.from_arrays(X, WORDS, X[:2], ["owl", "cat"])
    with pytest.raises(FedgenError, match="some labels are words and some numbers"):
        fedgen.from_arrays(X, [0, 1, 2] * 2, X, WORDS)
    with pytest.raises(FedgenError, match="a label is empty"):
        fedgen.from_arrays(X, [*WORDS[:-1], " "], X, WORDS)


def test_names_of_numbers(tmp_path: Path) -> None:
    y = np.array([0, 1, 2] * 2)
    assert fedgen.from_arrays(X, y, X, y).class_names == ("0", "1", "2")
    assert fedgen.from_arrays(X, y, X, y, class_names=["a", "b", "c"]).class_names == ("a", "b", "c")
    np.savez(tmp_path / "mine.npz", x_train=X, y_train=y, x_test=X, y_test=y, class_names=["a", "b", "c"])
    assert load(str(tmp_path / "mine.npz")).class_names == ("a", "b", "c")
    with pytest.raises(FedgenError, match="label 2, and 2 classes have names"):
        fedgen.from_arrays(X, y, X, y, class_names=["a", "b"])
    with pytest.raises(FedgenError, match="two classes are called 'a'"):
        fedgen.from_arrays(X, y, X, y, class_names=["a", "b", "a"])


def test_folders(tmp_path: Path) -> None:
    write_class_folders(tmp_path / "pets", {"cat": 4, "dog": 4})
    assert load(str(tmp_path / "pets")).class_names == ("cat", "dog")
    (tmp_path / "pets" / "notes.csv").write_text("file,who\n1,me\n")
    assert load(str(tmp_path / "pets")).class_names == ("cat", "dog"), "what lies beside images is not read"


@pytest.mark.parametrize("word", ["val", "valid", "validation", "test"])
def test_folders_for_training_and_for_testing(tmp_path: Path, word: str) -> None:
    write_class_folders(tmp_path / "train", {"cat": 3, "dog": 2})
    write_class_folders(tmp_path / word, {"dog": 1})
    data = load(str(tmp_path))
    assert (len(data.y_train), data.y_test.tolist(), data.class_names) == (5, [1], ("cat", "dog"))
    assert data.notes == ()
    if word == "val":
        write_class_folders(tmp_path / "test", {"cat": 2})
        data = load(str(tmp_path))
        assert data.y_test.tolist() == [0, 0]
        assert data.notes == (f"{tmp_path}: models are tested on test; val is not used",)


def test_channels_that_come_first(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    last = rng.integers(0, 255, (6, 10, 12, 3), dtype=np.uint8)
    first, y = np.moveaxis(last, -1, 1), np.array([0, 1, 2] * 2)
    with pytest.raises(FedgenError, match=r"of shape \(3, 10, 12\): the channels .* come first; .*--channels first"):
        fedgen.from_arrays(first, y, first, y)
    assert np.array_equal(fedgen.from_arrays(first, y, first, y, channels="first").x_train, last)
    assert fedgen.from_arrays(first, y, first, y, channels="last").x_train.shape == (6, 3, 10, 12)
    np.savez(tmp_path / "mine.npz", x_train=first, y_train=y, x_test=first, y_test=y)
    data = load(str(tmp_path / "mine.npz"), reading=Reading(channels="first"))
    assert isinstance(data.x_train, np.memmap)
    assert np.array_equal(data.x_train, last)
    with pytest.raises(FedgenError, match="channels first is for images"):
        fedgen.from_arrays(first[:, 0], y, first[:, 0], y, channels="first")
    grey = X.transpose(0, 3, 1, 2)
    with pytest.raises(FedgenError, match="seem to come first"):
        fedgen.from_arrays(grey, y, grey, y)
    assert fedgen.from_arrays(last[:, :3, :, :], y, last[:, :3], y).x_train.shape == (6, 3, 12, 3), "low, not first"
