"""How commands speak: figures as JSON or as tables, warnings and errors as one sentence."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

console = Console()
errors = Console(stderr=True, soft_wrap=True)

JsonFlag = Annotated[bool, typer.Option("--json", help="Print figures as JSON.")]

NOT_AN_UPPER_BOUND = "not an upper bound"


def print_json(figures: Mapping[str, object]) -> None:
    """Print one JSON object; infinities become null, since JSON has none."""
    plain = {
        key: None if isinstance(value, float) and not math.isfinite(value) else value
        for key, value in figures.items()
    }
    typer.echo(json.dumps(plain, ensure_ascii=False))


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print rows as a table; numbers to six significant digits."""
    table = Table(title=title, title_justify="left")
    for column in columns:
        table.add_column(column)
    for row in rows:
        table.add_row(*(number(cell) for cell in row))
    console.print(table)


def number(value: object) -> str:
    """Return a figure as people read it."""
    if value is None:
        return "–"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def warn(message: str) -> None:
    """Print a warning to standard error, so that it never mixes with figures."""
    errors.print(f"Warning: {message}", style="yellow", markup=False)
