import numpy as np
import pytest

from data_files import write_pair
from fedgen.data.dataset import from_arrays
from fedgen.data.sources import DATASETS, OFFERS, load, own_path
from fedgen.data.sources.celeba import read_identities
from fedgen.errors import FedgenError

RNG = np.random.default_rng(0)


def test_mnist_is_embedded_and_whole():
    dataset = load("mnist")
    assert dataset.x_train.shape == (60_000, 28, 28, 1)
    assert dataset.x_test.shape == (10_000, 28, 28, 1)
    assert dataset.classes == 10
    # the published number of each digit in the training set
    assert np.bincount(dataset.y_train).tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]


def test_what_is_not_offered_is_embedded():
    assert set(DATASETS) - set(OFFERS) == {"mnist"}
    assert set(OFFERS) <= set(DATASETS)
    for offer in OFFERS.values():
        assert all(len(bytes.fromhex(remote.md5)) == 16 for remote in offer.files)


@pytest.mark.parametrize(
    ("split", "classes", "first"), [("letters", 26, 1), ("balanced", 47, 0), ("byclass", 62, 0), ("digits", 10, 0)]
)
@pytest.mark.parametrize("inside", ["", "emnist", "emnist/gzip"])
def test_emnist_splits_with_labels_from_0_and_upright(tmp_path, split, classes, first, inside):
    folder = tmp_path / inside
    folder.mkdir(parents=True, exist_ok=True)
    images = RNG.integers(0, 256, (classes, 28, 28))
    for part in ("train", "test"):
        write_pair(folder, f"emnist-{split}-{part}", images, np.arange(classes) + first)
    dataset = load("emnist", data_dir=str(tmp_path), split=split)
    assert dataset.classes == classes
    assert dataset.y_test.tolist() == list(range(classes))
    assert np.array_equal(dataset.x_train[3, :, :, 0], images[3].T)


def test_fashion_mnist_is_in_four_files(tmp_path, monkeypatch):
    for part in ("train", "t10k"):
        write_pair(tmp_path, part, np.full((10, 28, 28), 7), np.arange(10))
    monkeypatch.setenv("FEDGEN_DATA", str(tmp_path))
    assert load("fashion-mnist").x_train.shape == (10, 28, 28, 1)


def write_cifar(folder, labels=(3, 9)):
    planes = np.stack([np.full((32, 32), value) for value in (10, 20, 30)])
    records = b"".join(bytes([label]) + planes.astype(np.uint8).tobytes() for label in labels)
    for name in (*(f"data_batch_{n}" for n in range(1, 6)), "test_batch"):
        (folder / f"{name}.bin").write_bytes(records)


def test_cifar10_has_its_colours_last(tmp_path):
    folder = tmp_path / "cifar-10-batches-bin"
    folder.mkdir()
    write_cifar(folder)
    dataset = load("cifar10", data_dir=str(tmp_path))
    assert dataset.x_train.shape == (10, 32, 32, 3)
    assert dataset.x_test[0, 5, 7].tolist() == [10, 20, 30]
    assert dataset.y_test.tolist() == [3, 9]


def test_cifar10_bad_files_are_named(tmp_path):
    write_cifar(tmp_path, labels=(3, 10))
    with pytest.raises(FedgenError, match=r"data_batch_1.bin has label 10"):
        load("cifar10", data_dir=str(tmp_path))
    (tmp_path / "data_batch_1.bin").write_bytes(b"short")
    with pytest.raises(FedgenError, match=r"data_batch_1.bin is 5 bytes long"):
        load("cifar10", data_dir=str(tmp_path))


@pytest.mark.parametrize("name", sorted(OFFERS))
def test_without_its_files_a_dataset_says_where_to_get_them(own_cache, name):
    with pytest.raises(FedgenError, match=f"fedgen data download {name}") as caught:
        load(name)
    assert OFFERS[name].page in str(caught.value)
    assert str(own_cache / "fedgen" / "data" / name) in str(caught.value)


def test_a_data_folder_that_does_not_exist_is_refused(tmp_path):
    with pytest.raises(FedgenError, match="nowhere does not exist"):
        load("emnist", data_dir=str(tmp_path / "nowhere"))


def test_an_unknown_name_gets_a_hint():
    with pytest.raises(FedgenError, match="did you mean 'emnist'"):
        load("emnits")
    assert own_path("mnist") is None


def test_a_user_column_for_any_dataset(tmp_path):
    for part in ("train", "t10k"):
        write_pair(tmp_path, part, np.zeros((10, 28, 28)), np.arange(10))
    text, array = tmp_path / "users.txt", tmp_path / "users.npy"
    text.write_text("\n".join(["bo", "al"] * 5))
    np.save(array, np.array([7, 3] * 5))
    for file in (text, array):
        dataset = load("fashion-mnist", data_dir=str(tmp_path), user_file=str(file))
        assert dataset.user_train.tolist() == [1, 0] * 5
    text.write_text("only one")
    with pytest.raises(FedgenError, match=r"users.txt: .* each of 10 training samples needs one"):
        load("fashion-mnist", data_dir=str(tmp_path), user_file=str(text))
    np.save(array, np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(FedgenError, match=r"users.npy cannot be read"):
        load("fashion-mnist", data_dir=str(tmp_path), user_file=str(array))


def test_users_must_be_numbers_or_words():
    x, y = np.zeros((2, 3)), [0, 1]
    with pytest.raises(FedgenError, match="whole numbers or words"):
        from_arrays(x, y, x, y, user_train=[0.5, 1.5])


def test_real_emnist_letters(shared_data):
    dataset = load("emnist", data_dir=str(shared_data))
    assert dataset.classes == 26
    assert set(np.bincount(dataset.y_train)) == {len(dataset.y_train) // 26}
    # Upright, an L (label 11) has its ink at the left and at the bottom.
    capital = dataset.x_train[dataset.y_train == 11, :, :, 0].mean(axis=0)
    assert capital[14:].sum() > capital[:14].sum()
    assert capital[:, :14].sum() > capital[:, 14:].sum()


def test_real_celeba_slice(shared_data, tmp_path):
    """A slice of the real files: the images of four celebrities, through the official zip."""
    source, folder = shared_data / "celeba", tmp_path / "celeba"
    folder.mkdir()
    people = read_identities(source / "identity_CelebA.txt")
    few = set(sorted(set(people.values()))[:4])
    _, header, *lines = (source / "list_attr_celeba.txt").read_text().splitlines()
    rows = [line for line in lines if people[line.split()[0]] in few]
    (folder / "list_attr_celeba.txt").write_text("\n".join([str(len(rows)), header, *rows]))
    for name in ("identity_CelebA.txt", "img_align_celeba.zip"):
        (folder / name).symlink_to(source / name)
    dataset = load("celeba", data_dir=str(tmp_path))
    assert dataset.x_train.shape[1:] == (84, 84, 3)
    assert dataset.classes == 2
    assert len(dataset.y_train) + len(dataset.y_test) == len(rows)
    assert len(np.unique(dataset.user_train)) == 4
