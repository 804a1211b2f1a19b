"""Shares of noise: what honest ones guarantee, the lattice, the ring, and the lemma behind."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import mpmath
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import special

from coinflower.accounting.analyses.baselines import OnlyLocalSampling
from coinflower.accounting.masked import (
    CUT_MARGIN,
    RING_BITS,
    NoiseShares,
    log10_rounding_distance,
)
from coinflower.accounting.mechanism import Direction, Round

Array = npt.NDArray[np.float64]

PAIRS = [(0.0, 0.0), (0.5, 0.0), (0.25, 0.25), (0.3, -0.8), (7.5, -3.125)]
TRIPLES = [(0.0, 0.0, 0.0), (0.5, 0.5, 0.5), (0.1, -4.2, 0.3)]

multipliers = st.floats(min_value=1e-3, max_value=1e4)
norms = st.floats(min_value=1e-12, max_value=1e12)
colluders = st.integers(min_value=1, max_value=1000)
honest = st.integers(min_value=1, max_value=10_000)


@st.composite
def shares(draw: st.DrawFn) -> NoiseShares:
    bad = draw(colluders)
    return NoiseShares(
        noise_multiplier=draw(multipliers),
        clip_norm=draw(norms),
        threshold=bad + draw(honest),
        colluders=bad,
    )


def _rounded(centre: float, deviation: float, reach: int) -> list[mpmath.mpf]:
    """Return the probabilities of −reach, …, reach: a Gaussian, rounded."""
    edges = [(mpmath.mpf(m) - mpmath.mpf(1) / 2 - centre) for m in range(-reach, reach + 2)]
    below = [mpmath.ncdf(edge / deviation) for edge in edges]
    return [high - low for low, high in itertools.pairwise(below)]


def _sum_of_rounded(centres: tuple[float, ...], deviation: float) -> dict[int, mpmath.mpf]:
    """Return the law of the sum of rounded Gaussians, by convolution."""
    law = {0: mpmath.mpf(1)}
    reach = math.ceil(16 * deviation + max(map(abs, centres)))
    for centre in centres:
        term = _rounded(centre, deviation, reach)
        longer: dict[int, mpmath.mpf] = {}
        for at, mass in law.items():
            for step, share in enumerate(term, start=at - reach):
                longer[step] = longer.get(step, mpmath.mpf(0)) + mass * share
        law = longer
    return law


def _rounded_sum(m: int, centre: mpmath.mpf, deviation: float, terms: int) -> mpmath.mpf:
    """Return the probability that the rounded sum of Gaussians and terms − 1 uniforms is m.

    Differences of an antiderivative of the normal density of order ``terms``; that of order k is
    F_k = (x·F_(k−1) + τ²·F_(k−2))/(k−1), with F₀ = φ and F₁ = Φ.
    """
    tau = deviation * mpmath.sqrt(terms)

    def antiderivative(x: mpmath.mpf) -> mpmath.mpf:
        older, newer = mpmath.npdf(x, 0, tau), mpmath.ncdf(x / tau)
        for order in range(2, terms + 1):
            older, newer = newer, (x * newer + tau**2 * older) / (order - 1)
        return newer

    start = m - centre + mpmath.mpf(terms) / 2
    return mpmath.fsum(
        (-1) ** k * mpmath.binomial(terms, k) * antiderivative(start - k) for k in range(terms + 1)
    )


def _largest_error(centres: tuple[float, ...], deviation: float) -> float:
    """Return the largest |P(sum of rounded)/P(rounded sum) − 1| within eight deviations."""
    with mpmath.workdps(80):
        law = _sum_of_rounded(centres, deviation)
        centre = mpmath.fsum(centres)
        width = math.ceil(8 * deviation * math.sqrt(len(centres)))
        middle = round(centre)
        return max(
            float(abs(law[m] / _rounded_sum(m, centre, deviation, len(centres)) - 1))
            for m in range(middle - width, middle + width + 1)
        )


@pytest.mark.parametrize("deviation", [0.5, 1.0, 1.5, 2.0])
@pytest.mark.parametrize("centres", [*PAIRS, *TRIPLES])
def test_a_sum_of_rounded_gaussians_is_their_rounded_sum_up_to_the_distance(
    centres: tuple[float, ...], deviation: float
) -> None:
    distance = 10 ** log10_rounding_distance(deviation)
    most = math.expm1((len(centres) - 1) * math.log1p(distance))
    assert _largest_error(centres, deviation) <= most


@pytest.mark.parametrize("deviation", [1.0, 1.5, 2.0])
def test_half_the_distance_or_a_larger_exponent_would_be_wrong(deviation: float) -> None:
    distance = 10 ** log10_rounding_distance(deviation)
    worst = max(_largest_error(centres, deviation) for centres in PAIRS)
    assert worst > distance / 2
    assert worst > 2 * math.exp(-1.1 * (math.pi * deviation) ** 2)


@pytest.mark.parametrize(
    ("deviation", "measured"),
    [(1.0, 2.1e-5), (1.5, 9e-11)],  # total variation, by summation in another program
)
def test_centres_with_equal_sums_are_told_apart_by_no_more_than_the_distance(
    deviation: float, measured: float
) -> None:
    with mpmath.workdps(40):
        laws = [
            _sum_of_rounded(centres, deviation)
            for centres in [(0.0, 0.0), (0.25, -0.25), (0.5, -0.5), (0.4, -0.4)]
        ]
        worst = max(
            float(mpmath.fsum(abs(one.get(m, 0) - law) for m, law in other.items())) / 2
            for one, other in itertools.combinations(laws, 2)
        )
    assert worst <= 10 ** log10_rounding_distance(deviation)
    assert worst >= measured / 3


@given(st.floats(min_value=0.01, max_value=1e4), st.floats(min_value=1.001, max_value=10))
def test_the_distance_falls_with_the_deviation(deviation: float, factor: float) -> None:
    assert log10_rounding_distance(deviation * factor) < log10_rounding_distance(deviation)


@given(st.floats(min_value=0.05, max_value=20))
def test_the_distance_is_its_series_rounded_up(deviation: float) -> None:
    with mpmath.workdps(40):
        series = 2 * mpmath.nsum(
            lambda k: mpmath.exp(-((mpmath.pi * k * deviation) ** 2)), [1, mpmath.inf]
        )
        exact = float(mpmath.log10(series))
    assert exact <= log10_rounding_distance(deviation)
    if deviation >= 0.5:
        assert log10_rounding_distance(deviation) == pytest.approx(exact, rel=1e-4)


@given(shares())
def test_what_rounding_adds_is_below_every_delta_that_a_number_can_hold(share: NoiseShares) -> None:
    assert math.log10(5e-324) > -17_500
    assert share.log10_added_delta(numbers=2**60, clients=2**40) < -17_500


@given(shares())
def test_honest_shares_carry_the_noise_that_is_charged_and_hardly_more(share: NoiseShares) -> None:
    together = share.honest * Fraction(share.share_std) ** 2
    charged = (Fraction(share.noise_multiplier) * Fraction(share.clip_norm)) ** 2
    rounding = Fraction(2) ** -50
    margin = (1 + Fraction(CUT_MARGIN)) ** 2
    assert charged * margin * (1 - rounding) <= together <= charged * margin * (1 + rounding)


@given(shares())
def test_the_cell_is_a_power_of_two_that_64_to_128_of_make_a_deviation(share: NoiseShares) -> None:
    assert math.frexp(share.cell)[0] == 0.5
    assert 64 <= share.share_std / share.cell < 128


def _law_of_shares(share: NoiseShares, moved: float, honest: int) -> Array:
    """Return the law of the sum of so many honest answers, one of which is moved by clip norms."""
    deviation = share.share_std / share.cell
    centres = [moved * share.clip_norm / share.cell, *(0.3 + index for index in range(honest - 1))]
    reach = math.ceil(12 * deviation + abs(centres[0]) + honest)
    edges = np.arange(-reach, reach + 2) - 0.5
    law = np.ones(1)
    for centre in centres:
        # From whichever side the tail is smaller, so that it keeps its digits.
        below = special.ndtr((edges - centre) / deviation)
        above = special.ndtr((centre - edges) / deviation)
        mass = np.where(edges[:-1] < centre, np.diff(below), -np.diff(above))
        law = np.convolve(law, mass)
    return law


def _delta(share: NoiseShares, epsilon: float, honest: int) -> float:
    """Return δ(ε) of one number that is moved by a clip norm, in a sum of honest answers."""
    moved, still = (_law_of_shares(share, by, honest) for by in (1.0, 0.0))
    middle = (moved.size - still.size) // 2
    still = np.pad(still, middle)
    return float(np.maximum(moved - math.exp(epsilon) * still, 0.0).sum())


@pytest.mark.parametrize("honest", [1, 2, 3])
@pytest.mark.parametrize("sigma", [0.5, 1.0, 3.0])
def test_an_opened_sum_loses_no_more_than_the_noise_that_is_charged(
    honest: int, sigma: float
) -> None:
    share = NoiseShares(noise_multiplier=sigma, clip_norm=0.7, threshold=honest + 2, colluders=2)

    def charged(noise_multiplier: float) -> float:
        return OnlyLocalSampling(Round(1.0, 1.0, 0, noise_multiplier)).delta(
            epsilon, Direction.REMOVE
        )

    for epsilon in (0.0, 0.5 / sigma, 2 / sigma):
        lost = _delta(share, epsilon, honest)
        assert charged(sigma * 1.001) < lost <= charged(sigma)
        if honest > 1:
            assert _delta(share, epsilon, honest - 1) > charged(sigma)


@given(shares(), st.integers(min_value=1, max_value=10**6), st.floats(min_value=1, max_value=1e9))
def test_the_ring_holds_every_sum_and_is_no_wider_than_needed(
    share: NoiseShares, clients: int, longest: float
) -> None:
    cell = Fraction(share.cell)
    sums = clients * (Fraction(longest) * Fraction(share.clip_norm) / cell + Fraction(1, 2))
    noise = 12 * Fraction(share.share_std) * Fraction(math.sqrt(clients)) / cell
    largest = sums + noise
    assume(all(abs(float(largest) / 2.0 ** (bits - 1) - 1) > 1e-9 for bits in RING_BITS))
    fitting = [bits for bits in RING_BITS if largest < 2 ** (bits - 1)]
    if fitting:
        assert share.ring_bits(clients=clients, longest=longest) == fitting[0]
    else:
        with pytest.raises(ValueError, match="does not fit into 64 bits"):
            share.ring_bits(clients=clients, longest=longest)


def test_the_ring_has_room_for_both_signs_and_the_noise() -> None:
    share = NoiseShares(noise_multiplier=1.0, clip_norm=1.0, threshold=2, colluders=1)
    assert share.cell == 2**-6
    # 2²⁵ lengths are 2³¹ cells; twelve deviations of noise are just above twelve lengths.
    assert share.ring_bits(clients=1, longest=2**25 - 13) == 32
    assert share.ring_bits(clients=1, longest=2**25 - 12) == 64
    assert share.ring_bits(clients=1, longest=2.0**56) == 64
    with pytest.raises(ValueError, match="does not fit into 64 bits"):
        share.ring_bits(clients=1, longest=2.0**57)


def test_the_two_scenarios_of_the_paper_fit_into_32_bits() -> None:
    many = NoiseShares(noise_multiplier=1.0, clip_norm=1.0, threshold=1600, colluders=200)
    assert many.ring_bits(clients=2000, longest=30) == 32
    few = NoiseShares(noise_multiplier=0.8, clip_norm=1.0, threshold=8, colluders=1)
    assert few.ring_bits(clients=10, longest=1000) == 32


@pytest.mark.parametrize("longest", [math.inf, math.nan])
def test_sums_without_a_longest_length_fit_into_no_ring(longest: float) -> None:
    share = NoiseShares(noise_multiplier=1.0, clip_norm=1.0, threshold=2, colluders=1)
    with pytest.raises(ValueError, match="set a cap"):
        share.ring_bits(clients=2, longest=longest)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"threshold": 3, "colluders": 3}, "threshold = 3 must be above colluders = 3"),
        ({"threshold": 1, "colluders": 1}, "threshold = 1 must be an integer of at least 2"),
        ({"threshold": 2.5}, "threshold = 2.5 must be an integer"),
        ({"colluders": 0}, "colluders = 0 must be an integer of at least 1"),
        ({"noise_multiplier": 0.0}, "noise_multiplier = 0.0 must be a finite number above 0"),
        ({"clip_norm": math.inf}, "clip_norm = inf must be a finite number above 0"),
    ],
)
def test_shares_that_guarantee_nothing_are_refused(fields: dict[str, float], message: str) -> None:
    values = {"noise_multiplier": 1.0, "clip_norm": 1.0, "threshold": 3, "colluders": 1, **fields}
    with pytest.raises(ValueError, match=message):
        NoiseShares(**values)  # type: ignore[arg-type]
