"""Columns of a table as a schema encodes them: numbers, missing values, and rows to refuse."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from coinflower.accounting.errors import UserError
from coinflower.learning.data.person_ids import numbers_of
from coinflower.learning.data.reading import Fault, Mask
from coinflower.learning.data.tables.schema import Column, Kind, Schema, normal
from coinflower.learning.data.weights import Weights, clamped, outside

_NUMBER = r"(?i)^[+-]?((\d+({0}\d*)?|{0}\d+)(e[+-]?\d+)?|nan|inf|infinity)$"


@dataclass(frozen=True, kw_only=True)
class Encoder:
    """Encodes the columns of one file and remembers what was special about them.

    Attributes:
        schema: How columns are read.
        table: The columns that the schema needs.
        faults: Why some rows cannot be used.
        clamped: By column, how many values lay outside of the range.
        unknown: By column, how many values are not listed.
        missing: By column, how many values are missing.
    """

    schema: Schema
    table: pa.Table
    faults: list[Fault] = field(default_factory=list)
    clamped: dict[str, int] = field(default_factory=dict)
    unknown: dict[str, int] = field(default_factory=dict)
    missing: dict[str, int] = field(default_factory=dict)

    def inputs(self) -> NDArray[np.float32]:
        """Return one row of numbers per row of the table, as `Schema.features` names them."""
        rows, width = len(self.table), len(self.schema.features)
        made = np.empty((rows, width), dtype=np.float32)
        at = 0
        for name, column in self.schema.inputs.items():
            for values in self._features(name, column):
                made[:, at] = values
                at += 1
        return made

    def targets(self) -> NDArray[Any]:
        """Return the class of each row, or the numbers that are to be predicted.

        Several categories become one number each, 0 or 1, if they have two values.
        """
        names = self.schema.target
        found = [self._target(name, self.schema.columns[name]) for name in names]
        if len(found) == 1:
            return found[0]
        return np.stack(found, axis=1).astype(np.float32)

    def persons(self) -> NDArray[np.int64] | None:
        """Return the number of each row's person."""
        name = self.schema.person
        if name is None:
            return None
        texts, missing = self._texts(name)
        different = pc.fill_null(texts, "").dictionary_encode()
        numbers, nobody = numbers_of(different.dictionary.to_pylist())
        row = np.asarray(different.indices, dtype=np.int64)
        missing |= nobody[row]  # whatever else the schema takes for missing
        self._refuse(name, missing, lambda _: "is blank, so nobody knows whose row it is")
        return numbers[row]

    def weights(self) -> Weights | None:
        """Return what each row weighs."""
        name = self.schema.weight
        if name is None:
            return None
        limits = self.schema.columns[name].limits
        values, missing, sound = self._numbers(name)
        self._refuse(name, missing, lambda _: "is missing, so nobody knows what its row weighs")
        self._refuse(name, values < 0, lambda row: f"= {values[row]:g} is a negative weight")
        self.clamped[name] = int((sound & outside(values, limits) & (values >= 0)).sum())
        return clamped(values, limits)

    def _features(self, name: str, column: Column) -> Iterator[NDArray[Any]]:
        if column.kind is Kind.NUMBER:
            values, missing, sound = self._numbers(name)
            least, largest = column.limits
            self.clamped[name] = int((sound & ((values < least) | (values > largest))).sum())
            scaled = (np.clip(values, least, largest) - column.origin) / column.unit
            yield np.where(missing, 0.0, scaled)
        else:
            codes, missing = self._codes(name, column)
            count = len(column.values or ())
            self.unknown[name] = int(((codes == count) & ~missing).sum())
            for code in range(count + 1):
                yield (codes == code) & ~missing
        if column.missing == "indicator":
            self.missing[name] = int(missing.sum())
            yield missing
        else:
            self._refuse(name, missing, lambda _: "is missing")

    def _target(self, name: str, column: Column) -> NDArray[Any]:
        if column.kind is Kind.NUMBER:
            values, missing, sound = self._numbers(name)
            least, largest = column.limits
            outside = sound & ((values < least) | (values > largest))
            self._refuse(
                name, outside, lambda row: f"= {values[row]:g} is not in {least:g} to {largest:g}"
            )
            self._refuse(name, missing, lambda _: "is missing")
            return ((values - column.origin) / column.unit).astype(np.float32)
        codes, missing = self._codes(name, column)
        self._refuse(name, missing, lambda _: "is missing")
        self._refuse(
            name,
            (codes == len(column.values or ())) & ~missing,
            lambda row: f"= {self._shown(name, row)} is none of the schema's values",
        )
        return codes

    def _numbers(self, name: str) -> tuple[NDArray[np.float64], Mask, Mask]:
        """Return a column's numbers, where they are missing, and where they are sound.

        Where they are not, they are 0.
        """
        column = self.table[name]
        if pa.types.is_string(column.type):
            texts, missing = self._texts(name)
            decimal = self.schema.decimal
            number = _NUMBER.format(re.escape(decimal))
            parses = _mask(pc.match_substring_regex(texts, number)) & ~missing
            self._refuse(name, ~parses & ~missing, lambda row: self._why_no_number(name, row))
            sound = pc.if_else(pa.array(parses), texts, None)
            numbers = pc.cast(pc.replace_substring(sound, decimal, "."), pa.float64())
        elif _is_numeric(column.type):
            numbers = pc.cast(column, pa.float64(), safe=False).combine_chunks()
            missing = _mask(pc.is_null(numbers))
            parses = ~missing
        else:
            raise UserError(f"column {name!r} of type {column.type} holds no numbers")
        values = np.asarray(pc.fill_null(numbers, 0.0), dtype=np.float64)
        finite = np.isfinite(values)
        self._refuse(
            name, ~finite, lambda row: "is NaN" if np.isnan(values[row]) else "is infinite"
        )
        return np.where(finite, values, 0.0), missing, parses & finite

    def _why_no_number(self, name: str, row: int) -> str:
        shown = self._shown(name, row)
        other = "." if self.schema.decimal == "," else ","
        if re.fullmatch(rf"'[+-]?\d+{re.escape(other)}\d+'", shown):
            return (
                f"= {shown} is not a number; if that is how yours are written, say "
                f'decimal = "{other}" in the schema, whose hash stays the same'
            )
        return f"= {shown} is not a number"

    def _codes(self, name: str, column: Column) -> tuple[NDArray[np.int64], Mask]:
        """Return each value's place in the list, its length for others, and what is missing."""
        texts, missing = self._texts(name)
        values = column.values or ()
        known = pa.array(map(normal, values), pa.string())
        places = pc.index_in(texts, value_set=known)
        return np.asarray(pc.fill_null(places, len(values)), dtype=np.int64), missing

    def _texts(self, name: str) -> tuple[pa.Array, Mask]:
        column = self.table[name]
        kind = column.type
        if not (pa.types.is_string(kind) or _is_numeric(kind)):
            raise UserError(f"column {name!r} of type {kind} holds neither texts nor numbers")
        if pa.types.is_floating(kind):
            column = pc.if_else(pc.is_nan(column), None, column)
        texts = pc.cast(column, pa.string()).combine_chunks()
        texts = pc.utf8_trim_whitespace(pc.utf8_normalize(texts, form="NFC"))
        absent = pa.array(map(normal, self.schema.missing_values), pa.string())
        return texts, _mask(pc.or_(pc.is_null(texts), pc.is_in(texts, value_set=absent)))

    def _shown(self, name: str, row: int) -> str:
        return repr(str(self.table[name][row].as_py())[:40])

    def _refuse(self, name: str, rows: Mask, why: Any) -> None:
        if rows.any():
            self.faults.append(Fault(rows=rows, why=lambda row: f"column {name!r} {why(row)}"))


def _is_numeric(kind: pa.DataType) -> bool:
    is_one = (
        pa.types.is_integer,
        pa.types.is_floating,
        pa.types.is_decimal,
        pa.types.is_boolean,
    )
    return any(check(kind) for check in is_one)


def _mask(values: Any) -> Mask:
    return np.asarray(pc.fill_null(values, False), dtype=bool)
