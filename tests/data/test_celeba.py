import re
import zipfile

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from data_files import error_of, write_celeba
from fedgen.data.sources import load
from fedgen.data.sources.celeba import read_attributes, read_identities, split_by_person
from fedgen.errors import FedgenError


@pytest.fixture
def folder(tmp_path):
    return write_celeba(tmp_path / "celeba")


def read(folder, **options):
    return load("celeba", data_dir=str(folder.parent), **options)


def test_each_celebrity_is_split_90_to_10(folder):
    dataset = read(folder)
    assert len(dataset.y_train) == 6 * 9
    assert len(dataset.y_test) == 6 * 1
    assert np.bincount(dataset.user_train).tolist() == [9] * 6  # the one with 3 images is left out
    assert dataset.x_train.shape[1:] == (84, 84, 3)
    assert dataset.scale == "unit"
    assert dataset.group == 10


def test_labels_belong_to_their_images(folder):
    """Image number i was painted with red 4i, and smiles where i is even."""
    dataset = read(folder)
    numbers = np.rint(dataset.x_train[:, 40, 40, 0] / 4).astype(int)
    assert np.array_equal(dataset.y_train, numbers % 2 == 0)
    other = read(folder, attribute="Male")
    assert np.array_equal(other.y_train, numbers % 3 == 0)
    assert np.array_equal(dataset.user_train, numbers // 10)


def test_decoded_once_and_memory_mapped(folder, own_cache, monkeypatch):
    first = read(folder)
    assert isinstance(first.x_train, np.memmap)
    monkeypatch.setattr("fedgen.data.images._opened", lambda *_, **__: pytest.fail("decoded again"))
    assert np.array_equal(read(folder).x_train, first.x_train)
    assert len(list((own_cache / "fedgen" / "images").iterdir())) == 1


def test_the_unpacked_folder_gives_the_same(folder):
    zipped = read(folder)
    archive = folder / "img_align_celeba.zip"
    zipfile.ZipFile(archive).extractall(folder)
    archive.unlink()
    assert np.array_equal(read(folder).x_train, zipped.x_train)


def test_an_attribute_that_is_not_there_is_refused(folder):
    with pytest.raises(
        FedgenError, match=r"list_attr_celeba.txt: unknown attribute 'Smilling'; did you mean 'Smiling'"
    ):
        read(folder, attribute="Smilling")


def test_an_image_that_does_not_decode_is_named(folder):
    archive = folder / "img_align_celeba.zip"
    archive.unlink()
    pictures = folder / "img_align_celeba"
    write_celeba(folder.parent / "other")
    zipfile.ZipFile(folder.parent / "other" / archive.name).extractall(folder)
    (pictures / "000005.jpg").write_bytes(b"no image")
    with pytest.raises(FedgenError, match=re.escape(f"image 000005.jpg of {pictures} does not decode")):
        read(folder)
    (pictures / "000005.jpg").unlink()
    with pytest.raises(FedgenError, match=r"img_align_celeba has no image 000005.jpg"):
        read(folder)


def test_a_zip_that_climbs_out_is_refused(folder):
    with zipfile.ZipFile(folder / "img_align_celeba.zip", "a") as archive:
        archive.writestr("../../evil.jpg", b"")
    with pytest.raises(FedgenError, match=r"member '../../evil.jpg', which climbs out of its folder"):
        read(folder)
    (folder / "img_align_celeba.zip").write_bytes(b"PK no zip")
    with pytest.raises(FedgenError, match=r"img_align_celeba.zip cannot be read as a zip file"):
        read(folder)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "must start with the number of images"),
        ("2\nSmiling\na.jpg 1\n", "says it lists 2 images, but lists 1"),
        ("1\nSmiling\na.jpg 0\n", "line 3: a name and 1 values of 1 or -1 are due"),
        ("1\nSmiling Male\na.jpg 1\n", "line 3: a name and 2 values"),
        ("1\nSmiling\n../a.jpg 1\n", "is not the name of an image"),
        ("2\nSmiling\na.jpg 1\na.jpg 1\n", "line 4: a.jpg is listed twice"),
    ],
)
def test_a_bad_attribute_file_is_named_with_its_fault(tmp_path, text, message):
    path = tmp_path / "list_attr_celeba.txt"
    path.write_text(text)
    with pytest.raises(FedgenError, match=re.escape(message)) as caught:
        read_attributes(path, "Smiling")
    assert str(path) in str(caught.value)


FUZZ = settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
LINES = st.lists(
    st.sampled_from(["1", "2", "-1", "Smiling", "a.jpg", "b.jpg", "..", "é", "\0", " ", "\n"]), max_size=20
)


@FUZZ
@given(st.one_of(st.binary(max_size=80), LINES.map(lambda words: " ".join(["1\nSmiling\n", *words]).encode())))
def test_any_attribute_file_gives_labels_or_our_own_error(tmp_path, content):
    path = tmp_path / "fuzz.txt"
    path.write_bytes(content)
    for reader in (lambda: read_attributes(path, "Smiling"), lambda: read_identities(path)):
        message = error_of(reader)
        assert message is None or str(path) in message


def test_split_leaves_nobody_with_nothing():
    people = np.repeat(np.array(["a", "b", "c"]), [2, 5, 21])
    train, test = split_by_person(people, 2)
    assert not set(train) & set(test)
    assert {p: int(np.sum(people[test] == p)) for p in "abc"} == {"a": 1, "b": 1, "c": 3}  # LEAF: int(0.9 n) to train
