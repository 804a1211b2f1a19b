"""The vector of a record: blocks of shares, scaled so that no vector is longer than C.

A block has entries from 0 to 1 that add up to at most 1, so that its L2 norm is at most 1. With k
blocks of factor C/√k the whole vector has at most norm C, whatever the record holds, and a person's
vector, the mean of its rows', has no more (docs/mathematics.md, "Queries"). It is clipped to C all
the same.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Codes = NDArray[np.int64]

_ROWS_AT_ONCE = 1 << 14
_PARTS = 1_000_000


def between(values: Array, least: float, largest: float, *, unknown: float) -> Array:
    """Return blocks of two: where a number lies between two limits, and what is left to 1.

    Args:
        values: A number per row; one outside of the limits is set to them.
        least: Becomes 0.
        largest: Becomes 1.
        unknown: What counts in place of NaN: 0 to 1.
    """
    with np.errstate(invalid="ignore", over="ignore"):
        shares = (np.clip(values, least, largest) - least) / (largest - least)
    shares = np.clip(np.where(np.isfinite(shares), shares, unknown), 0.0, 1.0)
    return np.stack([shares, 1.0 - shares], axis=1)


def one_of(codes: Codes, count: int) -> Array:
    """Return blocks in which one entry is 1: which of so many a row is; none if it is another."""
    return np.asarray(codes[:, np.newaxis] == np.arange(count), dtype=np.float64)


def binned(values: Array, least: float, largest: float, bins: int) -> Codes:
    """Return the bin of equal width that each number lies in; NaN lies in the first.

    Numbers count to a millionth of the range: 20 in single precision may be a little less than 20.
    """
    with np.errstate(invalid="ignore", over="ignore"):
        shares = (np.clip(values, least, largest) - least) / (largest - least)
    parts = np.rint(np.where(np.isfinite(shares), shares, 0.0) * _PARTS).astype(np.int64)
    return np.asarray(np.clip(parts * bins // _PARTS, 0, bins - 1))


def vectors(blocks: Sequence[Array], clip_norm: float) -> Array:
    """Return the vector of each row: all its blocks, with a norm of at most C."""
    scaled = np.concatenate(blocks, axis=1) * scale_of(len(blocks), clip_norm)
    norms = np.linalg.norm(scaled, axis=1, keepdims=True)
    sound = np.isfinite(norms)
    with np.errstate(invalid="ignore"):
        clipped = scaled * np.minimum(1.0, clip_norm / np.maximum(norms, clip_norm))
    return np.where(sound, clipped, 0.0)


def scale_of(blocks: int, clip_norm: float) -> float:
    """Return what 1 becomes in a vector of so many blocks."""
    return clip_norm / math.sqrt(blocks)


def weights_of(persons: Codes | None, rows: int) -> Array:
    """Return what each row weighs: 1, or its part of its person, if a person's mean counts."""
    if persons is None:
        return np.ones(rows)
    _, person, sizes = np.unique(persons, return_inverse=True, return_counts=True)
    return np.asarray(1.0 / sizes[person])


def weighted_sum(
    blocks: Sequence[Array], clip_norm: float, persons: Codes | None
) -> NDArray[np.float32]:
    """Return the sum over records, or over persons, of vectors whose norm is at most C.

    Args:
        blocks: Of all rows.
        clip_norm: The bound C.
        persons: Whose each row is, if persons are protected.
    """
    rows = len(blocks[0])
    weights = weights_of(persons, rows)
    total = np.zeros(sum(block.shape[1] for block in blocks))
    for start in range(0, rows, _ROWS_AT_ONCE):
        part = slice(start, start + _ROWS_AT_ONCE)
        total += weights[part] @ vectors([block[part] for block in blocks], clip_norm)
    return total.astype(np.float32)
