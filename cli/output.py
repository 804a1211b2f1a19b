"""How commands speak: figures as JSON or as tables, warnings and errors as one sentence."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from coinflower.accounting.rounding import rounded_down, rounded_up
from coinflower.deploy.terminal import console, warn
from coinflower.protocol.foreign import printable

JsonFlag = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]

_DIGITS = 6
NOT_AN_UPPER_BOUND = "not an upper bound"


def print_json(figures: Mapping[str, object]) -> None:
    """Print one JSON object; infinities become null, since JSON has none."""
    typer.echo(json.dumps(_plain(figures), ensure_ascii=False, allow_nan=False))


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return {key: _plain(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_plain(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print rows as a table; numbers to six significant digits, rounded up."""
    table = Table(title=Text(title), title_justify="left")
    for column in columns:
        table.add_column(column)
    for row in rows:
        # Text, since names may hold what rich would take for markup.
        table.add_row(*(Text(printable(number(cell))) for cell in row))
    console.print(table)


def number(value: object) -> str:
    """Return a figure as people read it, to six digits; never smaller than it is."""
    if value is None:
        return "–"
    return rounded_up(value, _DIGITS) if isinstance(value, float) else str(value)


def lower_bound(value: float) -> str:
    """Return a lower bound as people read it, to six digits; never larger than it is."""
    return rounded_down(value, _DIGITS)


def warn_not_an_upper_bound(scheme: str) -> None:
    """Warn of a scheme whose figures nobody may report."""
    warn(f"scheme {scheme!r} is {NOT_AN_UPPER_BOUND}; never report its figures as such.")
