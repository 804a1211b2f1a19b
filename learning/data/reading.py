"""What became of the rows of a file: those that cannot be used count as absent.

All of it is for the data owner: it goes to the log on the owner's machine, and never to a server.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coinflower.accounting.errors import UserError
from coinflower.learning.data.person_ids import persons_of
from coinflower.learning.data.records import Records
from coinflower.learning.data.rows import Rows
from coinflower.protocol.foreign import printable

logger = logging.getLogger("coinflower.data")

NAMED = 10
"""How many refused rows are named one by one."""
_CHUNK_NUMBERS = 1 << 22

Mask = NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True)
class Reading:
    """Counts of what was read.

    Attributes:
        rows: Rows of the files.
        refused: How many of them cannot be used.
        named: The first of those, each with the reason.
        clamped: By column, values outside of the schema's range.
        unknown: By column, values that the schema's list does not have.
        missing: By column, values that are missing.
    """

    rows: int
    refused: int = 0
    named: tuple[str, ...] = ()
    clamped: Mapping[str, int] = field(default_factory=dict)
    unknown: Mapping[str, int] = field(default_factory=dict)
    missing: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, eq=False)
class Fault:
    """A reason why rows cannot be used.

    Attributes:
        rows: Which rows have it.
        why: Says it of one of these rows, as a clause.
    """

    rows: Mask
    why: Callable[[int], str]


def sort_out(
    what: str, count: int, faults: Sequence[Fault], *, noun: str = "record", first: int = 0
) -> tuple[Mask | None, Reading]:
    """Return which rows can be used (None: all), and log which cannot and why.

    A bad row must not keep all the others from taking part.

    Args:
        what: What the data is called in messages.
        count: How many rows there are.
        faults: What is wrong with some of them.
        noun: What a row is called.
        first: Number of the first row.

    Raises:
        UserError: Most rows cannot be used.
    """
    absent = np.zeros(count, dtype=bool)
    for fault in faults:
        absent |= fault.rows
    rows = np.flatnonzero(absent)
    if rows.size == 0:
        return None, Reading(rows=count)
    reasons = [
        (first + row, printable(next(fault.why(row) for fault in faults if fault.rows[row])))
        for row in map(int, rows[:NAMED])
    ]
    if 2 * rows.size > count:
        number, why = reasons[0]
        raise UserError(
            f"{what}: {rows.size} of {count} {noun}s cannot be used; {noun} {number}: {why}"
        )
    for number, why in reasons:
        logger.warning("%s: %s %d counts as absent: %s.", what, noun, number, why)
    logger.warning("%s: %d of %d %ss count as absent.", what, rows.size, count, noun)
    named = tuple(f"{noun} {number}: {why}" for number, why in reasons)
    return ~absent, Reading(rows=count, refused=int(rows.size), named=named)


def usable_records(
    what: str,
    inputs: tuple[NDArray[Any], ...],
    targets: NDArray[Any],
    persons: NDArray[Any] | None = None,
    weights: NDArray[np.float32] | None = None,
    *,
    numbers: bool | None = False,
    classes: int | None = None,
    faults: Sequence[Fault] = (),
) -> tuple[Records, Reading]:
    """Return the records of some arrays that can be used, and log which cannot and why.

    Args:
        what: What the data is called in messages.
        inputs: The array that the model takes, rows first, or several of them.
        targets: What it should answer.
        persons: Whose rows they are, if that is known.
        weights: What they weigh in the loss, if not all the same.
        numbers: Whether targets are numbers; else they are classes. None goes by what they are.
        classes: The number of classes, if it is known.
        faults: What else is wrong with some of the records.

    Raises:
        UserError: The arrays do not fit together, or most records cannot be used.
    """
    if numbers is None:
        numbers = are_numbers(targets)
    if targets.ndim < 1 or targets.dtype.kind not in "biuf" or (targets.ndim > 1 and not numbers):
        wanted = "numbers, one row of them each" if numbers else "a vector of integer classes"
        raise UserError(
            f"{what}: targets of shape {targets.shape} and type {targets.dtype} must be {wanted}"
        )
    with np.errstate(invalid="ignore", over="ignore"):
        wanted_targets = targets.astype(np.float32 if numbers else np.int64)
    first, *more = inputs
    try:
        whose, nobodys = _as_persons(persons)
        records = Records(
            inputs=first,
            targets=wanted_targets,
            more_inputs=tuple(more),
            persons=whose,
            weights=weights,
        )
    except UserError as error:
        raise UserError(f"{what}: {error}") from None
    names = [f" of x{i}" for i in range(len(inputs))] if more else [""]
    found = [*map(_not_finite, inputs, names), *nobodys, *faults]
    if numbers:
        found.append(_fault_of_numbers(wanted_targets))
    else:
        found += _faults_of_classes(targets, wanted_targets, classes)
    kept, reading = sort_out(what, len(records), found)
    return (records if kept is None else records.take(kept)), reading


def are_numbers(*targets: NDArray[Any]) -> bool:
    """Return whether any of some targets cannot be a class: not whole, negative, or several a row.

    It makes no difference to a task, which takes its targets from numbers and from classes alike,
    so that a single row cannot decide whether anybody takes part.
    """

    def fits_no_class(one: NDArray[Any]) -> bool:
        if one.ndim != 1 or one.dtype.kind not in "iuf":
            return one.ndim > 1
        finite = one[np.isfinite(one)]
        return bool(((finite < 0) | (finite != np.floor(finite))).any())

    return any(map(fits_no_class, targets))


def _as_persons(persons: NDArray[Any] | None) -> tuple[Rows | None, list[Fault]]:
    """Return the number of each person, and which rows are nobody's."""
    if persons is None:
        return None, []
    numbers, nobody = persons_of(persons)
    return numbers, [Fault(rows=nobody, why=lambda _: "nobody knows whose it is")]


def _fault_of_numbers(targets: NDArray[Any]) -> Fault:
    def why(row: int) -> str:
        values = targets[row].reshape(-1)
        column = int(np.argmin(np.isfinite(values)))
        place = f" in column {column}" if len(values) > 1 else ""
        named = "NaN" if np.isnan(values[column]) else values[column]
        return f"its target is {named}{place}, not a finite number"

    return Fault(rows=~_all_in_row(targets, np.isfinite), why=why)


def _faults_of_classes(
    labels: NDArray[Any], targets: NDArray[Any], classes: int | None
) -> list[Fault]:
    def why_not_whole(row: int) -> str:
        return f"its label is {'NaN, ' if labels[row] != labels[row] else ''}not an integer"

    with np.errstate(invalid="ignore"):
        faults = [
            Fault(rows=targets != labels, why=why_not_whole),
            Fault(rows=targets < 0, why=lambda _: "its label is negative"),
        ]
    if classes is not None:
        above = f"its label is above {classes - 1}"
        faults.append(Fault(rows=targets >= classes, why=lambda _: above))
    return faults


def outside_of_zero_to_one(images: NDArray[Any]) -> Fault:
    """Return which images have values that no image has."""
    sound = _all_in_row(images, lambda values: (values >= 0) & (values <= 1))
    return Fault(rows=~sound, why=lambda _: "it has values outside of 0..1: scale them to 0..1")


def _not_finite(inputs: NDArray[Any], of_which: str) -> Fault:
    def why(row: int) -> str:
        values = inputs[row]
        place = np.unravel_index(int(np.argmin(np.isfinite(values))), values.shape)
        column = place[0] if len(place) == 1 else tuple(map(int, place))
        value = "NaN" if np.isnan(values[place]) else values[place]
        return f"it has {value} in column {column}{of_which}"

    return Fault(rows=~_all_in_row(inputs, np.isfinite), why=why)


def _all_in_row(values: NDArray[Any], check: Callable[[NDArray[Any]], Mask]) -> Mask:
    """Return for each row whether all of it passes; of a mapped file, little is in memory."""
    found = np.ones(len(values), dtype=bool)
    if values.dtype.kind != "f":  # whole numbers are all sound
        return found
    step = max(1, _CHUNK_NUMBERS // max(1, values[:1].size))
    for start in range(0, len(values), step):
        some = values[start : start + step]
        found[start : start + step] = check(some).reshape(len(some), -1).all(axis=1)
    return found
