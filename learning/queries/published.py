"""What published statistics say of a schema's columns: post-processing, which costs nothing."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coinflower.accounting.errors import UserError
from coinflower.learning.data.tables.schema import Column, Kind
from coinflower.learning.queries.statistics import MISSING, OTHER
from coinflower.protocol.foreign import printable

_DIGITS = 4
_LOW, _MIDDLE, _HIGH = "0.05", "0.5", "0.95"


@dataclass(frozen=True, kw_only=True)
class Published:
    """Statistics that clients were charged for when they were made.

    Attributes:
        columns: By column, what a schema may say of it.
        insecure: Whether their noise was predictable.
    """

    columns: dict[str, dict[str, Any]]
    insecure: bool


def read_published(path: Path) -> Published:
    """Read ``statistics.json`` of a server, or what ``coinflower statistics --json`` printed.

    Raises:
        UserError: It is neither, or its figures make no column.
    """
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}.") from None
    except (ValueError, RecursionError):
        raise UserError(f"{path} is no JSON; name the statistics.json of a server.") from None
    columns = told.get("columns") if isinstance(told, dict) else None
    if not isinstance(columns, dict):
        raise UserError(f"{path} holds no statistics: it lacks 'columns'.")
    found = {}
    for name, figures in columns.items():
        try:
            found[name] = _column(figures)
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
            raise UserError(
                f"{path}: the figures of column {printable(name)!r} are not what "
                "coinflower statistics writes."
            ) from None
    return Published(columns=found, insecure=bool(told.get("insecure")))


def _column(figures: Mapping[str, Any]) -> dict[str, Any]:
    if "counts" in figures:
        values = [value for value in figures["counts"] if value not in (OTHER, MISSING)]
        "".join(values).encode()  # half of a letter cannot be written down
        Column(kind=Kind.CATEGORY, values=tuple(values))
        return {"kind": Kind.CATEGORY, "values": values}
    histogram = figures.get("histogram")
    if histogram is not None:
        found = _number(histogram)
        Column(kind=Kind.NUMBER, **{**found, "range": tuple(found["range"])})
        return {"kind": Kind.NUMBER, **found}
    mean = figures["mean"]["value"]
    return {"kind": Kind.NUMBER} | ({} if mean is None else {"centre": _rounded(mean)})


def _number(histogram: Mapping[str, Any]) -> dict[str, Any]:
    """Return range, centre and scale; the range alone if there was little but noise.

    The median becomes 0, and half of the distance that nine tenths of the records lie within
    becomes 1. What lies further out than that distance is cut off.
    """
    least, largest = float(histogram["edges"][0]), float(histogram["edges"][-1])
    quantiles = histogram["quantiles"]
    low, middle, high = (quantiles[level]["value"] for level in (_LOW, _MIDDLE, _HIGH))
    if None in (low, middle, high) or not low < high:
        return {"range": [least, largest]}
    spread = high - low
    return {
        "range": [max(least, _rounded(low - spread)), min(largest, _rounded(high + spread))],
        "centre": _rounded(middle),
        "scale": _rounded(spread / 2),
    }


def _rounded(value: float) -> float:
    if not math.isfinite(value):
        raise ValueError(value)
    return float(f"{value:.{_DIGITS}g}")
