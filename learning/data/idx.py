"""Reading idx files, the format of MNIST and its relatives."""

import gzip
import math
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coinflower.accounting.errors import UserError

_TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}


def read_idx(path: Path, *, dimensions: int) -> NDArray[Any]:
    """Return the array in an idx file, plain or compressed with gzip (by its name).

    Bytes of a plain file stay on disk until they are read; values of several bytes are copied.

    Args:
        path: The file.
        dimensions: How many dimensions it must have.

    Raises:
        ValueError: If the file is damaged, or not an idx file of that many dimensions.
    """
    try:
        content = _content(path)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise UserError(
            f"{path} is truncated or not a gzip file ({error}): copy it again"
        ) from None
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}") from None
    header = 4 + 4 * dimensions
    magic = content[:4].tobytes()
    if len(magic) < 4 or magic[:2] != b"\0\0" or magic[2] not in _TYPES or magic[3] != dimensions:
        raise UserError(
            f"{path} starts with magic number {magic.hex() or 'nothing'}, which is not that of an "
            f"idx file of {dimensions} dimension{'s' * (dimensions > 1)}"
        )
    if len(content) < header:
        raise UserError(f"{path} is truncated: it ends within its header")
    shape = tuple(int(size) for size in content[4:header].view(">u4"))
    dtype = np.dtype(_TYPES[magic[2]])
    promised = header + math.prod(shape) * dtype.itemsize
    if len(content) != promised:
        state = "truncated" if len(content) < promised else "too long"
        raise UserError(
            f"{path} is {state}: its header promises {promised} bytes of content, it has "
            f"{len(content)}"
        )
    array = content[header:].view(dtype).reshape(shape)
    return array.astype(dtype.newbyteorder("="), copy=False)


def _content(path: Path) -> NDArray[np.uint8]:
    if path.suffix == ".gz":
        return np.frombuffer(gzip.decompress(path.read_bytes()), dtype=np.uint8)
    if path.stat().st_size == 0:  # which cannot be mapped
        return np.empty(0, dtype=np.uint8)
    return np.asarray(np.memmap(path, dtype=np.uint8, mode="r"))
