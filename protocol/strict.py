"""Strict decoding: every value is checked once, and errors name the key and what is allowed.

Pydantic checks the types: true is not 1, a text is not a list, an unknown key is an error.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import json
import re
import tomllib
import typing
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar, cast, dataclass_transform

import pydantic.dataclasses
from pydantic import BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError

from coinflower.accounting.errors import UserError

_Kind = TypeVar("_Kind")
_CONFIG = ConfigDict(strict=True, extra="forbid")


def _as_tuple(values: object) -> object:
    return tuple(values) if isinstance(values, list) else values


Probability = Annotated[float, Field(gt=0, le=1)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Cap = Annotated[float, Field(ge=1)]
"""Largest norm of a client's whole sum, in clip norms; infinite for none."""
Sha256 = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
NotaryKey = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
"""An X25519 public key in hexadecimal digits."""
Count = Annotated[int, Field(ge=1)]
Index = Annotated[int, Field(ge=0)]
Text = Annotated[str, Field(min_length=1)]
Listed = Annotated[tuple[_Kind, ...], BeforeValidator(_as_tuple)]
"""Any number of values; a list where they are written."""
_Finite = Annotated[float, Field(allow_inf_nan=False)]
Option = bool | int | _Finite | str | list[int] | list[_Finite]
Options = dict[Text, Option]
"""Values by name that only their user can check."""


@dataclass_transform(frozen_default=True, kw_only_default=True)
def strict(cls: type[_Kind]) -> type[_Kind]:
    """Make a frozen dataclass of keywords whose constructor checks every field."""
    made: Any = pydantic.dataclasses.dataclass(config=_CONFIG, frozen=True, kw_only=True)(cls)
    construct = made.__init__

    @functools.wraps(construct)
    def init(self: Any, /, **fields: Any) -> None:
        try:
            construct(self, **fields)
        except ValidationError as error:
            raise UserError(_sentence(error, made, "")) from None

    made.__init__ = init
    return cast(type[_Kind], made)


def decode(kind: type[_Kind], text: str | bytes, where: str) -> _Kind:
    """Return the value that a JSON object describes.

    Raises:
        ValueError: Saying what is wrong with which key; it begins with ``where``.
    """
    try:
        return TypeAdapter(kind).validate_json(text)
    except ValidationError as error:
        raise UserError(_sentence(error, kind, where)) from None


def load(kind: type[_Kind], path: Path, where: str, **defaults: object) -> _Kind:
    """Return the value that a TOML file describes.

    Args:
        kind: Its type.
        path: The file.
        where: How an error names it.
        defaults: What stands for keys that the file leaves out.

    Raises:
        ValueError: As `decode`, or the file is missing, not readable, or not TOML.
    """
    try:
        text = json.dumps({**defaults, **read_toml(path)})
    except TypeError:
        raise UserError(f"{where} cannot be used: no key of it is a date or time.") from None
    return decode(kind, text, where)


def read_toml(path: Path) -> dict[str, Any]:
    """Return the file's content.

    Raises:
        ValueError: The file is missing, not readable, or not TOML.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        raise UserError(f"There is no file {path}.") from None
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}.") from None
    except (ValueError, RecursionError) as error:  # numbers of thousands of digits, deep nesting
        raise UserError(f"{path} is not TOML: {error}.") from None


def _sentence(error: ValidationError, kind: type, where: str) -> str:
    """Return what is wrong first: a misspelt key is the reason why another one is missing."""
    found = error.errors(include_url=False)
    if unknown := [one for one in found if one["type"] in _UNKNOWN]:
        *tables, key = unknown[0]["loc"]
        known = [field.name for field in dataclasses.fields(_kind_at(kind, tables))]
        near = difflib.get_close_matches(str(key), known, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(known)}."
        return f"{_place(where or kind.__name__, tables)} has an unknown key {key!r}; {hint}"
    if missing := [one["loc"] for one in found if one["type"] in _MISSING]:
        *tables, _ = missing[0]
        keys = ", ".join(repr(key) for *within_, key in missing if within_ == tables)
        return f"{_place(where or kind.__name__, tables)} lacks {keys}."
    first = found[0]
    loc, what = [str(one) for one in first["loc"]], first["msg"]
    if first["type"] == "value_error":
        what = str(first["ctx"]["error"])
        what = ".".join([*loc, what])  # names the fields that do not go together
    elif first["type"] == "dataclass_type":
        what = f"[{'.'.join(loc)}] must be a table." if loc else "it must be a table."
    elif loc:
        wanted = re.sub(r"^\w+ should", "must", what)
        for theirs, ours in _WORDS.items():
            wanted = wanted.replace(theirs, ours)
        what = f"{'.'.join(loc)} = {first['input']!r} {wanted}."
    return f"{where} cannot be used: {what}" if where else what


_WORDS = {
    "a valid array": "a list",
    "a valid boolean": "true or false",
    "a valid integer": "an integer",
    "a valid number": "a number",
    "a valid string": "a text",
    "greater than or equal to": "at least",
    "greater than": "above",
    "have at least 1 character": "not be empty",
    "less than or equal to": "at most",
    "less than": "below",
}
_UNKNOWN = ("extra_forbidden", "unexpected_keyword_argument")
_MISSING = ("missing", "missing_keyword_only_argument")


def _place(where: str, tables: Sequence[object]) -> str:
    return f"{where}, [{'.'.join(map(str, tables))}]," if tables else where


def _kind_at(kind: Any, tables: Sequence[object]) -> Any:
    """Return the dataclass of a table within a table."""
    names = iter(tables)
    for name in names:
        hint = typing.get_type_hints(kind)[str(name)]
        if typing.get_origin(hint) is dict:
            next(names, None)  # a key of the user's own
        kind = next(one for one in (hint, *typing.get_args(hint)) if dataclasses.is_dataclass(one))
    return kind
