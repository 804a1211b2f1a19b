"""The gauge and the curve as SVG, drawn here so that the page needs no script for them.

Colours come from the style sheet by class; nothing is told by colour alone.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from markupsafe import Markup

from coinflower.accounting.ledger.statement import Point
from coinflower.accounting.rounding import rounded_down, rounded_up
from coinflower.client.page.figures import Figures

_WIDTH, _HEIGHT = 400.0, 220.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 46.0, 8.0, 12.0, 34.0
# A budget that is far away would press the curve flat.
_FAR = 4.0
COLOURS = 6
"""How many classes of line the style sheet knows; experiments use them in turn."""


def draw_gauge(figures: Figures) -> Markup:
    """Return the budget as a bar: spent, reserved, and the rest."""
    assert figures.budget is not None
    whole = max(figures.budget.epsilon, figures.reserved_epsilon) or 1.0
    spent = _share(figures.spent, whole)
    reserved = max(0.0, _share(figures.reserved_epsilon, whole) - spent)
    words = (
        f"Of a budget of {rounded_down(figures.budget.epsilon)}, "
        f"{rounded_up(figures.spent)} is spent and "
        f"{rounded_up(figures.reserved_on_top)} more is reserved."
    )
    parts = [
        Markup('<svg class="gauge" role="img" aria-label="{}" width="100%" height="32">').format(
            words
        ),
        Markup(
            '<defs><pattern id="stripes" width="8" height="8" patternUnits="userSpaceOnUse" '
            'patternTransform="rotate(45)"><rect class="stripe-ground" width="8" height="8"/>'
            '<rect class="stripe" width="4" height="8"/></pattern></defs>'
        ),
        Markup('<rect class="free" width="100%" height="32" rx="6"/>'),
        _bar("reserved", spent, reserved),
        _bar("spent", 0.0, spent),
    ]
    limit = _share(figures.budget.epsilon, whole)
    if limit < 1:
        parts.append(
            Markup('<line class="limit" x1="{0:.3f}%" x2="{0:.3f}%" y1="0" y2="32"/>').format(
                100 * limit
            )
        )
    return Markup("").join([*parts, Markup("</svg>")])


def _share(value: float, whole: float) -> float:
    return min(1.0, value / whole) if math.isfinite(whole) else float(not math.isfinite(value))


def _bar(kind: str, start: float, width: float) -> Markup:
    return Markup('<rect class="{}" x="{:.3f}%" width="{:.3f}%" height="32"/>').format(
        kind, 100 * start, 100 * width
    )


def draw_curve(figures: Figures, experiments: Sequence[str]) -> Markup:
    """Return ε over charged rounds, with what is reserved and the budget as lines across.

    Args:
        figures: What to draw.
        experiments: All experiments in the order of their colours.
    """
    points = [point for point in figures.curve if math.isfinite(point.epsilon)]
    lines = {"reserved": figures.reserved_epsilon, "spent": figures.spent}
    if figures.budget is not None and figures.budget.epsilon <= _FAR * figures.reserved_epsilon:
        lines["budget"] = figures.budget.epsilon
    top = max((value for value in lines.values() if math.isfinite(value)), default=0.0) or 1.0
    frame = _Frame(rounds=max(1, points[-1].rounds), epsilon=1.06 * top)
    words = (
        f"Epsilon rises from 0 to {rounded_up(figures.spent)} over {points[-1].rounds} charged "
        f"rounds, at delta = {figures.delta:g}."
    )
    parts = [
        Markup('<svg class="curve" role="img" aria-label="{}" viewBox="0 0 {:g} {:g}">').format(
            words, _WIDTH, _HEIGHT
        ),
        frame.axes(),
        *(
            frame.across(kind, lines[kind])
            for kind in ("reserved", "budget")
            if kind in lines and math.isfinite(lines[kind])
        ),
        *(frame.strand(strand, experiments) for strand in _strands(points)),
        Markup("</svg>"),
    ]
    return Markup("").join(parts)


def _strands(points: Sequence[Point]) -> list[list[Point]]:
    """Cut the curve where the experiment changes; each piece starts where the last one ended."""
    strands: list[list[Point]] = []
    for before, point in itertools.pairwise(points):
        if strands and strands[-1][-1].experiment == point.experiment:
            strands[-1].append(point)
        else:
            strands.append([before, point])
    return strands


class _Frame:
    """Where rounds and ε lie on the drawing."""

    def __init__(self, *, rounds: int, epsilon: float) -> None:
        self._rounds = rounds
        self._epsilon = epsilon

    def _x(self, rounds: float) -> float:
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * rounds / self._rounds

    def _y(self, epsilon: float) -> float:
        return _HEIGHT - _BOTTOM - (_HEIGHT - _BOTTOM - _TOP) * epsilon / self._epsilon

    def axes(self) -> Markup:
        """Return the grid with its labels."""
        ground = self._y(0)
        rows = [
            Markup(
                '<line class="grid" x1="{0:g}" x2="{1:g}" y1="{2:.1f}" y2="{2:.1f}"/>'
                '<text class="scale" x="{3:g}" y="{4:.1f}" text-anchor="end">{5:g}</text>'
            ).format(_LEFT, _WIDTH - _RIGHT, self._y(value), _LEFT - 5, self._y(value) + 4, value)
            for value in ticks(self._epsilon)
        ]
        columns = [
            Markup('<text class="scale" x="{:.1f}" y="{:g}" text-anchor="{}">{:,}</text>').format(
                self._x(value), ground + 14, "end" if value == self._rounds else "middle", value
            )
            for value in dict.fromkeys((0, self._rounds // 2, self._rounds))
        ]
        names = Markup(
            '<text class="scale" x="{:g}" y="{:g}" text-anchor="middle">charged rounds</text>'
            '<text class="scale" x="{:g}" y="{:g}">ε</text>'
        ).format((_LEFT + _WIDTH - _RIGHT) / 2, _HEIGHT - 4, 4, _TOP + 6)
        return Markup("").join([*rows, *columns, names])

    def across(self, kind: str, epsilon: float) -> Markup:
        """Return a labelled line at one ε."""
        return Markup(
            '<line class="across {0}" x1="{1:g}" x2="{2:g}" y1="{3:.1f}" y2="{3:.1f}"/>'
            '<text class="scale" x="{4:g}" y="{5:.1f}">{0}</text>'
        ).format(kind, _LEFT, _WIDTH - _RIGHT, self._y(epsilon), _LEFT + 4, self._y(epsilon) - 3)

    def strand(self, points: Sequence[Point], experiments: Sequence[str]) -> Markup:
        """Return the piece of the curve that belongs to one experiment."""
        colour = experiments.index(points[-1].experiment) % COLOURS
        where = " ".join(
            f"{self._x(point.rounds):.1f},{self._y(point.epsilon):.1f}" for point in points
        )
        return Markup('<polyline class="strand colour-{}" points="{}"/>').format(colour, where)


def ticks(top: float) -> list[float]:
    """Return three to six round numbers from 0 to ``top``."""
    magnitude = 10.0 ** math.floor(math.log10(top))
    steps = (part * magnitude for part in (0.2, 0.25, 0.5, 1.0, 2.0, 2.5))
    step = next(step for step in steps if top / step <= 5)
    return [index * step for index in range(int(top / step) + 1)]
