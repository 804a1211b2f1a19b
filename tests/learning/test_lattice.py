"""Noise on a lattice: the same distribution, and low bits that tell nothing."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from learning.lattice import add_noise, lattice_cell

SIZE = 200_000


def noise(std: float, seed: int = 1) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal(SIZE) * std).astype(np.float32)


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
    assert off_lattice(noise(1.0), finest) > 0.5
    assert off_lattice(np.float32(0.01) + noise(1.0), finest) == 0


@pytest.mark.parametrize("std", [1e-6, 0.3, 1.0, 1.5, 4e7])
@pytest.mark.parametrize("share", [0.0, 0.01, 3.3])
def test_on_the_lattice_no_value_has_finer_bits(std: float, share: float) -> None:
    total = np.full(SIZE, share * std, np.float32)
    noisy = add_noise(total, noise(std), std)
    assert noisy.dtype == np.float32
    counts = noisy.astype(np.float64) / lattice_cell(std)
    assert (counts == np.floor(counts)).all()


def test_neighbouring_cells_are_reached_equally_whatever_is_under_the_noise() -> None:
    """Parity of the cell: a χ² that fails falsely once in 10⁶."""
    for share in (0.0, 0.01, 1 / 3, 0.5):
        noisy = add_noise(np.full(SIZE, share, np.float32), noise(1.0), 1.0)
        odd = int((noisy.astype(np.float64) / lattice_cell(1.0) % 2 == 1).sum())
        assert stats.binomtest(odd, SIZE).pvalue > 1e-6


def test_the_lattice_moves_no_value_by_more_than_half_a_cell() -> None:
    total = np.linspace(-3, 3, SIZE, dtype=np.float32)
    exact = total.astype(np.float64) + noise(1.0)
    assert np.abs(add_noise(total, noise(1.0), 1.0) - exact).max() <= lattice_cell(1.0) / 2


def test_without_noise_the_total_stays_as_it_is() -> None:
    total = np.array([0.1, -1e-30, 3e7], np.float32)
    assert add_noise(total, np.zeros(3, np.float32), 0.0) is total
