"""Data sets in numpy's files: one `.npz`, or a folder of `.npy` files that stay on disk."""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coinflower.accounting.errors import UserError
from coinflower.learning.data.dataset import Dataset
from coinflower.learning.data.reading import Reading, usable_records
from coinflower.learning.data.records import Records

_PARTS = {"x_train": "_train", "x": ""}
_TEST = "_test"
_KIND, _ROWS = "kind", "rows"
_UNREADABLE = (ValueError, OSError, EOFError, zipfile.BadZipFile)


def load_npz(path: Path, *, numbers: bool = False) -> Dataset:
    """Return the arrays x, y and persons of a file, or x_train, y_train, ..., x_test, y_test.

    Floating-point arrays of three dimensions are grey images from 0 to 1, unless the file says
    ``kind="rows"``: then they are rows of vectors, and the model gets them as they are.

    Raises:
        UserError: Something is missing, damaged, or of the wrong shape or type.
    """
    try:
        with np.load(path, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive}
    except _UNREADABLE as error:
        raise UserError(f"{path} cannot be read as data: {error}") from None
    kind = str(arrays.pop(_KIND, "images"))
    if kind not in ("images", _ROWS):
        raise UserError(f"{path}: {_KIND} = {kind!r} must be images or {_ROWS}")
    return _from_arrays(path, arrays, numbers=numbers, prepare=_single if kind == _ROWS else _grey)


def holds_npy(folder: Path) -> bool:
    """Return whether a folder holds rows as ``.npy`` files."""
    return any((folder / f"{name}.npy").is_file() for name in _PARTS)


def load_npy(folder: Path, *, numbers: bool = False) -> Dataset:
    """Return the arrays of x.npy, y.npy and so on, named as in `load_npz`, without reading them.

    Rows are read when they are needed, so that the data may be larger than the memory.

    Raises:
        UserError: Something is missing, damaged, or of the wrong shape or type.
    """
    arrays = {}
    for path in sorted(folder.glob("*.npy")):
        try:
            arrays[path.stem] = np.load(path, mmap_mode="r", allow_pickle=False)
        except _UNREADABLE as error:
            raise UserError(f"{path} cannot be read as data: {error}") from None
    return _from_arrays(folder, arrays, numbers=numbers, prepare=_with_channel)


Prepare = Callable[[NDArray[Any]], tuple[NDArray[Any], bool]]
"""Returns the inputs as a model takes them, and whether they must lie in 0..1."""


def _from_arrays(
    path: Path, arrays: Mapping[str, NDArray[Any]], *, numbers: bool, prepare: Prepare
) -> Dataset:
    suffix = next((end for name, end in _PARTS.items() if name in arrays), "_train")
    train, reading = _part(path, arrays, suffix, numbers=numbers, prepare=prepare)
    test = None
    if suffix == "_train" or f"x{_TEST}" in arrays:
        test, _ = _part(path, arrays, _TEST, numbers=numbers, prepare=prepare)
    classes = None
    if not numbers:
        parts = [train] if test is None else [train, test]
        classes = max(2, *(int(part.targets.max(initial=0)) + 1 for part in parts))
    return Dataset(
        name=str(path), train=train, test_part=test, class_count=classes, reading=reading
    )


def _part(
    path: Path,
    arrays: Mapping[str, NDArray[Any]],
    suffix: str,
    *,
    numbers: bool,
    prepare: Prepare,
) -> tuple[Records, Reading]:
    for key in (f"x{suffix}", f"y{suffix}"):
        if key not in arrays:
            has = ", ".join(arrays) or "nothing"
            raise UserError(f"{path} cannot be read as data: it has no array {key!r}, only {has}")
    what = f"{path} (test part)" if suffix == _TEST else str(path)
    inputs, from_zero_to_one = prepare(arrays[f"x{suffix}"])
    return usable_records(
        what,
        inputs,
        arrays[f"y{suffix}"],
        arrays.get(f"persons{suffix}"),
        numbers=numbers,
        from_zero_to_one=from_zero_to_one,
    )


def _single(inputs: NDArray[Any]) -> tuple[NDArray[Any], bool]:
    """Halve what is in memory, and leave the shape as it is."""
    with np.errstate(over="ignore"):  # becomes infinite, and cannot be used then
        return (inputs.astype(np.float32) if inputs.dtype.kind == "f" else inputs), False


def _with_channel(inputs: NDArray[Any]) -> tuple[NDArray[Any], bool]:
    """Give grey images of bytes their channel."""
    is_grey = inputs.ndim == 3 and inputs.dtype == np.uint8
    return (inputs[:, np.newaxis] if is_grey else inputs), False


def _grey(inputs: NDArray[Any]) -> tuple[NDArray[Any], bool]:
    if inputs.ndim == 3 and inputs.dtype.kind == "f":
        return _single(inputs)[0][:, np.newaxis], True
    return _with_channel(_single(inputs)[0])
