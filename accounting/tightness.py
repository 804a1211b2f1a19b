"""How tight a certified figure is: what a concrete data set is known to lose."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from accounting.calibration import LEAST_SIGMA
from accounting.composition import delta_after, epsilon_after
from accounting.paper_schemes import AsPrinted
from accounting.realised import Realised, realised_delta, realised_epsilon
from accounting.schemes import Scheme

# Composition rounds ε up by a small fraction of a per cent; giving back a whole one keeps the
# composed figure a lower bound.
_ROUNDED_UP_AT_MOST = 0.01
_ANGLES = (0.25, 0.6, 0.95, 1.3)
# With less noise a grid is long, and a gradient across the others loses as much as any.
_SEARCHED_FROM = 0.3
# The aligned pair's δ is a difference of numbers of order 1.
_CANCELLATION = 1e-15


def realised_epsilon_after(terms: Scheme, rounds: int, delta: float) -> float:
    """Return a lower bound on the worst-case ε at ``delta`` after ``rounds`` rounds.

    One round: the best geometry found. More rounds: the best of a few geometries, each held
    through all rounds, which a data set of constant gradients does.

    Args:
        terms: p, q, d and noise of a round; the analysis plays no part.
        rounds: At least 0.
        delta: In (0, 1).

    Returns:
        ε that no honest analysis can go below.
    """
    if terms.noise_multiplier < LEAST_SIGMA:
        return 0.0
    if rounds == 1 and terms.noise_multiplier >= _SEARCHED_FROM:
        planar, _ = realised_epsilon(terms, delta, start=terms.epsilon(delta))
        return max(planar, _aligned(terms).epsilon(delta + _CANCELLATION))
    if rounds == 1:
        return max(pair.epsilon(delta + _CANCELLATION) for pair in _candidates(terms))
    composed = max(epsilon_after([(pair, rounds)], delta) for pair in _candidates(terms))
    return composed * (1 - _ROUNDED_UP_AT_MOST)


def realised_delta_after(terms: Scheme, rounds: int, epsilon: float) -> float:
    """Return a lower bound on the worst-case δ at ``epsilon`` after ``rounds`` rounds."""
    if terms.noise_multiplier < LEAST_SIGMA:
        return 0.0
    if rounds == 1 and terms.noise_multiplier >= _SEARCHED_FROM:
        planar, _ = realised_delta(terms, epsilon)
        return max(planar, _aligned(terms).delta(epsilon) - _CANCELLATION)
    if rounds == 1:
        return max(pair.delta(epsilon) - _CANCELLATION for pair in _candidates(terms))
    return max(_lowered_delta(pair, rounds, epsilon) for pair in _candidates(terms))


def realised_sigma_after(terms: Scheme, rounds: int, epsilon: float, delta: float) -> float:
    """Return a noise multiplier at which a concrete data set still loses (ε, δ) or more.

    Args:
        terms: p, q, d, and as noise the most that could be needed, e.g. the certified one.
        rounds: At least 1.
        epsilon: At least 0.
        delta: In (0, 1).

    Returns:
        Noise that is too little for (ε, δ), found to a thousandth for one round and to a
        hundredth for more; 0 if even hardly any noise may be enough.
    """
    # One pair for all noise levels is a lower bound, too, and composing is what takes time.
    pair = terms
    if rounds > 1:
        pair = max(_candidates(terms), key=lambda each: epsilon_after([(each, rounds)], delta))

    def is_reached(sigma: float) -> bool:
        changed = replace(pair, noise_multiplier=sigma)
        if rounds == 1:
            return realised_delta_after(changed, 1, epsilon) >= delta
        if epsilon == 0:
            return _lowered_delta(changed, rounds, 0.0) >= delta
        return epsilon_after([(changed, rounds)], delta) * (1 - _ROUNDED_UP_AT_MOST) >= epsilon

    low = high = terms.noise_multiplier
    while not is_reached(low):
        low, high = low / 2, low
        if low < LEAST_SIGMA:
            return 0.0
    precision = 1e-3 if rounds == 1 else 1e-2
    while high > (1 + precision) * low:
        middle = (low * high) ** 0.5
        low, high = (middle, high) if is_reached(middle) else (low, middle)
    return low


def _lowered_delta(pair: Scheme, rounds: int, epsilon: float) -> float:
    kept = 1 - _ROUNDED_UP_AT_MOST
    return delta_after([(pair, rounds)], epsilon / kept) * kept


def _aligned(terms: Scheme) -> AsPrinted:
    return AsPrinted(p=terms.p, q=terms.q, d=terms.d, noise_multiplier=terms.noise_multiplier)


def _candidates(terms: Scheme) -> Iterator[Scheme]:
    yield _aligned(terms)
    searched = terms.noise_multiplier >= _SEARCHED_FROM
    for angle in _ANGLES if searched else (math.pi / 2,):
        yield Realised.of(terms, angle=angle)
