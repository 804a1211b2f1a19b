"""Records that cannot be used: they count as absent, and the data owner's log names them."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coinflower.accounting.errors import UserError

logger = logging.getLogger("coinflower.data")

_NAMED = 10


def usable_records(
    what: str, inputs: NDArray[Any], labels: NDArray[Any], *, classes: int | None = None
) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Return the records that can be used, and log which cannot and why.

    A bad record must not keep all the others from taking part. `Dataset` reports what is wrong with
    the data as a whole, such as its shape or type.

    Args:
        what: What the data is called in messages.
        inputs: Images.
        labels: Their labels, of any type of numbers.
        classes: The number of classes, if it is known.

    Raises:
        ValueError: If most records cannot be used.
    """
    if inputs.ndim != 3 or labels.shape != (len(inputs),) or len(inputs) == 0:
        return inputs, labels.astype(np.int64)
    with np.errstate(invalid="ignore"):
        targets = labels.astype(np.int64)
        faults = {
            "its label is not an integer": targets != labels,
            "its label is negative": targets < 0,
        }
    if classes is not None:
        faults[f"its label is above {classes - 1}"] = targets >= classes
    if inputs.dtype.kind == "f":
        pixels = inputs.reshape(len(inputs), -1)
        inside = ((pixels >= 0) & (pixels <= 1)).all(axis=1)  # nan is not
        faults["it has values outside of 0..1 or none at all: scale them to 0..1"] = ~inside
    absent = np.any(list(faults.values()), axis=0)
    rows = np.flatnonzero(absent)
    if rows.size == 0:
        return inputs, targets
    reasons = [next(why for why, rows_ in faults.items() if rows_[row]) for row in rows[:_NAMED]]
    if 2 * rows.size > len(labels):
        raise UserError(
            f"{what}: {rows.size} of {len(labels)} records cannot be used; record {rows[0]}: "
            f"{reasons[0]}"
        )
    for row, why in zip(rows[:_NAMED], reasons, strict=True):
        logger.warning("%s: record %d counts as absent: %s.", what, row, why)
    logger.warning("%s: %d of %d records count as absent.", what, rows.size, len(labels))
    return inputs[~absent], targets[~absent]
