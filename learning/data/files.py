"""A folder of files of one kind: for trials, in which every file may be one client's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import DTypeLike

from coinflower.accounting.errors import UserError
from coinflower.learning.data.dataset import Dataset
from coinflower.learning.data.reading import NAMED, Reading
from coinflower.learning.data.records import Records

TABLES = (".csv", ".tsv", ".parquet")
"""How the names of tables end."""
_ENDINGS = (*TABLES, ".npz")
_TEST = "test"


def data_files(folder: Path) -> list[Path]:
    """Return the tables and ``.npz`` files of a folder, by name; hidden files are no data."""
    return sorted(
        path
        for path in folder.iterdir()
        if ending(path) in _ENDINGS and path.is_file() and not path.name.startswith(".")
    )


def ending(path: Path) -> str:
    """Return what a file's name says it holds; some programs write it in capitals."""
    return path.suffix.lower()


def load_files(folder: Path, load: Callable[[Path], Dataset]) -> Dataset:
    """Return all rows of a folder's files; a file called ``test`` is the test part.

    Args:
        folder: Holds tables or ``.npz`` files, all alike.
        load: Reads one of them.

    Raises:
        UserError: One cannot be read, or they do not fit together.
    """
    loaded = {path: load(path) for path in data_files(folder)}
    measuring = [data.measuring for path, data in loaded.items() if path.stem == _TEST]
    parts = {path: data for path, data in loaded.items() if path.stem != _TEST}
    if not parts:
        raise UserError(f"folder {folder} holds only test data: put the clients' files beside it")
    if not measuring:
        measuring = [data.test_part for data in parts.values() if data.test_part is not None]
        if len(measuring) < len(parts):
            measuring = []
    ends = np.cumsum([len(data.train) for data in parts.values()])
    files = {
        path.name: np.arange(end - len(data.train), end)
        for end, (path, data) in zip(ends, parts.items(), strict=True)
    }
    counts = [data.class_count for data in loaded.values() if data.class_count is not None]
    all_classes = len(counts) == len(loaded)
    kind = np.int64 if all_classes else np.float32  # one file's numbers make all of them numbers
    return Dataset(
        name=str(folder),
        train=_together(folder, [data.train for data in parts.values()], kind),
        test_part=_together(folder, measuring, kind) if measuring else None,
        class_count=max(counts) if all_classes else None,
        files=files,
        reading=_sum([data.reading for data in parts.values() if data.reading is not None]),
    )


def _together(folder: Path, parts: Sequence[Records], targets: DTypeLike) -> Records:
    first = parts[0]
    for part in parts:
        rows = [(*one.row_shapes, one.targets.shape[1:]) for one in (first, part)]
        if rows[0] != rows[1]:
            raise UserError(
                f"the files of {folder} do not fit together: inputs and targets of a row have "
                f"shapes {rows[0]} in one and {rows[1]} in another"
            )
    persons = None
    if all(part.persons is not None for part in parts):
        persons = np.concatenate([part.persons for part in parts])
    weights = [part.weights for part in parts if part.weights is not None]
    if weights and len(weights) < len(parts):
        raise UserError(
            f"the files of {folder} do not fit together: some have weights and some have none"
        )
    inputs, *more = (
        np.concatenate(each) for each in zip(*(part.arrays for part in parts), strict=True)
    )
    return Records(
        inputs=inputs,
        targets=np.concatenate(
            [part.targets for part in parts], dtype=targets, casting="same_kind"
        ),
        more_inputs=tuple(more),
        persons=persons,
        weights=np.concatenate(weights) if weights else None,
        schema=first.schema,
        target_scale=first.target_scale,
    )


def _sum(readings: Sequence[Reading]) -> Reading:
    columns: dict[str, Counter[str]] = {}
    for what in ("clamped", "unknown", "missing"):
        columns[what] = Counter()
        for reading in readings:
            columns[what].update(getattr(reading, what))
    return Reading(
        rows=sum(reading.rows for reading in readings),
        refused=sum(reading.refused for reading in readings),
        named=tuple(why for reading in readings for why in reading.named)[:NAMED],
        **columns,
    )
