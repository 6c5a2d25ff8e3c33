import gzip
import re

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from data_files import error_of, idx_bytes, write_idx, write_pair
from fedgen.data.idx import read_idx, read_labelled
from fedgen.data.locate import MissingFileError
from fedgen.errors import FedgenError

IMAGES = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)


@pytest.mark.parametrize("name", ["images.gz", "images"])
def test_reads_what_was_written(tmp_path, name):
    assert np.array_equal(read_idx(write_idx(tmp_path / name, IMAGES), 3), IMAGES)


def test_a_plain_file_is_memory_mapped(tmp_path):
    assert isinstance(read_idx(write_idx(tmp_path / "images", IMAGES), 3), np.memmap)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "starts with nothing"),
        (gzip.compress(idx_bytes(IMAGES), mtime=0)[:-12], "cannot be read as an idx file"),
        (b"\x1f\x8b not gzip at all", "cannot be read as an idx file"),
        (idx_bytes(IMAGES)[:-1], "says it holds 2x3x4 bytes, but 23 follow"),
        (idx_bytes(IMAGES) + b"!", "but 25 follow"),
        (b"\0\0\x0d\x03" + idx_bytes(IMAGES)[4:], "starts with 00000d03, not 00000803"),
        (idx_bytes(IMAGES[0]), "starts with 00000802, not 00000803"),
    ],
    ids=["empty", "cut gzip", "no gzip", "short", "long", "type", "dimensions"],
)
def test_a_bad_file_is_named_with_its_fault(tmp_path, content, message):
    path = tmp_path / "bad-images"
    path.write_bytes(content)
    with pytest.raises(FedgenError, match=re.escape(message)) as caught:
        read_idx(path, 3)
    assert str(path) in str(caught.value)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=64), st.booleans(), st.booleans())
def test_any_bytes_give_an_array_or_our_own_error(tmp_path, content, zipped, headed):
    if headed:
        content = bytes([0, 0, 8, 1]) + content
    path = tmp_path / "fuzz"
    path.write_bytes(gzip.compress(content) if zipped else content)
    message = error_of(lambda: read_idx(path, 1))
    assert message is None or str(path) in message


def test_pairs_must_fit_together(tmp_path):
    write_pair(tmp_path, "train", np.zeros((3, 2, 2)), [0, 1])
    with pytest.raises(FedgenError, match=r"holds 3 images, but .*train-labels.* holds 2 labels"):
        read_labelled(tmp_path, "train", 2)


def test_labels_must_be_in_range(tmp_path):
    write_pair(tmp_path, "train", np.zeros((3, 2, 2)), [1, 2, 9])
    with pytest.raises(FedgenError, match=r"train-labels-idx1-ubyte.gz has label 9; its labels must be 1 to 5"):
        read_labelled(tmp_path, "train", 5, first=1)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(MissingFileError, match="train-images-idx3-ubyte is not there"):
        read_labelled(tmp_path, "train", 5)
