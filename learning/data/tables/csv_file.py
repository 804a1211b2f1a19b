"""CSV files as programs export them: how they are encoded, and what separates their columns."""

from __future__ import annotations

import codecs
import csv
import io
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pa_csv

from coinflower.accounting.errors import UserError
from coinflower.learning.data.tables.schema import normal

_DELIMITERS = (",", ";", "\t", "|")
_UTF8 = "utf-8"
_GUESSED = (_UTF8, "cp1252", "latin-1")
_BEGINNING = 1 << 20
_WITH_COMMA = re.compile(r"(?m)(^|[;\t|])\"?-?\d+,\d+\"?(?=[;\t|\r\n]|$)")

# Rows are numbered, and no thread of the library can be left behind: one that holds a function of
# ours would wait for Python for ever when the process ends.
_IN_THIS_THREAD = {"use_threads": False}


@dataclass(frozen=True, kw_only=True)
class Spelling:
    """How a file is written.

    Attributes:
        delimiter: What separates columns.
        encoding: How characters are stored.
        decimal: What comes before the fraction of a number.
    """

    delimiter: str
    encoding: str = _UTF8
    decimal: str = "."


def header_of(
    path: Path, encoding: str, needed: Collection[str] = ()
) -> tuple[list[str], Spelling]:
    """Return the names of the columns, and how the file is written.

    Columns are separated by a comma, a semicolon, a tab or a bar: by that which gives the columns
    that are needed, or most columns.

    Raises:
        UserError: The file is empty, or not in this encoding.
    """
    _require_encoding(path, encoding)
    found = {delimiter: _first_row(path, encoding, delimiter) for delimiter in _DELIMITERS}

    def suits(delimiter: str) -> tuple[bool, int]:
        names = set(map(normal, found[delimiter]))
        return names.issuperset(needed), len(found[delimiter])

    best = max(found, key=suits)
    if not found[best]:
        raise UserError(f"{path} cannot be read as a table: it is empty")
    return found[best], Spelling(delimiter=best, encoding=encoding)


def read_csv(path: Path, columns: list[str], spelling: Spelling) -> tuple[pa.Table, dict[int, str]]:
    """Return columns as texts, and what is wrong with rows that are not as long as the header.

    Args:
        path: The file, in its encoding.
        columns: Names in its header.
        spelling: How it is written.
    """
    torn: dict[int, str] = {}

    def note(row: Any) -> str:
        torn[row.number - 2] = f"{row.actual_columns} values, not {row.expected_columns}"
        return "skip"

    table = pa_csv.read_csv(
        path,
        read_options=pa_csv.ReadOptions(encoding=spelling.encoding, **_IN_THIS_THREAD),
        parse_options=_parse_options(spelling, note),
        convert_options=pa_csv.ConvertOptions(
            include_columns=columns,
            column_types={name: pa.string() for name in columns},
            strings_can_be_null=False,
        ),
    )
    return table, torn


def guess_types(path: Path) -> tuple[pa.Schema, Spelling]:
    """Return the columns with the types that the beginning suggests, and how the file is written.

    Raises:
        UserError: The file is empty.
    """
    _, found = header_of(path, _guess_encoding(path))
    with path.open("rb") as file:
        content = file.read(_BEGINNING)
        if file.read(1):
            content = content[: content.rfind(b"\n") + 1]
    text = content.decode(found.encoding, "replace")
    has_commas = found.delimiter != "," and _WITH_COMMA.search(text)
    spelling = replace(found, decimal="," if has_commas else ".")
    table = pa_csv.read_csv(
        io.BytesIO(text.encode()),
        read_options=pa_csv.ReadOptions(**_IN_THIS_THREAD),
        parse_options=_parse_options(spelling, lambda _: "skip"),
        convert_options=pa_csv.ConvertOptions(decimal_point=spelling.decimal),
    )
    return table.schema, spelling


def _require_encoding(path: Path, encoding: str) -> None:
    line = _undecodable_line(path, encoding)
    if line is not None:
        raise UserError(
            f"{path} is not {encoding} in line {line}: name its encoding in the schema, such as "
            f'encoding = "{_guess_encoding(path)}"; the hash of the schema stays the same'
        )


def _guess_encoding(path: Path) -> str:
    with path.open("rb") as file:
        if file.read(2) in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
            return "utf-16"
    # In the last one every byte is a letter.
    return next(one for one in _GUESSED if _undecodable_line(path, one) is None)


def _undecodable_line(path: Path, encoding: str) -> int | None:
    decoder = codecs.getincrementaldecoder(encoding)()
    line = 1
    with path.open("rb") as file:
        try:
            while content := file.read(_BEGINNING):
                line += decoder.decode(content).count("\n")
            decoder.decode(b"", final=True)
        except UnicodeDecodeError as error:
            return line + error.object[: error.start].count(b"\n")
    return None


def _first_row(path: Path, encoding: str, delimiter: str) -> list[str]:
    with _opened(path, encoding) as file:
        return next(filter(None, csv.reader(file, delimiter=delimiter)), [])


def _opened(path: Path, encoding: str) -> Any:
    # The mark at the beginning of some files is no part of the first name.
    return path.open(newline="", encoding="utf-8-sig" if encoding == _UTF8 else encoding)


def _parse_options(spelling: Spelling, note: Callable[[Any], str]) -> Any:
    """Return options that let a line break be part of a value, and one torn row not stop it all."""
    return pa_csv.ParseOptions(
        delimiter=spelling.delimiter, newlines_in_values=True, invalid_row_handler=note
    )
