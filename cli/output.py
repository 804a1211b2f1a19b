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
from coinflower.deploy.terminal import as_the_terminal_shows, console, warn
from coinflower.protocol.foreign import printable

JsonFlag = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]

_DIGITS = 6
_LONG_WORD = 12  # Longer ones, such as hashes, may be broken.
_VERY_WIDE = 10_000
NOT_AN_UPPER_BOUND = "not an upper bound"


def print_json(figures: Mapping[str, object]) -> None:
    """Print one JSON object."""
    typer.echo(as_json_text(figures))


def as_json_text(figures: Mapping[str, object]) -> str:
    """Return figures as one JSON object; infinities become null, since JSON has none."""
    return json.dumps(_plain(figures), ensure_ascii=False, allow_nan=False)


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return {key: _plain(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_plain(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print rows as a table; numbers to six significant digits, rounded up.

    A narrow window costs the table its padding and breaks long cells; nothing is cut off, and
    words and figures stay whole as long as there is room.
    """
    table = Table(title=_cell(title), title_justify="left")
    cells = [[_cell(number(value)) for value in row] for row in rows]
    for index, column in enumerate(map(_cell, columns)):
        words = " ".join([column.plain, *(row[index].plain for row in cells)]).split()
        table.add_column(column, overflow="fold", min_width=min(max(map(len, words)), _LONG_WORD))
    for row in cells:
        table.add_row(*row)
    unlimited = console.options.update(max_width=_VERY_WIDE)
    if console.measure(table, options=unlimited).maximum > console.width:
        table.padding = 0
    console.print(table, crop=False)


def _cell(text: str) -> Text:
    # Text, since names may hold what rich would take for markup.
    return Text(as_the_terminal_shows(printable(text)))


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
