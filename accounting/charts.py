"""Line charts as inline SVG: no script, no colours of their own, readable on paper and on a phone.

The style sheet of the page that shows them colours lines by their class.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

Point = tuple[float, float]

_WIDTH, _HEIGHT = 460.0, 260.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 66.0, 14.0, 14.0, 46.0
# Up to this many points are dots that show their value; more would be a smear.
_MOST_DOTS = 60
_MOST_BINS = 160


@dataclass(frozen=True, kw_only=True)
class Line:
    """One curve.

    Attributes:
        name: What it shows; read out, and shown where a mouse rests on it.
        points: From left to right.
        kind: Class of the style sheet.
        dots: Whether each point is marked and shows its value.
        labelled: Whether the name stands at its beginning.
    """

    name: str
    points: Sequence[Point]
    kind: str = "main"
    dots: bool = False
    labelled: bool = False


@dataclass(frozen=True, kw_only=True)
class Band:
    """An area between a lower and an upper curve over the same places."""

    name: str
    places: Sequence[float]
    low: Sequence[float]
    high: Sequence[float]


@dataclass(frozen=True, kw_only=True)
class Axis:
    """What an axis says and how its figures are written; it begins at 0, or at what is below.

    Attributes:
        label: What it says.
        text: How a figure is written.
        most: Where it ends; behind the largest value by default.
        whole: Whether there is nothing between whole numbers.
    """

    label: str
    text: Callable[[float], str] = "{:g}".format
    most: float | None = None
    whole: bool = False


def line_chart(
    title: str, lines: Sequence[Line], *, x: Axis, y: Axis, bands: Sequence[Band] = ()
) -> Markup:
    """Return a chart as an ``<svg>`` element."""
    places = [at for line in lines for at, _ in line.points]
    heights = [value for line in lines for _, value in line.points]
    heights += [value for band in bands for value in band.high]
    across = _Scale.over(x, places, (_LEFT, _WIDTH - _RIGHT))
    up = _Scale.over(y, heights, (_HEIGHT - _BOTTOM, _TOP))
    parts = [
        f'<svg class="chart" viewBox="0 0 {_WIDTH:g} {_HEIGHT:g}" role="img" '
        f'aria-label="{escape(title)}"><title>{escape(title)}</title>',
        *_grid(across, up, x, y),
        *(_band(band, across, up) for band in bands),
        *(_curve(line, across, up, x, y) for line in lines),
        "</svg>",
    ]
    return Markup("\n".join(parts))


def binned(values: Sequence[Point]) -> tuple[list[Point], Band | None, int]:
    """Return a curve of means with at most as many points as can be distinguished.

    Returns:
        The means, the band from least to largest (None if nothing was put together), and how many
        values make a point.
    """
    size = math.ceil(len(values) / _MOST_BINS)
    if size <= 1:
        return list(values), None, 1
    groups = [values[start : start + size] for start in range(0, len(values), size)]
    means = [
        (sum(at for at, _ in group) / len(group), sum(value for _, value in group) / len(group))
        for group in groups
    ]
    band = Band(
        name=f"least and largest of {size} rounds",
        places=[at for at, _ in means],
        low=[min(value for _, value in group) for group in groups],
        high=[max(value for _, value in group) for group in groups],
    )
    return means, band, size


@dataclass(frozen=True, kw_only=True)
class _Scale:
    """From values to places on the drawing, with the ticks between."""

    ticks: Sequence[float]
    least: float
    most: float
    onto: Point

    @classmethod
    def over(cls, axis: Axis, values: Sequence[float], onto: Point) -> _Scale:
        least = min(0.0, *values, 0.0)
        most = max(0.0, *values, 0.0) if axis.most is None else axis.most
        if most == least:
            most = 1.0
        step = _round_step((most - least) / 5)
        if axis.whole:
            step = max(1.0, step)
        first, last = math.floor(least / step + 1e-9), math.floor(most / step + 1e-9)
        if axis.most is None and last * step < most * (1 - 1e-9):
            last += 1
            most = last * step
        ticks = [index * step for index in range(first, last + 1)]
        return cls(ticks=ticks, least=first * step, most=most, onto=onto)

    def __call__(self, value: float) -> float:
        share = (value - self.least) / (self.most - self.least)
        return self.onto[0] + share * (self.onto[1] - self.onto[0])


def _round_step(rough: float) -> float:
    """Return 1, 2 or 5 times a power of ten, at least ``rough``."""
    power = 10.0 ** math.floor(math.log10(rough))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * (1 - 1e-9))


def _grid(across: _Scale, up: _Scale, x: Axis, y: Axis) -> list[str]:
    right, bottom = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM
    parts = ['<g class="grid">']
    for tick in up.ticks:
        at = up(tick)
        parts.append(f'<line x1="{_LEFT:g}" y1="{at:.1f}" x2="{right:g}" y2="{at:.1f}"/>')
        parts.append(f'<text x="{_LEFT - 6:g}" y="{at + 5:.1f}" class="end">{y.text(tick)}</text>')
    for tick in across.ticks:
        at = across(tick)
        parts.append(f'<text x="{at:.1f}" y="{bottom + 18:g}" class="middle">{x.text(tick)}</text>')
    middle = (_LEFT + right) / 2
    parts.append(
        f'<text x="{middle:g}" y="{_HEIGHT - 8:g}" class="middle label">{escape(x.label)}</text>'
    )
    height = (_TOP + bottom) / 2
    parts.append(
        f'<text x="14" y="{height:g}" class="middle label" transform="rotate(-90 14 {height:g})">'
        f"{escape(y.label)}</text></g>"
    )
    return parts


def _curve(line: Line, across: _Scale, up: _Scale, x: Axis, y: Axis) -> str:
    drawn = [(across(at), up(value)) for at, value in line.points]
    path = " ".join(f"{at:.1f},{height:.1f}" for at, height in drawn)
    parts = [
        f'<g class="{line.kind}"><title>{escape(line.name)}</title><polyline points="{path}"/>'
    ]
    if line.labelled and drawn:
        at, height = drawn[0]
        parts.append(f'<text x="{at + 4:.1f}" y="{height - 4:.1f}">{escape(line.name)}</text>')
    if line.dots and len(drawn) <= _MOST_DOTS:
        parts += [
            f'<circle cx="{at:.1f}" cy="{height:.1f}" r="3"><title>{escape(x.label)} '
            f"{x.text(place)}: {y.text(value)}</title></circle>"
            for (at, height), (place, value) in zip(drawn, line.points, strict=True)
        ]
    return "".join([*parts, "</g>"])


def _band(band: Band, across: _Scale, up: _Scale) -> str:
    upper = list(zip(band.places, band.high, strict=True))
    lower = list(zip(band.places, band.low, strict=True))[::-1]
    path = " ".join(f"{across(at):.1f},{up(value):.1f}" for at, value in [*upper, *lower])
    return f'<g class="band"><title>{escape(band.name)}</title><polygon points="{path}"/></g>'
