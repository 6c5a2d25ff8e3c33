import numpy as np
import pytest

from data_files import image_bytes, write_class_folders, write_idx, write_pair
from fedgen.config import resolve
from fedgen.data.dataset import from_arrays
from fedgen.data.sources import load
from fedgen.errors import FedgenError
from fedgen.simulator.setup import prepare

X, Y = np.arange(6 * 64, dtype=np.uint8).reshape(6, 8, 8, 1), np.array([0, 1, 2, 0, 1, 2])


def test_an_npz_file_with_users(tmp_path):
    path = tmp_path / "mine.npz"
    np.savez(path, x_train=X, y_train=Y, x_test=X[:3], y_test=Y[:3], user_train=["b", "a", "b", "a", "c", "c"])
    dataset = load(str(path))
    assert np.array_equal(dataset.x_train, X)
    assert isinstance(dataset.x_train, np.memmap)
    assert dataset.user_train.tolist() == [1, 0, 1, 0, 2, 2]
    assert dataset.classes == 3


def test_floats_and_vectors_are_data_too(tmp_path):
    path = tmp_path / "mine.npz"
    np.savez(path, x_train=np.ones((6, 5)), y_train=Y, x_test=np.ones((3, 5)), y_test=Y[:3])
    assert load(str(path)).x_train.dtype == np.float32


@pytest.mark.parametrize("dtype", [np.int64, np.int32, np.int8])
def test_whole_numbers_that_are_no_bytes_stay_whole(tmp_path, dtype):
    path = tmp_path / "mine.npz"
    words = np.arange(30, dtype=dtype).reshape(6, 5)
    np.savez(path, x_train=words, y_train=Y, x_test=words[:3], y_test=Y[:3])
    dataset = load(str(path))
    assert dataset.x_train.dtype == np.int32
    assert np.array_equal(dataset.x_train, words)


@pytest.mark.parametrize("value", [2**31, -(2**31) - 1])
def test_whole_numbers_that_do_not_fit_are_refused(value):
    with pytest.raises(FedgenError, match=r"train samples have whole numbers beyond .2,147,483,647; .* as float32"):
        from_arrays(np.full((6, 2), value), Y, np.zeros((3, 2), int), Y[:3])


def test_no_noise_is_added_to_words():
    words = from_arrays(np.arange(60).reshape(30, 2), np.arange(30) % 3, np.zeros((3, 2), int), Y[:3])
    settings = {"dataset": "arrays", "model": "mlp", "users": 2, "active": 2, "partition": "feature-noise"}
    with pytest.raises(FedgenError, match="feature-noise cannot add noise; give measurements as float32"):
        prepare(resolve(settings, own={"dataset"}), words)


def test_an_empty_class_is_refused(tmp_path):
    path = tmp_path / "mine.npz"
    np.savez(path, x_train=X, y_train=Y * 2, x_test=X[:3], y_test=Y[:3])
    with pytest.raises(FedgenError, match=r"mine.npz: label 1 has no training samples"):
        load(str(path))


@pytest.mark.parametrize(
    ("labels", "message"), [([0, 1, 2**40], "integers from 0"), ([0, 1, 900_000], "label 2 has no")]
)
def test_labels_far_out_of_range_are_refused(tmp_path, labels, message):
    path = tmp_path / "mine.npz"
    np.savez(path, x_train=X[:3], y_train=labels, x_test=X[:3], y_test=labels)
    with pytest.raises(FedgenError, match=rf"mine.npz: .*{message}"):
        load(str(path))


def test_an_npz_file_of_uneven_parts_is_refused(tmp_path):
    path = tmp_path / "mine.npz"
    np.savez(path, x_train=X, y_train=Y[:4], x_test=X[:3], y_test=Y[:3])
    with pytest.raises(FedgenError, match=r"mine.npz: 6 train samples but 4 train labels"):
        load(str(path))


@pytest.mark.parametrize("ending", ["", ".gz"])
def test_a_folder_of_idx_files(tmp_path, ending):
    write_pair(tmp_path, "my-train", X[..., 0], Y, ending)
    write_idx(tmp_path / f"my-test-images-idx4-ubyte{ending}", X[:3])
    write_idx(tmp_path / f"my-test-labels-idx1-ubyte{ending}", Y[:3])
    dataset = load(str(tmp_path))
    assert np.array_equal(dataset.x_train, X)
    assert np.array_equal(dataset.x_test, X[:3])


def test_idx_files_that_do_not_pair_are_refused(tmp_path):
    write_pair(tmp_path, "train", X[..., 0], Y)
    with pytest.raises(FedgenError, match=r"has 0 files named \*test\*-images"):
        load(str(tmp_path))
    write_pair(tmp_path, "test", X[..., 0], Y[:2])
    with pytest.raises(FedgenError, match=r"holds 6 images, but .* holds 2 labels"):
        load(str(tmp_path))


def test_class_folders_are_divided_the_same_way_each_time(tmp_path):
    folder = write_class_folders(tmp_path / "pets", {"cat": 10, "dog": 5})
    dataset = load(str(folder))
    assert dataset.x_train.shape == (12, 8, 9, 1)
    assert np.bincount(dataset.y_train).tolist() == [8, 4]
    assert np.bincount(dataset.y_test).tolist() == [2, 1]
    # image i of class c was painted in the shade 50c + i
    assert np.array_equal(dataset.x_train[:, 0, 0, 0] // 50, dataset.y_train)
    assert np.array_equal(load(str(folder)).x_train, dataset.x_train)


def test_class_folders_with_parts_of_their_own(tmp_path):
    write_class_folders(tmp_path / "train", {"cat": 3, "dog": 2}, mode="RGB")
    write_class_folders(tmp_path / "test", {"dog": 1, "emu": 1}, mode="RGB")
    with pytest.raises(FedgenError, match=r"emu is a class that .*train does not have"):
        load(str(tmp_path))
    (tmp_path / "test" / "emu").rename(tmp_path / "test" / "cat")
    dataset = load(str(tmp_path))
    assert dataset.x_test.shape == (2, 8, 9, 3)
    assert dataset.y_test.tolist() == [0, 1]


def test_images_of_different_size_need_a_size(tmp_path):
    folder = write_class_folders(tmp_path / "pets", {"cat": 3, "dog": 3})
    (folder / "dog" / "9.png").write_bytes(image_bytes(9, (20, 10), "PNG", "L"))
    with pytest.raises(FedgenError, match=r"--set dataset.size=N"):
        load(str(folder))
    assert load(str(folder), size=16).x_train.shape[1:] == (16, 16, 1)


def test_bad_folders_are_named(tmp_path):
    folder = write_class_folders(tmp_path / "pets", {"cat": 3, "dog": 1})
    with pytest.raises(FedgenError, match=r"pets: class 'dog' has one sample"):
        load(str(folder))
    (folder / "dog" / "0.png").unlink()
    with pytest.raises(FedgenError, match=r"dog holds no images"):
        load(str(folder))
    (folder / "dog").rmdir()
    with pytest.raises(FedgenError, match=r"pets has 1 folders of images"):
        load(str(folder))
    write_class_folders(folder, {"emu": 3})
    (folder / "emu" / "1.png").write_bytes(image_bytes(9, (9, 8), "PNG", "L")[:40])
    with pytest.raises(FedgenError, match=r"1.png of .*pets does not decode"):
        load(str(folder))


def test_paths_that_are_no_dataset(tmp_path):
    with pytest.raises(FedgenError, match="does not exist"):
        load(str(tmp_path / "nothing"))
    text = tmp_path / "notes.txt"
    text.write_text("hello")
    with pytest.raises(FedgenError, match=r"notes.txt is neither a folder nor a file of data"):
        load(str(text))
