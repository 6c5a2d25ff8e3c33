import re
import zipfile

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from data_files import error_of
from fedgen.data.npz import read_npz
from fedgen.errors import FedgenError

ARRAY = np.arange(12, dtype=np.uint8).reshape(3, 2, 2)


def test_uncompressed_arrays_are_memory_mapped_and_equal(tmp_path):
    path = tmp_path / "data.npz"
    np.savez(path, other=np.arange(5.0), x=ARRAY, f=np.asfortranarray(ARRAY.reshape(3, 4)))
    arrays = read_npz(path, ["x", "f"], ["other", "absent"])
    assert isinstance(arrays["x"], np.memmap)
    assert np.array_equal(arrays["x"], ARRAY)
    assert np.array_equal(arrays["f"], ARRAY.reshape(3, 4))
    assert set(arrays) == {"x", "f", "other"}


def test_compressed_arrays_are_read(tmp_path):
    path = tmp_path / "data.npz"
    np.savez_compressed(path, x=ARRAY)
    assert np.array_equal(read_npz(path, ["x"])["x"], ARRAY)


def test_objects_are_never_unpickled(tmp_path):
    class Bomb:
        def __reduce__(self):
            return (pytest.fail, ("was unpickled",))

    path = tmp_path / "data.npz"
    np.savez(path, x=np.array([Bomb()], dtype=object))
    with pytest.raises(FedgenError, match=re.escape(f"{path}: array 'x' holds Python objects")):
        read_npz(path, ["x"])


def test_a_missing_array_is_named(tmp_path):
    path = tmp_path / "data.npz"
    np.savez(path, x=ARRAY)
    with pytest.raises(FedgenError, match="has no array 'y'; it must have x, y"):
        read_npz(path, ["x", "y"])


def test_a_header_that_promises_too_much_is_refused(tmp_path):
    path = tmp_path / "data.npz"
    np.savez(path, x=ARRAY)
    content = path.read_bytes().replace(b"(3, 2, 2)", b"(9, 2, 2)")
    path.write_bytes(content)
    with pytest.raises(FedgenError, match=r"data.npz"):
        read_npz(path, ["x"])


def test_a_member_that_climbs_out_is_refused(tmp_path):
    path = tmp_path / "data.npz"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("../x.npy", b"")
    with pytest.raises(FedgenError, match=r"member '../x.npy', which climbs out"):
        read_npz(path, ["x"])


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_a_damaged_file_gives_an_array_or_our_own_error(tmp_path, data):
    path = tmp_path / "data.npz"
    np.savez_compressed(path, x=ARRAY)
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(bytes(content[: data.draw(st.integers(0, len(content)))]))
    message = error_of(lambda: read_npz(path, ["x"]))
    assert message is None or str(path) in message
