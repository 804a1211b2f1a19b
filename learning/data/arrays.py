"""Data sets in numpy's files: one `.npz`, or a folder of `.npy` files that stay on disk."""

from __future__ import annotations

import contextlib
import re
import zipfile
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coinflower.accounting.errors import UserError
from coinflower.learning.data.dataset import Dataset
from coinflower.learning.data.reading import (
    Fault,
    Reading,
    are_numbers,
    outside_of_zero_to_one,
    usable_records,
)
from coinflower.learning.data.records import Records
from coinflower.learning.data.rows import require_room
from coinflower.learning.data.weights import Weights, weights_of
from coinflower.protocol.foreign import printable

_SHOWN = 200
_PARTS = ("_train", "")
_TEST = "_test"
_KIND, _ROWS = "kind", "rows"
_TARGET_SCALE = "target_scale"
_WANTED = re.compile(rf"(x\d*|y|persons|weight)(_train|_test)?|{_KIND}|{_TARGET_SCALE}")


def load_npz(path: Path, *, numbers: bool | None = False) -> Dataset:
    """Return the arrays x, y, persons and weight, or x_train, y_train, ..., x_test, y_test.

    A model that takes several arrays gets x0, x1, ... (x0_train, ...) instead of x, in this order.
    Floating-point arrays of three dimensions are grey images from 0 to 1, unless the file says
    ``kind="rows"``: then they are rows of vectors, and the model gets them as they are. No other
    array of the file is read.

    Raises:
        UserError: Something is missing, damaged, too large, or of the wrong shape or type.
    """
    with _reading(path), zipfile.ZipFile(path) as archive:
        members = {one.filename.removesuffix(".npy"): one for one in archive.infolist()}
    names = _wanted(path, members)
    unpacked = sum(members[name].file_size for name in names)
    require_room(
        path, unpacked, "save x, y and so on as .npy files in a folder, which stay on disk"
    )
    arrays = {}
    with _reading(path), zipfile.ZipFile(path) as archive:
        for name in names:
            with archive.open(members[name]) as file:
                arrays[name] = np.lib.format.read_array(file, allow_pickle=False)
    kind = str(arrays.pop(_KIND, "images"))
    if kind not in ("images", _ROWS):
        raise UserError(f"{path}: {_KIND} = {kind!r} must be images or {_ROWS}")
    return _from_arrays(path, arrays, numbers=numbers, prepare=_single if kind == _ROWS else _grey)


def holds_npy(folder: Path) -> bool:
    """Return whether a folder holds rows as ``.npy`` files."""
    return any((folder / f"{x}{part}.npy").is_file() for part in _PARTS for x in ("x", "x0"))


def load_npy(folder: Path, *, numbers: bool | None = False) -> Dataset:
    """Return the arrays of x.npy, y.npy and so on, named as in `load_npz`, without reading them.

    Rows are read when they are needed, so that the data may be larger than the memory.

    Raises:
        UserError: Something is missing, damaged, or of the wrong shape or type.
    """
    paths = {path.stem: path for path in sorted(folder.glob("*.npy"))}
    arrays = {}
    for name in _wanted(folder, paths):
        with _reading(paths[name]):
            arrays[name] = np.lib.format.open_memmap(paths[name], mode="r")
    return _from_arrays(folder, arrays, numbers=numbers, prepare=_with_channel)


def save_npz(path: Path, records: Records) -> None:
    """Write inputs and targets, and the unit of these, as `load_npz` reads them."""
    names = ["x"] if not records.more_inputs else [f"x{i}" for i in range(len(records.arrays))]
    arrays: dict[str, Any] = dict(zip(names, records.arrays, strict=True))
    if records.target_scale is not None:
        arrays[_TARGET_SCALE] = records.target_scale
    np.savez(path, **arrays, y=records.targets, kind=_ROWS)


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # whatever a damaged or hostile file makes numpy raise
        said = printable(" ".join(str(error).split()), _SHOWN)
        raise UserError(f"{path} cannot be read as data: {said}") from None


def _wanted(path: Path, names: Collection[str]) -> list[str]:
    """Return which of some arrays are read, if there are inputs among them."""
    if not any(_has_inputs(names, part) for part in _PARTS):
        has = printable(", ".join(names) or "nothing", _SHOWN)
        raise UserError(
            f"{path} cannot be read as data: it has no array 'x' or 'x_train', only {has}"
        )
    return [name for name in names if _WANTED.fullmatch(name)]


Prepare = Callable[[NDArray[Any]], tuple[NDArray[Any], list[Fault]]]
"""Returns inputs as a model takes them, and why it cannot take some."""


def _from_arrays(
    path: Path, arrays: Mapping[str, NDArray[Any]], *, numbers: bool | None, prepare: Prepare
) -> Dataset:
    suffix = next(part for part in _PARTS if _has_inputs(arrays, part))
    if numbers is None:
        ends = (suffix, _TEST)
        numbers = are_numbers(*(arrays[f"y{end}"] for end in ends if f"y{end}" in arrays))
    train, reading = _part(path, arrays, suffix, numbers=numbers, prepare=prepare)
    test = None
    if any(name.endswith(_TEST) for name in arrays):
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
    names = _names_of_inputs(path, arrays, suffix)
    for key in (*names, f"y{suffix}"):
        if key not in arrays:
            has = ", ".join(arrays)
            raise UserError(f"{path} cannot be read as data: it has no array {key!r}, only {has}")
    prepared = [prepare(arrays[name]) for name in names]
    what = f"{path} (test part)" if suffix == _TEST else str(path)
    weights, unweighable = _weights(what, arrays.get(f"weight{suffix}"))
    records, reading = usable_records(
        what,
        tuple(inputs for inputs, _ in prepared),
        arrays[f"y{suffix}"],
        arrays.get(f"persons{suffix}"),
        weights,
        numbers=numbers,
        faults=[*unweighable, *(fault for _, faults in prepared for fault in faults)],
    )
    if _TARGET_SCALE in arrays:
        records = replace(records, target_scale=tuple(map(float, arrays[_TARGET_SCALE])))
    return records, reading


def _weights(what: str, values: NDArray[Any] | None) -> tuple[Weights | None, list[Fault]]:
    try:
        return (None, []) if values is None else weights_of(values)
    except UserError as error:
        raise UserError(f"{what}: {error}") from None


def _has_inputs(arrays: Collection[str], suffix: str) -> bool:
    return f"x{suffix}" in arrays or f"x0{suffix}" in arrays


def _names_of_inputs(path: Path, arrays: Collection[str], suffix: str) -> list[str]:
    """Return x, or x0, x1 and so on without a gap."""
    pattern = re.compile(rf"x\d+{suffix}")
    count = sum(pattern.fullmatch(name) is not None for name in arrays)
    if count and f"x{suffix}" in arrays:
        raise UserError(
            f"{path} has x{suffix} as well as numbered arrays: name the inputs x{suffix}, or "
            f"x0{suffix}, x1{suffix} and so on if there are several"
        )
    return [f"x{i}{suffix}" for i in range(count)] or [f"x{suffix}"]


def _single(inputs: NDArray[Any]) -> tuple[NDArray[Any], list[Fault]]:
    """Halve what is in memory, and leave the shape as it is."""
    with np.errstate(over="ignore"):  # becomes infinite, and cannot be used then
        return (inputs.astype(np.float32) if inputs.dtype.kind == "f" else inputs), []


def _with_channel(inputs: NDArray[Any]) -> tuple[NDArray[Any], list[Fault]]:
    """Give grey images of bytes their channel."""
    is_grey = inputs.ndim == 3 and inputs.dtype == np.uint8
    return (inputs[:, np.newaxis] if is_grey else inputs), []


def _grey(inputs: NDArray[Any]) -> tuple[NDArray[Any], list[Fault]]:
    inputs, _ = _single(inputs)
    if inputs.ndim == 3 and inputs.dtype.kind == "f":
        return inputs[:, np.newaxis], [outside_of_zero_to_one(inputs)]
    return _with_channel(inputs)
