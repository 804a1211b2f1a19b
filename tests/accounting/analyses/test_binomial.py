"""The window of binomial counts: nothing of the probability is lost."""

import mpmath
import numpy as np
import pytest

from coinflower.accounting.analyses.binomial import binomial_window


@pytest.mark.parametrize("d", [0, 1, 30, 10**6, 10**8, 10**10])
@pytest.mark.parametrize("q", [1e-7, 1e-3, 0.5, 1.0])
def test_window_and_cut_hold_all_of_the_probability(d, q):
    _, mass, cut = binomial_window(d, q)
    assert mass.sum() + cut >= 1 - 1e-15
    assert mass.sum() + cut <= 1 + 1e-5


@pytest.mark.parametrize("d", [30, 10**6])
def test_counts_above_the_most_are_in_the_cut(d):
    counts, mass, cut = binomial_window(d, 0.5, most=d // 2)
    assert counts[-1] == d // 2
    assert mass.sum() + cut == pytest.approx(1, abs=1e-8)
    assert cut > 0.4


# d up to a million: logarithms of factorials alone would leave nine digits.
@pytest.mark.parametrize(
    ("d", "q"),
    [(1, 0.3), (5, 9e-7), (30, 0.1), (1000, 1e-3), (10**6, 2e-6), (10**6, 0.5), (10**6, 1 - 1e-7)],
)
def test_probabilities_are_exact_and_rounded_up(d, q):
    mpmath.mp.dps = 40
    counts, mass, _ = binomial_window(d, q)
    hit = mpmath.mpf(q)
    for place in np.linspace(0, counts.size - 1, 9).astype(int):
        count = int(counts[place])
        exact = mpmath.binomial(d, count) * hit**count * (1 - hit) ** (d - count)
        assert 0 <= float(mass[place] / exact - 1) < 1e-11
