"""Pictures of a comparison: the error over ε, and over the number of clients.

Errors are drawn on a logarithmic scale, which tells 3 % from 4 % and shows 80 % beside them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from coinflower.accounting.plots import new_axes, save
from coinflower.experiments.comparison.comparisons import DELTA, Comparison
from coinflower.experiments.comparison.lines import LINES, Cell
from coinflower.experiments.comparison.playing import (
    OVER_CLIENTS_EPSILON,
    cells_of,
    cells_over_clients,
)
from coinflower.experiments.comparison.record import TrainingRecord
from coinflower.experiments.studies.drawing import mark_plainly

OVER_EPSILON, OVER_CLIENTS = "accuracy", "over-clients"
_LOOKS: dict[str, dict[str, Any]] = {
    "centralised DP-SGD": {"color": "0.5", "linestyle": "--", "marker": "v"},
    "trusted, everybody": {"color": "C9", "linestyle": ":", "marker": "s", "fillstyle": "none"},
    "trusted, capped": {"color": "C0", "marker": "o", "linewidth": 2.2},
    "masked, capped": {"color": "C2", "marker": "D", "linewidth": 2.2},
    "trusted": {"color": "C0", "linestyle": "--", "marker": "o", "fillstyle": "none"},
    "trusted, σ of wcs": {"color": "C4", "marker": "^"},
    "trusted, σ of ols": {"color": "C5", "marker": "<"},
    "trusted, the paper's σ": {"color": "C1", "linestyle": ":", "marker": "x"},
    "quiet": {"color": "C8", "marker": "P"},
    "untrusted": {"color": "C3", "marker": "X"},
}
_ERROR = "test error, less is better"
_ERRORS = (0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 0.5, 1.0)
_TRUST = {"trusted": "C0", "masked": "C2", "untrusted": "C3"}


def draw(comparison: Comparison, record: TrainingRecord, out: Path) -> list[str]:
    """Draw what is trained as PNG and SVG; returns the names of the pictures."""
    cells = cells_of(comparison)
    figure, axes = new_axes("", f"ε that holds, δ = {DELTA:g}", _ERROR)
    outcome = record.outcome(cells[0].level)
    if outcome is not None:
        axes.axhline(1 - outcome.mean, color="0.2", label=LINES[0].name)
    for name, look in _LOOKS.items():
        mine = [cell for cell in cells if cell.line.name == name]
        _plot(axes, mine, record, lambda cell: cell.true_epsilon, label=name, **look)
    axes.set_xscale("log")
    _finish(figure, axes, out / OVER_EPSILON)
    if not comparison.over_clients:
        return [OVER_EPSILON]
    title = f"ε = {OVER_CLIENTS_EPSILON:g}, the same {comparison.units:,} records"
    figure, axes = new_axes(title, "clients that share them", _ERROR)
    for name, colour in _TRUST.items():
        mine = [cell for cell in cells_over_clients(comparison) if cell.line.name == name]
        _plot(axes, mine, record, lambda cell: cell.clients, label=name, color=colour, marker="o")
    axes.set_xscale("log")
    _finish(figure, axes, out / OVER_CLIENTS, comparison.over_clients)
    return [OVER_EPSILON, OVER_CLIENTS]


def _plot(
    axes: Any,
    cells: Iterable[Cell],
    record: TrainingRecord,
    place: Callable[[Cell], float | None],
    **look: Any,
) -> None:
    points = [
        (place(cell), 1 - outcome.mean, outcome.spread)
        for cell in cells
        if (outcome := record.outcome(cell.level)) is not None
    ]
    if points:
        x, error, spread = zip(*points, strict=True)
        axes.errorbar(x, error, yerr=spread, capsize=3, **look)


def _finish(figure: Any, axes: Any, path: Path, ticks: Iterable[float] = ()) -> None:
    from matplotlib import ticker

    axes.set_yscale("log")
    axes.yaxis.set_major_locator(ticker.FixedLocator(_ERRORS))
    axes.yaxis.set_major_formatter(ticker.PercentFormatter(1.0))
    axes.yaxis.set_minor_formatter(ticker.NullFormatter())
    mark_plainly(axes, sorted(set(ticks)))
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.12), ncols=3)
    save(figure, path.with_suffix(".png"), path.with_suffix(".svg"))
