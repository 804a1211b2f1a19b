"""Targets as tasks take them: classes, labels of 0 or 1, or numbers; what fits none is left out."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coinflower.accounting.errors import UserError
from coinflower.learning.data.reading import NAMED, Fault, Mask, sort_out

logger = logging.getLogger("coinflower.data")


@dataclass(frozen=True, kw_only=True, eq=False)
class Taken:
    """The targets of some rows.

    Attributes:
        values: Rows first, as a loss takes them; 0 where they do not fit.
        fault: Which of them do not fit, and why.
    """

    values: NDArray[Any]
    fault: Fault

    @property
    def fit(self) -> Mask:
        """Which rows fit."""
        return ~self.fault.rows

    def require_most(self, what: str) -> None:
        """Log which rows do not fit.

        Raises:
            UserError: Most do not.
        """
        sort_out(what, len(self.values), [self.fault])

    def log_misfits(self) -> None:
        """Log which rows count as absent, for the owner: an error would reveal something."""
        rows = np.flatnonzero(self.fault.rows)
        for row in map(int, rows[:NAMED]):
            why = self.fault.why(row)
            logger.warning("Of the usable records, record %d counts as absent: %s.", row, why)
        if rows.size:
            logger.warning("%d of %d do not fit the task.", rows.size, len(self.values))


def take_classes(targets: NDArray[Any], count: int | None = None) -> Taken:
    """Return one class per row, int64: whole numbers from 0 to ``count`` - 1.

    Raises:
        UserError: There are several targets per row.
    """
    given = _rows(targets, 1)[:, 0]
    with np.errstate(invalid="ignore"):
        classes = given.astype(np.int64)
    unfit = (classes != given) | (classes < 0)
    wanted = "a class: a whole number from 0"
    if count is not None:
        unfit |= classes >= count
        wanted = f"one of the classes 0 to {count - 1}"
    return Taken(
        values=np.where(unfit, 0, classes),
        fault=Fault(rows=unfit, why=lambda row: f"its target {_shown(given[row])} is not {wanted}"),
    )


def take_labels(targets: NDArray[Any], width: int) -> Taken:
    """Return labels, rows x width, float32: each is 0 or 1.

    Raises:
        UserError: There is another number of targets per row.
    """
    given = _rows(targets, width)
    return _taken(given, ~np.isin(given, (0, 1)), "neither 0 nor 1")


def take_numbers(targets: NDArray[Any], width: int | None = None) -> Taken:
    """Return finite numbers, rows x width, float32.

    Raises:
        UserError: There is another number of targets per row.
    """
    given = _rows(targets, width).astype(np.float32, copy=False)
    return _taken(given, ~np.isfinite(given), "not a finite number")


def width_of(targets: NDArray[Any]) -> int:
    """Return how many numbers the target of a row has."""
    return int(np.prod(targets.shape[1:]))


def _taken(given: NDArray[Any], bad: Mask, what: str) -> Taken:
    def why(row: int) -> str:
        column = int(np.argmax(bad[row]))
        place = f" in column {column}" if given.shape[1] > 1 else ""
        return f"its target {_shown(given[row, column])}{place} is {what}"

    unfit: Mask = np.asarray(bad.any(axis=1))
    values = np.where(unfit[:, np.newaxis], 0, given).astype(np.float32, copy=False)
    return Taken(values=values, fault=Fault(rows=unfit, why=why))


def _rows(targets: NDArray[Any], width: int | None) -> NDArray[Any]:
    found = width_of(targets)
    if width is not None and found != width:
        raise UserError(
            f"each record has {found} target{'s' * (found != 1)}, but the task takes {width}"
        )
    return targets.reshape(len(targets), found)


def _shown(value: Any) -> str:
    return "NaN" if np.isnan(value) else f"{value:g}"
