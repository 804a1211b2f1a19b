"""Which rows of an array, and rows that stay in their file until they are read."""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from coinflower.accounting.errors import UserError

Rows = NDArray[np.int64]
Chosen = Rows | NDArray[np.bool_] | slice
"""Which of the rows: by number, by a mask, or a stretch of them."""


def rows_of(array: NDArray[Any], chosen: Chosen) -> NDArray[Any]:
    """Return some rows of an array; those of a mapped file stay on disk until they are read."""
    if isinstance(array, MappedRows):
        return cast(NDArray[Any], MappedRows(array.array, array.rows[chosen]))
    if isinstance(array, np.memmap) and not isinstance(chosen, slice):
        return cast(NDArray[Any], MappedRows(array, np.arange(len(array))[chosen]))
    return array[chosen]


def require_room(path: Path, size: int, instead: str) -> None:
    """Refuse rows that are larger than the memory, however small they are packed.

    Args:
        path: The file that they are packed in.
        size: How many bytes they have.
        instead: What to do about it.

    Raises:
        UserError: They are larger.
    """
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if size > memory:
        raise UserError(
            f"{path} holds {size / 1e9:.1f} GB, but this machine has {memory / 1e9:.1f} GB of "
            f"memory: {instead}"
        )


def require_whole(array: NDArray[Any]) -> None:
    """Refuse a mapped file that was cut short: reading it would end the process (SIGBUS).

    Raises:
        UserError: With the file's name.
    """
    name = "a mapped file of the data"
    base: object = array.array if isinstance(array, MappedRows) else array
    while isinstance(base, np.ndarray):
        name = getattr(base, "filename", None) or name
        base = base.base
    if isinstance(base, mmap.mmap) and base.size() < len(base):
        raise UserError(
            f"{name} was cut short: it had {len(base)} bytes, and has {base.size()} now; put the "
            "whole file back and start the client again"
        )


class MappedRows:
    """Some rows of a mapped file, read when they are asked for.

    It stands for an array: whatever else an array can do reads all rows first.

    Args:
        array: All rows.
        rows: Numbers of some.
    """

    def __init__(self, array: NDArray[Any], rows: Rows) -> None:
        self.array = array
        self.rows = rows
        self.shape = (len(rows), *array.shape[1:])
        self.ndim = array.ndim
        self.dtype = array.dtype

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, chosen: Any) -> NDArray[Any]:
        if isinstance(chosen, tuple):
            return np.asarray(self[:][chosen])
        return np.asarray(self.array[self.rows[chosen]])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        del copy  # they are always read anew
        return np.asarray(self[:], dtype=dtype)

    def __getattr__(self, name: str) -> Any:
        return getattr(self[:], name)
