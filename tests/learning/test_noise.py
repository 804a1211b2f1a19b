"""Noise on a lattice: the same distribution, and low bits that tell nothing."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from coinflower.accounting.masked import CUT_MARGIN, NoiseShares
from coinflower.learning import SecureRandom, SeededRandom
from coinflower.learning import noise as noise_module
from coinflower.learning.noise import (
    FixedPoint,
    add_noise,
    fine_cell,
    lattice_cell,
    noisy_counts,
)

SIZE = 200_000


def noise(std: float, seed: int = 1) -> np.ndarray:
    return SeededRandom(seed).normal(SIZE, std)


def noisy_sum(total: np.ndarray, std: float, clip_norm: float = 1.0) -> np.ndarray:
    counted = FixedPoint.of(total.astype(np.float32), fine_cell(clip_norm))
    return add_noise(counted, std, SeededRandom(1))


@given(st.floats(1e-18, 1e18))
def test_the_cell_is_a_power_of_two_far_below_the_noise(std: float) -> None:
    cell = lattice_cell(std)
    assert math.frexp(cell)[0] == 0.5
    assert std / 2**17 < cell <= std / 2**16


def off_lattice(values: np.ndarray, cell: float) -> float:
    """The share of values near zero that are no multiples of the cell."""
    counts = values[np.abs(values) < 1e-3].astype(np.float64) / cell
    return float((counts != np.floor(counts)).mean())


def test_a_plain_sum_shows_in_its_low_bits_what_is_under_the_noise() -> None:
    finest = float(np.spacing(np.float32(0.005)))
    plain = noise(1.0).astype(np.float32)
    assert off_lattice(plain, finest) > 0.5
    assert off_lattice(np.float32(0.01) + plain, finest) == 0


@pytest.mark.parametrize("std", [1e-6, 0.3, 1.0, 1.5, 4e7])
@pytest.mark.parametrize("share", [0.0, 0.01, 3.3])
def test_on_the_lattice_no_value_has_finer_bits(std: float, share: float) -> None:
    noisy = noisy_sum(np.full(SIZE, share * std), std, clip_norm=std / 3)
    assert noisy.dtype == np.float32
    counts = noisy.astype(np.float64) / lattice_cell(std)
    assert (counts == np.floor(counts)).all()


def test_neighbouring_cells_are_reached_equally_whatever_is_under_the_noise() -> None:
    """Parity of the cell: a χ² that fails falsely once in 10⁶."""
    for share in (0.0, 0.01, 1 / 3, 0.5):
        noisy = noisy_sum(np.full(SIZE, share), 1.0)
        odd = int((noisy.astype(np.float64) / lattice_cell(1.0) % 2 == 1).sum())
        assert stats.binomtest(odd, SIZE).pvalue > 1e-6


def test_the_lattice_moves_no_value_by_more_than_half_a_cell() -> None:
    total = np.linspace(-3, 3, SIZE, dtype=np.float32)
    exact = total.astype(np.float64) + noise(1.0)
    # Besides: a fine cell of the total, half a one of the noise, and single precision.
    allowed = (
        lattice_cell(1.0) / 2 + 1.5 * fine_cell(1.0) + np.spacing(np.abs(exact).astype(np.float32))
    )
    assert (np.abs(noisy_sum(total, 1.0) - exact) <= allowed).all()


@pytest.mark.parametrize("std", [0.0, -1.0, math.nan, math.inf, 1e9])
def test_noise_that_is_none_or_more_than_64_bits_hold_is_refused(std: float) -> None:
    with pytest.raises(ValueError, match="noise_std ="):
        add_noise(FixedPoint(2, fine_cell(1.0)), std, SecureRandom())


@given(st.floats(1e-12, 1e12), st.floats(-1e3, 1e3))
def test_a_vector_is_counted_in_whole_cells(clip_norm: float, share: float) -> None:
    cell = fine_cell(clip_norm)
    assert math.frexp(cell)[0] == 0.5
    assert clip_norm / 2**33 < cell <= clip_norm / 2**32
    value = np.float32(share * clip_norm)
    (count,) = FixedPoint.of(np.array([value]), cell).counts
    assert int(count) == math.trunc(float(value) / cell)


@given(st.permutations([2.0**27, -(2.0**27), 0.01, 512.0, -1e-7, 3e6, 1e-45, -0.0]))
def test_a_sum_in_cells_is_the_same_in_every_order(values: list[float]) -> None:
    def summed(order: list[float]) -> int:
        total = FixedPoint(1, fine_cell(1.0))
        for value in order:
            total.add(np.array([value], np.float32))
        return int(total.counts[0])

    assert summed(values) == summed(sorted(values))


@pytest.mark.parametrize("sigma", [1e-3, 1.0, 1e4])
@pytest.mark.parametrize("seed", range(3))
def test_noise_reaches_every_fine_cell_whatever_the_total(sigma: float, seed: int) -> None:
    """Low bits of noise alone, in fine cells, are even: they hide the total's own low bits.

    Single-precision draws would be multiples of 2^10 cells and more, and leave them bare.
    """
    cells = noise(sigma, seed) / fine_cell(1.0)
    low = np.floor(cells + 0.5).astype(np.int64) & 7
    assert stats.chisquare(np.bincount(low, minlength=8)).pvalue > 1e-6
    single = noise(sigma, seed).astype(np.float32).astype(np.float64) / fine_cell(1.0)
    low = np.floor(single + 0.5).astype(np.int64) & 7
    assert sigma < 1 or stats.chisquare(np.bincount(low, minlength=8)).pvalue < 1e-6


def test_the_noise_is_added_before_anything_is_rounded() -> None:
    """A total just below half a lattice cell shifts how often the next cell is reached."""
    cell, share = lattice_cell(1.0), 0.25
    total = np.full(SIZE, share * cell)
    moved = noisy_sum(total, 1.0).astype(np.float64) - noisy_sum(np.zeros(SIZE), 1.0)
    steps = int(np.rint(moved / cell).sum())
    assert stats.binomtest(steps, SIZE, share).pvalue > 1e-6
    assert stats.binomtest(steps, SIZE, 0.9 * share).pvalue < 1e-6


@pytest.mark.parametrize("sigma", [1e-3, 1.0, 1e4])
def test_a_masked_number_is_the_exact_noisy_sum_rounded_once(sigma: float) -> None:
    """Half a fine cell moves every centre alike; the lemma holds for all centres."""
    share = NoiseShares(noise_multiplier=sigma, clip_norm=1.0, threshold=7, colluders=2)
    fine, size = fine_cell(1.0), 300
    total = FixedPoint.of(np.linspace(-3, 3, size, dtype=np.float32), fine)
    counts = noisy_counts(total, share.share_std, share.cell, SeededRandom(5))
    draws = SeededRandom(5).normal(size, share.share_std)
    half = Fraction(1, 2)
    for count, under, draw in zip(counts, total.counts, draws, strict=True):
        exact = int(under) * Fraction(fine) + Fraction(float(draw)) + half * Fraction(fine)
        assert count == math.floor(exact / Fraction(share.cell) + half)


def test_a_cell_finer_than_those_of_the_sum_is_refused() -> None:
    total = FixedPoint(3, fine_cell(1.0))
    with pytest.raises(ValueError, match="must be at least"):
        noisy_counts(total, 1e-9, fine_cell(1.0) / 2, SeededRandom(1))


@given(st.floats(1e-12, 1e12))
def test_a_share_covers_the_cut_of_sixteen_million_numbers(clip_norm: float) -> None:
    assert math.sqrt(2**24) * fine_cell(clip_norm) <= CUT_MARGIN * clip_norm


def test_noise_that_is_drawn_ahead_is_what_a_long_sum_asks_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(noise_module, "_BLOCK", 4)
    total = FixedPoint.of(np.zeros(10, np.float32), 2**-20)
    ahead = noise_module.drawn_ahead(10, 1.0, SeededRandom(3))
    assert [len(draws) for draws in ahead] == [4, 4, 2]

    class Drawn:
        def normal(self, size: int, std: float) -> np.ndarray:  # noqa: ARG002
            return ahead.pop(0)

    expected = noise_module.add_noise(total, 1.0, SeededRandom(3))
    assert np.array_equal(noise_module.add_noise(total, 1.0, Drawn()), expected)
