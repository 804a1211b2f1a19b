"""Tables in CSV and Parquet files, read as a schema says."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pa_parquet
from numpy.typing import NDArray

from coinflower.accounting.errors import UserError
from coinflower.learning.data.dataset import Dataset
from coinflower.learning.data.reading import Fault, sort_out
from coinflower.learning.data.records import Records
from coinflower.learning.data.tables.encoding import Encoder
from coinflower.learning.data.tables.schema import Kind, Schema, near


def load_table(path: Path, schema: Schema) -> Dataset:
    """Return the rows of a table.

    Rows that cannot be used count as absent, and the log names them.

    Args:
        path: A CSV file with a header in its first line, or a Parquet file.
        schema: How its columns are read.

    Raises:
        UserError: Naming the file and what is wrong with it: not a table, a column that is missing
            or of a type that cannot be read, or most rows cannot be used.
    """
    table, torn = _read_columns(path, schema)
    # Places of the rows in the file: those that are torn are not in the table.
    places = np.setdiff1d(np.arange(len(table) + len(torn)), list(torn))
    encoder = Encoder(schema=schema, table=table)
    try:
        inputs, targets, persons = encoder.inputs(), encoder.targets(), encoder.persons()
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    if len(places) == 0:
        raise UserError(f"{path} has no rows")
    faults = [_moved(fault, places, len(table) + len(torn)) for fault in encoder.faults]
    if torn:
        rows = np.zeros(len(table) + len(torn), dtype=bool)
        rows[list(torn)] = True
        faults.insert(0, Fault(rows=rows, why=lambda row: f"it has {torn[row]}"))
    kept, reading = sort_out(str(path), len(table) + len(torn), faults, noun="row", first=1)
    records = Records(
        inputs=inputs,
        targets=targets,
        persons=persons,
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


# Rows are numbered, and no thread of the library can be left behind: one that holds a function of
# ours would wait for Python for ever when the process ends.
_IN_THIS_THREAD = pa_csv.ReadOptions(use_threads=False)


def column_types(path: Path) -> dict[str, Kind]:
    """Return the columns of a table with what their type suggests that they hold.

    Raises:
        UserError: It is no table.
    """
    try:
        if path.suffix == ".parquet":
            found = pa_parquet.read_schema(path)
        else:
            found = pa_csv.read_csv(
                path, read_options=_IN_THIS_THREAD, parse_options=_csv_options()
            ).schema
    except (pa.ArrowException, OSError) as error:
        raise UserError(f"{path} cannot be read as a table: {_said(error)}") from None
    numeric = (pa.types.is_integer, pa.types.is_floating)
    texts = (pa.types.is_string, pa.types.is_large_string, pa.types.is_boolean)
    kinds = {}
    for one in found:
        kinds[one.name] = Kind.IGNORED
        if any(is_kind(one.type) for is_kind in numeric):
            kinds[one.name] = Kind.NUMBER
        elif any(is_kind(one.type) for is_kind in texts) or pa.types.is_dictionary(one.type):
            kinds[one.name] = Kind.CATEGORY
    return kinds


def _read_columns(path: Path, schema: Schema) -> tuple[pa.Table, dict[int, str]]:
    """Return the columns that the schema needs, and the rows that are not as long as the header."""
    names = _names(path)
    for name in schema.needed:
        if name not in names:
            raise UserError(
                f"{path} has no column {name!r}{near(name, names)}, which the schema needs; it has "
                f"{', '.join(names) or 'none'}"
            )
        if names[name] > 1:
            raise UserError(f"{path} has {names[name]} columns {name!r}; rename all but one")
    try:
        if path.suffix == ".parquet":
            return _plain(pa_parquet.read_table(path, columns=schema.needed)), {}
        return _read_csv(path, schema)
    except (pa.ArrowException, OSError) as error:
        raise UserError(f"{path} cannot be read as a table: {_said(error)}") from None


def _plain(table: pa.Table) -> pa.Table:
    """Return texts as one type, whatever way they are stored."""
    are_texts = (pa.types.is_dictionary, pa.types.is_large_string, pa.types.is_null)
    fields = [
        one.with_type(pa.string()) if any(check(one.type) for check in are_texts) else one
        for one in table.schema
    ]
    return table.cast(pa.schema(fields))


def _read_csv(path: Path, schema: Schema) -> tuple[pa.Table, dict[int, str]]:
    torn: dict[int, str] = {}

    def note(row: Any) -> str:
        torn[row.number - 2] = f"{row.actual_columns} values, not {row.expected_columns}"
        return "skip"

    table = pa_csv.read_csv(
        path,
        read_options=_IN_THIS_THREAD,
        parse_options=_csv_options(note),
        convert_options=pa_csv.ConvertOptions(
            include_columns=schema.needed,
            column_types={name: pa.string() for name in schema.needed},
            strings_can_be_null=False,
        ),
    )
    return table, torn


def _csv_options(note: Callable[[Any], str] = lambda _: "skip") -> Any:
    """Return options that let a line break be part of a value, and one torn row not stop it all."""
    return pa_csv.ParseOptions(newlines_in_values=True, invalid_row_handler=note)


def _names(path: Path) -> Counter[str]:
    try:
        if path.suffix == ".parquet":
            return Counter(pa_parquet.read_schema(path).names)
        with path.open(newline="", encoding="utf-8-sig") as file:
            names = next(filter(None, csv.reader(file)), None)
    except (pa.ArrowException, OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{path} cannot be read as a table: {_said(error)}") from None
    if names is None:
        raise UserError(f"{path} cannot be read as a table: it is empty")
    return Counter(names)


def _said(error: Exception) -> str:
    return " ".join(str(error).split())[:200]
