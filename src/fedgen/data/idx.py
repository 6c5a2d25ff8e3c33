"""The idx format of MNIST and EMNIST: a magic number, the dimensions, then unsigned bytes."""

import gzip
import struct
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedgen.errors import FedgenError

_UNSIGNED_BYTE = 8


def read_idx(path: Path, dimensions: int) -> NDArray[np.uint8]:
    """The array of an idx file, gzipped or plain; it must have this many dimensions."""
    try:
        raw = path.read_bytes()
        content = gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw
    except (OSError, EOFError, zlib.error) as error:
        raise FedgenError(f"{path} cannot be read as an idx file: {error}") from error
    header = 4 + 4 * dimensions
    magic = bytes([0, 0, _UNSIGNED_BYTE, dimensions])
    if len(content) < header or content[:4] != magic:
        raise FedgenError(
            f"{path} is not an idx file of {dimensions}-dimensional unsigned bytes: it starts with"
            f" {content[:4].hex() or 'nothing'}, not {magic.hex()}"
        )
    shape = struct.unpack(f">{dimensions}I", content[4:header])
    expected = int(np.prod(shape, dtype=object))
    if len(content) - header != expected:
        raise FedgenError(
            f"{path} says it holds {'x'.join(map(str, shape))} bytes, but {len(content) - header} follow its header"
        )
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape)
