"""Arrays of an .npz file: never unpickled, and memory-mapped where they are stored uncompressed."""

import struct
import tokenize
import zipfile
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from fedgen.data.archives import open_zip
from fedgen.errors import FedgenError

# What a damaged file makes the readers of zip members and array headers raise.
_DAMAGE = (
    ValueError, OSError, EOFError, KeyError, RuntimeError, SyntaxError, TypeError,
    tokenize.TokenError, zipfile.BadZipFile, zlib.error,
)  # fmt: skip
_LOCAL_HEADER = 30  # bytes of a zip member's own header, before its name


def read_npz(path: Path, required: Iterable[str], optional: Iterable[str] = ()) -> dict[str, NDArray[Any]]:
    """These arrays of the file, by name."""
    with open_zip(path) as archive:
        there = {name.removesuffix(".npy") for name in archive.namelist()}
        missing = [name for name in required if name not in there]
        if missing:
            raise FedgenError(
                f"{path} has no array '{missing[0]}'; it must have {', '.join(required)}, and may have"
                f" {', '.join(optional) or 'no others'}"
            )
        wanted = [*required, *(name for name in optional if name in there)]
        return {name: _read(path, archive, name) for name in wanted}


def _read(path: Path, archive: zipfile.ZipFile, name: str) -> NDArray[Any]:
    try:
        info = archive.getinfo(f"{name}.npy")
        with archive.open(info) as file:
            shape, fortran, dtype = _header(file)
            start = file.tell()
            if dtype.hasobject:
                raise FedgenError(f"{path}: array '{name}' holds Python objects, which are never loaded; save numbers")
            size = int(np.prod(shape, dtype=object)) * dtype.itemsize
            if start + size != info.file_size:
                there = info.file_size - start
                raise FedgenError(f"{path}: array '{name}' says it is {size} bytes, but {there} are there")
            order: Any = "F" if fortran else "C"
            if info.compress_type == zipfile.ZIP_STORED and size:
                return np.memmap(path, dtype, "r", _data_offset(path, info) + start, shape, order)
            return np.frombuffer(file.read(), dtype).reshape(shape, order=order)
    except FedgenError:
        raise
    except _DAMAGE as error:
        raise FedgenError(f"{path}: array '{name}' cannot be read: {error}") from error


def _header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    version = npy.read_magic(file)
    if version == (1, 0):
        return npy.read_array_header_1_0(file)
    if version == (2, 0):
        return npy.read_array_header_2_0(file)
    raise ValueError(f"its format is {version[0]}.{version[1]}, not 1.0 or 2.0")


def _data_offset(path: Path, info: zipfile.ZipInfo) -> int:
    """Where a member's bytes start: behind its local header, whose variable parts differ from the directory's."""
    with path.open("rb") as file:
        file.seek(info.header_offset)
        name, extra = struct.unpack("<HH", file.read(_LOCAL_HEADER)[-4:])
    return info.header_offset + _LOCAL_HEADER + int(name) + int(extra)
