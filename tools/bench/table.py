"""All benchmarks in one table: on the screen, and in docs/benchmarks.md.

A benchmark is a module with ``run() -> list[dict]``, one row per figure:

* ``measure``: what was measured; ends in "(at least)" where larger is better,
* ``value``: the figure, mostly a ratio of two things measured in turns,
* ``limit``: what it must keep, None where there is nothing to meet,
* ``met``: whether it does,
* ``samples``, if it depends on a batch size.

Run with ``python -m tools.bench``; exits with 1 if a limit is missed.
"""

from __future__ import annotations

import importlib
import math
import os
import platform
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

BENCHMARKS = (
    "tools.bench.accounting",
    "tools.bench.clipped",
    "tools.bench.large_batches",
    "tools.bench.masked",
    "tools.bench.models",
    "tools.bench.noise",
    "tools.bench.persons",
    "tools.bench.rounds",
    "tools.bench.scale",
    "tools.bench.simulator",
    "tools.bench.transport",
)
COLUMNS = ("what", "value", "limit", "met")
PAGE = Path(__file__).resolve().parents[2] / "docs" / "benchmarks.md"


def as_cells(row: dict[str, Any]) -> tuple[str, str, str, str]:
    """Return a row as the table shows it."""
    what = row["measure"] if "samples" not in row else f"{row['measure']}, n = {row['samples']}"
    limit = "" if row["limit"] is None else _figure(row["limit"])
    verdict = "NO" if row["met"] is False else "yes" if limit else ""
    return what, _figure(row["value"]), limit, verdict


def _figure(value: float) -> str:
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"


def as_markdown(rows: Sequence[dict[str, Any]], machine: str) -> str:
    """Return the page that holds the table."""
    lines = [
        "# Benchmarks",
        "",
        f"Written by `make bench`: {machine}.",
        "",
        f"| {' | '.join(COLUMNS)} |",
        "|---|---:|---:|---|",
        *(f"| {' | '.join(as_cells(row))} |" for row in rows),
    ]
    return "\n".join(lines) + "\n"


def describe_machine() -> str:
    """Return cores, processor and date."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    model = names[0] if names else platform.processor() or platform.machine()
    return f"{os.cpu_count()} cores, {model}, {datetime.now(UTC):%Y-%m-%d}"


def measured(name: str, console: Console) -> list[dict[str, Any]]:
    """Return the rows of a benchmark, told as soon as they there; if it fails, one saying so.

    Args:
        name: Its module.
        console: Where they are told.
    """
    try:
        rows: list[dict[str, Any]] = importlib.import_module(name).run()
    except Exception as error:  # the others take long, and their figures are good
        console.print_exception()
        rows = [failed_row(name, error)]
    for row in rows:
        console.print("  ".join(as_cells(row)), style=_style(row), highlight=False)
    return rows


def failed_row(name: str, error: Exception) -> dict[str, Any]:
    """Return the row of a benchmark that could not be run."""
    what = f"{name.rpartition('.')[2]} failed: {type(error).__name__}"
    return {"measure": what, "value": math.nan, "limit": None, "met": False}


def _style(row: dict[str, Any]) -> str | None:
    return "red" if row["met"] is False else None


def main() -> None:
    """Run every benchmark, print and write the table."""
    console = Console()
    rows = [row for name in BENCHMARKS for row in measured(name, console)]
    machine = describe_machine()
    table = Table(*COLUMNS, title=machine, title_justify="left")
    for row in rows:
        table.add_row(*as_cells(row), style=_style(row))
    console.print(table)
    PAGE.write_text(as_markdown(rows, machine))
    if any(row["met"] is False for row in rows):
        sys.exit(1)
