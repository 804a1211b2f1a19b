"""A schema to fill in: the names and types of a table's columns, and nothing of its content."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from coinflower.accounting.errors import UserError
from coinflower.learning.data.tables.csv_file import Spelling
from coinflower.learning.data.tables.schema import Kind, Schema, near
from coinflower.protocol.foreign import printable

_BARE = re.compile(r"[A-Za-z0-9_-]+")
_HEAD = """\
# How tables like {name} are read. This file is public: its hash is in the terms, and all clients
# need the same one. Ranges and categories should come from public knowledge, such as what is
# possible or what a form allows. Never take them from the data: a largest value or a rare category
# that only your data has would reveal something that no noise hides.
"""
_PUBLISHED = """\
# Figures from published statistics were charged for when those were made. Taking them from there
# costs nothing more.
"""
_TO_FILL_IN = {
    Kind.NUMBER: "range = []         # the least and the largest possible value",
    Kind.CATEGORY: 'values = []        # all that are publicly known; anything else is "other"',
}


def draft_schema(
    path: Path,
    columns: Mapping[str, Kind],
    spelling: Spelling | None = None,
    *,
    target: str | None,
    person: str | None,
    published: Mapping[str, Mapping[str, Any]] | None = None,
) -> str:
    """Return a schema for a table in which ranges and categories are left to a person.

    Args:
        path: The table.
        columns: Its columns, with what their types suggest that they hold.
        spelling: How it is written, if it is a CSV file.
        target: The column to be predicted, if somebody said.
        person: The column that says whose row it is, if somebody said.
        published: By column, what published statistics say of it.

    Raises:
        UserError: The table has no such column.
    """
    known = published or {}
    for column in known:
        if column not in columns:
            raise UserError(
                f"The statistics have a column {printable(column)!r}, and {path} has none"
                f"{near(column, columns)}."
            )
    for option, name in (("--target", target), ("--person", person)):
        if name is not None and name not in columns:
            raise UserError(f"{option} {name}: {path} has no such column{near(name, columns)}.")
    lines = [
        _HEAD.format(name=printable(path.name)) + (_PUBLISHED if known else ""),
        f"target = {json.dumps(target or '')}  # the column to be predicted",
        f"{'' if person else '# '}person = {json.dumps(person or '')}  # whose row it is",
    ]
    for key in ("encoding", "decimal"):
        written = getattr(spelling, key, None)
        if written not in (None, getattr(Schema, key)):
            lines.append(f'{key} = "{written}"  # how your file is written; no part of the hash')
    for name, kind in columns.items():
        key = name if _BARE.fullmatch(name) else json.dumps(name, ensure_ascii=False)
        told = {} if name == person else dict(known.get(name, {}))
        kept = Kind.IGNORED if name == person else told.pop("kind", kind)
        lines += ["", f"[columns.{key}]", f'kind = "{kept}"']
        lines += [
            f"{what} = {json.dumps(figure, ensure_ascii=False)}  # from published statistics"
            for what, figure in told.items()
        ]
        if kept in _TO_FILL_IN:
            if not told.keys() & {"range", "values"}:
                lines.append(_TO_FILL_IN[kept])
        elif name != person:
            lines[-1] += "  # a date, or nothing yet; a model takes numbers and categories"
    return "\n".join([*lines, ""])
