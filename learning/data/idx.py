"""Reading idx files, the format of MNIST and its relatives."""

import gzip
import math
import struct
import zlib
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from coinflower.accounting.errors import UserError
from coinflower.learning.data.rows import require_room

_TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
_CHUNK = 1 << 20


def read_idx(path: Path, *, dimensions: int) -> NDArray[Any]:
    """Return the array in an idx file, plain or compressed with gzip (by its name).

    Bytes of a plain file stay on disk until they are read; values of several bytes are copied. Of a
    compressed one no more is unpacked than its header promises, however much is packed into it.

    Args:
        path: The file.
        dimensions: How many dimensions it must have.

    Raises:
        ValueError: If the file is damaged, larger than the memory, or not an idx file of that many
            dimensions.
    """
    try:
        return _array(path, dimensions)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise UserError(
            f"{path} is truncated or not a gzip file ({error}): copy it again"
        ) from None
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}") from None


def _array(path: Path, dimensions: int) -> NDArray[Any]:
    is_packed = path.suffix == ".gz"
    with gzip.open(path) if is_packed else path.open("rb") as file:
        dtype, shape = _header(path, file.read(4 + 4 * dimensions), dimensions)
        size = math.prod(shape) * dtype.itemsize
        if is_packed:
            require_room(path, size, "unpack it: plain idx files stay on disk")
            content = _at_most(file, size + 1)
            there = "more" if len(content) > size else str(len(content))
        else:
            start = file.tell()
            content = np.asarray(np.memmap(path, dtype=np.uint8, mode="r"))[start:]
            there = str(len(content))
    if len(content) != size:
        state = "truncated" if len(content) < size else "too long"
        raise UserError(
            f"{path} is {state}: its header promises {size} bytes of content, it has {there}"
        )
    return content.view(dtype).reshape(shape).astype(dtype.newbyteorder("="), copy=False)


def _header(path: Path, header: bytes, dimensions: int) -> tuple[np.dtype[Any], tuple[int, ...]]:
    """Return type and shape of the array."""
    magic = header[:4]
    if len(magic) < 4 or magic[:2] != b"\0\0" or magic[2] not in _TYPES or magic[3] != dimensions:
        raise UserError(
            f"{path} starts with magic number {magic.hex() or 'nothing'}, which is not that of an "
            f"idx file of {dimensions} dimension{'s' * (dimensions > 1)}"
        )
    if len(header) < 4 + 4 * dimensions:
        raise UserError(f"{path} is truncated: it ends within its header")
    return np.dtype(_TYPES[magic[2]]), struct.unpack(f">{dimensions}I", header[4:])


def _at_most(file: gzip.GzipFile | BinaryIO, size: int) -> NDArray[np.uint8]:
    """Return what is left of a file up to a size; a file that has less needs no more memory."""
    content = bytearray()
    while len(content) < size and (some := file.read(min(_CHUNK, size - len(content)))):
        content += some
    return np.frombuffer(content, dtype=np.uint8)
