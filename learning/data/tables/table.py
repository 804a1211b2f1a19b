"""Tables in CSV and Parquet files, read as a schema says."""

from __future__ import annotations

import contextlib
import csv
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pa_parquet
from numpy.typing import NDArray

from coinflower.accounting.errors import UserError
from coinflower.learning.data.dataset import Dataset
from coinflower.learning.data.files import TABLES, ending
from coinflower.learning.data.reading import Fault, sort_out
from coinflower.learning.data.records import Records
from coinflower.learning.data.tables.csv_file import Spelling, guess_types, header_of, read_csv
from coinflower.learning.data.tables.encoding import Encoder
from coinflower.learning.data.tables.schema import Kind, Schema, near, normal
from coinflower.protocol.foreign import printable

_SHOWN = 200


def load_table(path: Path, schema: Schema) -> Dataset:
    """Return the rows of a table.

    Rows that cannot be used count as absent, and the log names them.

    Args:
        path: A CSV file with a header in its first line, its columns separated by commas,
            semicolons, tabs or bars; or a Parquet file.
        schema: How its columns are read.

    Raises:
        UserError: Naming the file and what is wrong with it: not a table, a column that is missing
            or of a type that cannot be read, or most rows cannot be used.
    """
    table, torn = _read_columns(path, schema)
    count = len(table) + len(torn)
    if count == 0:
        raise UserError(f"{path} has no rows")
    # Places of the rows in the file: those that are torn are not in the table.
    places = np.delete(np.arange(count), list(torn))
    encoder = Encoder(schema=schema, table=table)
    try:
        inputs, targets, persons = encoder.inputs(), encoder.targets(), encoder.persons()
        weights = encoder.weights()
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    faults = [_moved(fault, places, count) for fault in encoder.faults]
    if torn:
        rows = np.zeros(count, dtype=bool)
        rows[list(torn)] = True
        faults.insert(0, Fault(rows=rows, why=lambda row: f"it has {torn[row]}"))
    kept, reading = sort_out(str(path), count, faults, noun="row", first=1)
    records = Records(
        inputs=inputs,
        targets=targets,
        persons=persons,
        weights=weights,
        schema=schema.hash,
        target_scale=schema.target_scale,
    )
    if kept is not None:
        records = records.take(kept[places])
    names = schema.class_names
    return Dataset(
        name=str(path),
        train=records,
        class_count=None if names is None else max(2, len(names)),
        reading=replace(
            reading, clamped=encoder.clamped, unknown=encoder.unknown, missing=encoder.missing
        ),
    )


def _moved(fault: Fault, places: NDArray[np.int64], count: int) -> Fault:
    """Return a fault of rows of the table as one of rows of the file."""
    rows = np.zeros(count, dtype=bool)
    rows[places] = fault.rows
    return Fault(rows=rows, why=lambda row: fault.why(int(np.searchsorted(places, row))))


def column_types(path: Path) -> tuple[dict[str, Kind], Spelling | None]:
    """Return the columns of a table with what their type suggests, and how a CSV file is written.

    Raises:
        UserError: It is no table.
    """
    if ending(path) not in TABLES:
        raise UserError(
            f"{path} is no table: save it as CSV (a .csv file with the names of the columns in its "
            "first line) or Parquet"
        )
    with _as_a_table(path):
        if is_parquet(path):
            found, spelling = pa_parquet.read_schema(path), None
        else:
            found, spelling = guess_types(path)
    # Some programs write a column of row numbers that has no name.
    return {normal(one.name): _kind(one.type) for one in found if one.name}, spelling


def _kind(type_: pa.DataType) -> Kind:
    if pa.types.is_integer(type_) or pa.types.is_floating(type_):
        return Kind.NUMBER
    texts = (
        pa.types.is_string,
        pa.types.is_large_string,
        pa.types.is_boolean,
        pa.types.is_dictionary,
    )
    return Kind.CATEGORY if any(is_text(type_) for is_text in texts) else Kind.IGNORED


def is_parquet(path: Path) -> bool:
    """Return whether a file is no CSV, by its name."""
    return ending(path) == ".parquet"


def _read_columns(path: Path, schema: Schema) -> tuple[pa.Table, dict[int, str]]:
    """Return the columns that the schema needs, and the rows that are not as long as the header."""
    needed = list(map(normal, schema.needed))
    torn: dict[int, str] = {}
    with _as_a_table(path):
        if is_parquet(path):
            columns = _columns(path, pa_parquet.read_schema(path).names, needed)
            table = _plain(pa_parquet.read_table(path, columns=columns))
        else:
            names, spelling = header_of(path, schema.encoding, needed)
            table, torn = read_csv(path, _columns(path, names, needed), spelling)
    return table.rename_columns(schema.needed), torn


def _columns(path: Path, names: Sequence[str], needed: Sequence[str]) -> list[str]:
    """Return what the columns that are needed are called in the file."""
    found: dict[str, list[str]] = {}
    for name in names:
        found.setdefault(normal(name), []).append(name)
    for name in needed:
        if name not in found:
            has = printable(", ".join(found) or "none", _SHOWN)
            raise UserError(
                f"{path} has no column {name!r}{near(name, found)}, which the schema needs; it has "
                f"{has}"
            )
        if len(found[name]) > 1:
            raise UserError(f"{path} has {len(found[name])} columns {name!r}; rename all but one")
    return [found[name][0] for name in needed]


def _plain(table: pa.Table) -> pa.Table:
    """Return texts as one type, whatever way they are stored."""
    are_texts = (pa.types.is_dictionary, pa.types.is_large_string, pa.types.is_null)
    fields = [
        one.with_type(pa.string()) if any(check(one.type) for check in are_texts) else one
        for one in table.schema
    ]
    return table.cast(pa.schema(fields))


@contextlib.contextmanager
def _as_a_table(path: Path) -> Iterator[None]:
    """Say in one sentence what keeps a file from being read."""
    try:
        yield
    except (pa.ArrowException, OSError, csv.Error) as error:
        said = printable(" ".join(str(error).split()), _SHOWN)
        raise UserError(f"{path} cannot be read as a table: {said}") from None
