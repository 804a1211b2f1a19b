"""The vectors of records: never longer than the clip norm, whatever a record holds."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from coinflower.learning.queries.blocks import between, binned, one_of, vectors, weighted_sum

ANYTHING = st.floats(allow_nan=True, allow_infinity=True, width=64)
ROUNDING = 1 + 1e-12


def columns(width: int = 1) -> Any:
    rows = st.integers(1, 12)
    return rows.flatmap(lambda n: arrays.arrays(np.float64, (n, width), elements=ANYTHING))


def blocks_of(values: Any) -> list[Any]:
    """Blocks of all kinds, of one column each."""
    return [
        between(values[:, 0], -1.0, 3.0, unknown=1.0),
        one_of(binned(values[:, 1], 0.0, 1.0, 5), 5),
        one_of(np.arange(len(values)) % 4 - 1, 2),
    ]


@given(columns(2), st.floats(1e-6, 1e6))
@settings(max_examples=300)
def test_no_vector_is_longer_than_the_clip_norm(values: Any, clip_norm: float) -> None:
    norms = np.linalg.norm(vectors(blocks_of(values), clip_norm), axis=1)
    assert (norms <= clip_norm * ROUNDING).all()


@given(columns(2), st.floats(1e-3, 1e3), st.integers(0, 11))
def test_one_record_moves_the_sum_by_the_clip_norm_at_most(
    values: Any, clip_norm: float, which: int
) -> None:
    blocks = blocks_of(values)
    which %= len(values)
    fewer = [np.delete(block, which, axis=0) for block in blocks]
    moved = weighted_sum(blocks, clip_norm, None).astype(float)
    moved -= weighted_sum(fewer, clip_norm, None)
    assert np.linalg.norm(moved) <= clip_norm * (1 + 1e-5)


@given(columns(2), st.data())
def test_one_person_moves_the_sum_by_the_clip_norm_at_most(values: Any, data: Any) -> None:
    persons = np.array([data.draw(st.integers(0, 3)) for _ in values])
    gone = data.draw(st.integers(0, 3))
    blocks, left = blocks_of(values), persons != gone
    moved = weighted_sum(blocks, 1.0, persons).astype(float)
    moved -= weighted_sum([block[left] for block in blocks], 1.0, persons[left])
    assert np.linalg.norm(moved) <= 1 + 1e-5


@given(columns(2))
def test_a_sum_is_that_of_a_plain_loop(values: Any) -> None:
    blocks = blocks_of(values)
    total = np.zeros(9)
    for row in range(len(values)):
        whole = np.concatenate([block[row] for block in blocks]) / math.sqrt(3)
        total += whole * min(1.0, 1.0 / max(np.linalg.norm(whole), 1e-300))
    assert weighted_sum(blocks, 1.0, None) == pytest.approx(total, rel=1e-6)


def test_a_person_counts_as_the_mean_of_its_rows() -> None:
    blocks = [one_of(np.array([0, 1, 1, 1, 2]), 3)]
    told = weighted_sum(blocks, 2.0, np.array([7, 7, 3, 7, 7]))
    assert told == pytest.approx([2 / 4, 2 * 2 / 4 + 2, 2 / 4])


@given(columns())
def test_the_entries_of_a_block_are_shares(values: Any) -> None:
    for block in (between(values[:, 0], 0.0, 1.0, unknown=0.0), one_of(np.arange(len(values)), 3)):
        assert ((block >= 0) & (block <= 1)).all()
        assert (block.sum(axis=1) <= ROUNDING).all()


def test_a_number_outside_of_the_limits_counts_as_the_limit() -> None:
    values = np.array([-np.inf, -5.0, 0.0, 2.5, 10.0, 1e300, np.nan])
    block = between(values, 0.0, 10.0, unknown=1.0)
    assert block[:, 0].tolist() == [0, 0, 0, 0.25, 1, 1, 1]


def test_bins_have_equal_width_and_the_largest_lies_in_the_last() -> None:
    values = np.array([-1.0, 0.0, 0.99, 1.0, 9.99, 10.0, 11.0, np.nan])
    assert binned(values, 0.0, 10.0, 10).tolist() == [0, 0, 0, 1, 9, 9, 9, 0]


def test_nobody_gives_zeros() -> None:
    assert weighted_sum([np.empty((0, 4))], 1.0, None).tolist() == [0.0] * 4
