"""The schema of a table: a small public file that says how its columns become numbers.

Everything in it is public knowledge, agreed on before anybody looks at data. No statistic of a
data set is ever computed to scale, fill or encode it: that would reveal something that no noise
hides. Its hash is in the terms, so that all clients read their tables alike.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import math
import unicodedata
from collections.abc import Iterable
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator

from coinflower.accounting.errors import UserError
from coinflower.protocol.strict import Positive, Text, load, strict

_MOST_SCALES = 1_000_000  # far beyond, single precision ends and no model learns


def normal(text: str) -> str:
    """Return a name or a value as they are compared: equal texts may be stored in several ways."""
    return unicodedata.normalize("NFC", text).strip()


class Kind(StrEnum):
    """What a column holds."""

    NUMBER = "number"
    CATEGORY = "category"
    IGNORED = "ignored"


def _as_text(value: object) -> object:
    """Return an integer or truth value as a table spells it."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int) else value


def _texts(values: object) -> object:
    return tuple(map(_as_text, values)) if isinstance(values, list) else values


def _names(values: object) -> object:
    if isinstance(values, str):
        return (values,)
    return tuple(values) if isinstance(values, list) else values


_Texts = Annotated[tuple[str, ...], BeforeValidator(_texts)]
_Names = Annotated[tuple[str, ...], BeforeValidator(_names)]


@strict
class Column:
    """How one column is read.

    Attributes:
        kind: What it holds.
        range: Of a number, the least and largest possible; what lies outside is set to these.
        centre: Of a number, what becomes 0; the middle of the range by default.
        scale: Of a number, how much becomes 1; half of the range by default.
        values: Of a category, all that is known; anything else is "other".
        missing: Whether a missing value is told by a column of its own, or makes the row unusable.
    """

    kind: Kind
    range: tuple[float, ...] | None = None
    centre: float | None = None
    scale: Positive | None = None
    values: _Texts | None = None
    missing: Literal["indicator", "refused"] = "indicator"

    def __post_init__(self) -> None:
        """Check that a number has a range and a category its values, and neither has the other."""
        wrong = {
            Kind.NUMBER: ("values",),
            Kind.CATEGORY: ("range", "centre", "scale"),
            Kind.IGNORED: ("range", "centre", "scale", "values"),
        }[self.kind]
        for name in wrong:
            if getattr(self, name) is not None:
                raise UserError(f"{name} must be left out of a column of kind {self.kind}.")
        if self.kind is Kind.NUMBER:
            limits = self.range or ()
            if len(limits) != 2 or not all(map(math.isfinite, limits)) or limits[0] >= limits[1]:
                raise UserError(
                    f"range = {list(limits)} must be two numbers, the least and the largest "
                    "possible, from public knowledge."
                )
            if self.centre is not None and not math.isfinite(self.centre):
                raise UserError(f"centre = {self.centre} must be a finite number.")
            reach = max(abs(limit - self.origin) for limit in limits)
            if not (0 < self.unit < math.inf and reach <= _MOST_SCALES * self.unit):
                raise UserError(
                    f"scale = {self.unit:g} does not suit range = {list(limits)}: it must reach "
                    f"at most {_MOST_SCALES:,} scales from the centre."
                )
        if self.kind is Kind.CATEGORY:
            values = self.values or ()
            if not values:
                raise UserError("values = [] must list the categories that are publicly known.")
            if len(set(map(normal, values))) < len(values):
                raise UserError(f"values = {list(values)} has one of them twice.")

    @property
    def limits(self) -> tuple[float, float]:
        """The range of a number."""
        assert self.range is not None
        least, largest = self.range
        return least, largest

    @property
    def origin(self) -> float:
        """What becomes 0."""
        return sum(self.limits) / 2 if self.centre is None else self.centre

    @property
    def unit(self) -> float:
        """What becomes 1, counted from the origin."""
        least, largest = self.limits
        return (largest - least) / 2 if self.scale is None else self.scale

    def to_fields(self) -> dict[str, Any]:
        """Return what the column means, whatever was left to defaults."""
        fields: dict[str, Any] = {"kind": str(self.kind), "missing": self.missing}
        if self.kind is Kind.NUMBER:
            fields |= {"range": list(self.limits), "centre": self.origin, "scale": self.unit}
        if self.kind is Kind.CATEGORY:
            fields["values"] = list(self.values or ())
        return fields


@strict
class Schema:
    """How a table is read.

    Attributes:
        target: The column to be predicted, or several.
        columns: The columns in the order of the model's inputs; those not listed are ignored.
        person: The column that says whose row it is.
        weight: The column that says what a row weighs in the loss: a number whose range is what
            weights are clamped to.
        missing_values: Texts that stand for a missing value.
        encoding: How a CSV file is encoded. This and ``decimal`` say how one owner's file is
            written, not what it means, so they are no part of the hash.
        decimal: What comes before the fraction of a number in a text: a point or a comma.
    """

    target: _Names
    columns: dict[Text, Column]
    person: Text | None = None
    weight: Text | None = None
    missing_values: tuple[str, ...] = ("",)
    encoding: Text = "utf-8"
    decimal: Literal[".", ","] = "."

    def __post_init__(self) -> None:
        """Check that target and person are columns that can be used so."""
        if not self.target or not all(self.target) or len(set(self.target)) < len(self.target):
            raise UserError("target must name the column to be predicted, or several, each once.")
        for name in self.target:
            kind = self._column(name, "target").kind
            if kind is Kind.IGNORED:
                raise UserError(f"target = {name!r} is an ignored column; say what it holds.")
        kinds = {self.columns[name].kind for name in self.target}
        if len(kinds) > 1:
            raise UserError("target must name columns of one kind: all numbers or all categories.")
        if self.person is not None:
            listed = self.columns.get(self.person)
            if listed is not None and listed.kind is not Kind.IGNORED:
                raise UserError(
                    f"person = {self.person!r} must not be an input of the model: leave its column "
                    "out, or let its kind be ignored."
                )
        if self.weight is not None:
            self._check_weight(self.weight)
        if not self.inputs:
            raise UserError("columns lists no input: no number or category beside the target.")
        if len(set(map(normal, self.needed))) < len(self.needed):
            raise UserError("columns lists one of them twice, in two spellings.")
        try:
            "".encode(self.encoding)
        except (LookupError, UnicodeError):
            raise UserError(
                f"encoding = {self.encoding!r} is unknown; usual are utf-8, cp1252, latin-1 and "
                "utf-16."
            ) from None

    def _check_weight(self, name: str) -> None:
        column = self._column(name, "weight")
        if name in (*self.target, self.person):
            raise UserError(f"weight = {name!r} must be a column of its own.")
        if column.kind is not Kind.NUMBER or column.limits[0] < 0:
            raise UserError(f"weight = {name!r} must be a number whose range begins at 0 or above.")
        if column.centre is not None or column.scale is not None:
            raise UserError(f"weight = {name!r} is taken as it is: leave out centre and scale.")

    def _column(self, name: str, what: str) -> Column:
        if name not in self.columns:
            hint = near(name, self.columns)
            raise UserError(f"{what} = {name!r} is not listed in columns{hint}.")
        return self.columns[name]

    @property
    def inputs(self) -> dict[str, Column]:
        """The columns that a model takes."""
        return {
            name: column
            for name, column in self.columns.items()
            if column.kind is not Kind.IGNORED and name not in (*self.target, self.weight)
        }

    @property
    def needed(self) -> list[str]:
        """Names of all columns that a table must have."""
        beside = [name for name in (self.person, self.weight) if name is not None]
        return [*self.inputs, *self.target, *beside]

    @property
    def class_names(self) -> tuple[str, ...] | None:
        """Names of the classes, if the target is one category."""
        column = self.columns[self.target[0]]
        return column.values if len(self.target) == 1 else None

    @property
    def target_scale(self) -> tuple[float, ...] | None:
        """How much of its own unit is 1 in each number of a target, if targets are numbers."""
        columns = [self.columns[name] for name in self.target]
        if columns[0].kind is not Kind.NUMBER:
            return None
        return tuple(column.unit for column in columns)

    @property
    def features(self) -> list[str]:
        """What each number of a row means that a model takes."""
        names = []
        for name, column in self.inputs.items():
            if column.kind is Kind.NUMBER:
                names.append(name)
            else:
                names += [f"{name} = {value}" for value in (*(column.values or ()), "(other)")]
            if column.missing == "indicator":
                names.append(f"{name} is missing")
        return names

    @property
    def hash(self) -> str:
        """SHA-256 of what the schema means: comments, spelled-out defaults and layout do not count.

        Neither does how a file is written. The order of columns does: it is that of a model's
        inputs.
        """
        fields = {
            "target": list(self.target),
            "person": self.person,
            # Schemas from before there were weights keep their hash.
            **({} if self.weight is None else {"weight": self.weight}),
            "missing_values": list(self.missing_values),
            "columns": [
                [name, column.to_fields()]
                for name, column in self.columns.items()
                if column.kind is not Kind.IGNORED
            ],
        }
        text = json.dumps(fields, sort_keys=True, separators=(",", ":"), allow_nan=False)
        return hashlib.sha256(text.encode()).hexdigest()


def load_schema(path: Path) -> Schema:
    """Read a schema.

    Raises:
        UserError: Naming the file, the key and what is wrong with it.
    """
    return load(Schema, path, f"The schema {path}")


def near(name: str, known: Iterable[str]) -> str:
    """Return a hint in brackets at what a name may have been meant to be."""
    by_lower = {one.lower(): one for one in known}
    found = difflib.get_close_matches(name.lower(), by_lower, n=1)
    return f" (did you mean {by_lower[found[0]]!r}?)" if found else ""
