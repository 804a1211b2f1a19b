"""The gauge and the curve of the page, as SVG: they need no script.

Colours come from the style sheet by class; nothing is shown by colour alone.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from coinflower.accounting.charts import Axis, Line, line_chart
from coinflower.accounting.ledger.statement import Point
from coinflower.accounting.rounding import rounded_down, rounded_up
from coinflower.client.page.figures import Figures

# A budget that is far away would press the curve flat.
_FAR = 4.0
COLOURS = 6
"""How many classes of line the style sheet knows; experiments use them in turn."""


@dataclass(frozen=True, kw_only=True)
class Gauge:
    """The budget as a bar, in shares of its length.

    Attributes:
        spent: What is spent, at its beginning.
        reserved: What is reserved on top.
        limit: Where the budget ends; below 1 if more than that is spent or reserved.
        words: The same for those who do not see it.
    """

    spent: float
    reserved: float
    limit: float
    words: str


def gauge(figures: Figures, budget: float) -> Gauge:
    """Return the bar of a budget."""
    whole = max(budget, figures.reserved_epsilon) or 1.0
    spent = _share(figures.spent, whole)
    return Gauge(
        spent=spent,
        reserved=max(0.0, _share(figures.reserved_epsilon, whole) - spent),
        limit=_share(budget, whole),
        words=f"Of a budget of {rounded_down(budget)}, {rounded_up(figures.spent)} is spent and "
        f"{rounded_up(figures.reserved_on_top)} more is reserved.",
    )


def _share(value: float, whole: float) -> float:
    return min(1.0, value / whole) if math.isfinite(whole) else float(not math.isfinite(value))


def draw_curve(figures: Figures, experiments: Sequence[str]) -> Markup:
    """Return ε over charged rounds, with what is reserved and the budget as lines across.

    Args:
        figures: What to draw.
        experiments: All experiments in the order of their colours.
    """
    points = [point for point in figures.curve if math.isfinite(point.epsilon)]
    rounds = points[-1].rounds
    levels = {"reserved": figures.reserved_epsilon}
    if figures.budget is not None and figures.budget.epsilon <= _FAR * figures.reserved_epsilon:
        levels["budget"] = figures.budget.epsilon
    lines = [
        Line(name=kind, points=[(0, level), (rounds, level)], kind=kind, labelled=True)
        for kind, level in levels.items()
        if math.isfinite(level)
    ]
    for strand in _strands(points):
        experiment = strand[-1].experiment
        colour = experiments.index(experiment) % COLOURS
        drawn = [(point.rounds, point.epsilon) for point in strand]
        lines.append(Line(name=experiment, points=drawn, kind=f"colour-{colour}"))
    return line_chart(
        f"Epsilon rises from 0 to {rounded_up(figures.spent)} over {rounds} charged rounds, at "
        f"delta = {figures.delta:g}.",
        lines,
        x=Axis(label="charged rounds", text="{:,.0f}".format, whole=True),
        y=Axis(label="ε"),
    )


def _strands(points: Sequence[Point]) -> list[list[Point]]:
    """Cut the curve where the experiment changes; each piece starts where the last one ended."""
    strands: list[list[Point]] = []
    for before, point in itertools.pairwise(points):
        if strands and strands[-1][-1].experiment == point.experiment:
            strands[-1].append(point)
        else:
            strands.append([before, point])
    return strands
