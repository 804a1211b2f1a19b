"""How tight a certified figure is: what some concrete data set loses."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from coinflower.accounting.analyses.analysis import Analysis
from coinflower.accounting.analyses.certified import Certified
from coinflower.accounting.analyses.mixture_pairs import aligned_pair, planar_cells
from coinflower.accounting.analyses.realised import (
    CANCELLATION,
    Realised,
    aligned,
    realised_delta,
    realised_epsilon,
)
from coinflower.accounting.composition.calibration import LEAST_SIGMA
from coinflower.accounting.composition.optimistic import LeastSum, least_sum
from coinflower.accounting.mechanism import Direction, Round

Array = npt.NDArray[np.float64]
# Noise to the cells of outputs of one round.
Cells = Callable[[float], tuple[Array, Array]]

_ANGLES = (0.25, 0.6, 0.95, 1.3)
# Shorter gradients of the others leave room for x' below a cap. The shares are of the length at
# which as many as are sampled on average leave all the room that x' needs.
_SHARES_OF_ROOM = (0.35, 0.5, 0.65, 0.75, 0.85, 0.95, 1.0)
# More than so many records on average are hardly more of one length together, and take time.
_MOST_SAMPLED = 100
# With less noise a grid is long, and a gradient across the others loses as much as any.
_SEARCHED_FROM = 0.3
# The δ that a lattice is made for when it is δ that is looked for.
_LIKELY_DELTA = 1e-9


@functools.lru_cache(maxsize=64)
def realised_epsilon_after(round_: Round, rounds: int, delta: float) -> float:
    """Return a lower bound on the worst-case ε at ``delta`` after ``rounds`` rounds.

    One round without a cap: the best geometry found. Otherwise the best of a few geometries, each
    held through all rounds, which a data set of constant gradients does; no loss is rounded up.

    Args:
        round_: One of the rounds.
        rounds: At least 0.
        delta: In (0, 1).

    Returns:
        ε that no honest analysis can go below.
    """
    round_ = _with_cap_that_bites(round_)
    if round_.noise_multiplier < LEAST_SIGMA or rounds == 0:
        return 0.0
    if rounds > 1 or round_.is_capped:
        return max(least.epsilon(delta) for least in _composed(round_, rounds, delta))
    if round_.noise_multiplier >= _SEARCHED_FROM:
        return realised_epsilon(round_, delta, start=Certified(round_).epsilon(delta))[0]
    return max(pair.epsilon(delta + CANCELLATION) for pair in _quiet_pairs(round_))


@functools.lru_cache(maxsize=64)
def realised_delta_after(round_: Round, rounds: int, epsilon: float) -> float:
    """Return a lower bound on the worst-case δ at ``epsilon`` after ``rounds`` rounds."""
    round_ = _with_cap_that_bites(round_)
    if round_.noise_multiplier < LEAST_SIGMA or rounds == 0:
        return 0.0
    if rounds > 1 or round_.is_capped:
        return max(least.delta(epsilon) for least in _composed(round_, rounds, _LIKELY_DELTA))
    if round_.noise_multiplier >= _SEARCHED_FROM:
        return realised_delta(round_, epsilon)[0]
    return max(0.0, *(pair.delta(epsilon) - CANCELLATION for pair in _quiet_pairs(round_)))


@functools.lru_cache(maxsize=64)
def realised_sigma_after(round_: Round, rounds: int, epsilon: float, delta: float) -> float:
    """Return a noise multiplier at which a concrete data set still loses (ε, δ) or more.

    Args:
        round_: Its noise is the most that could be needed, e.g. the certified one.
        rounds: At least 1.
        epsilon: At least 0.
        delta: In (0, 1).

    Returns:
        Noise that is too little for (ε, δ); the geometry is searched for noise to a thousandth for
        one round and to a hundredth for more, and for one round what the best one found needs is
        exact. 0 if even hardly any noise may be enough.
    """
    round_ = _with_cap_that_bites(round_)
    most = round_.noise_multiplier
    if rounds > 1 or round_.is_capped:

        def lost(cells: Cells, sigma: float) -> float:
            base, gain = cells(sigma)
            return least_sum(base, gain, rounds, delta).delta(epsilon)

        # One geometry for all noise levels is a lower bound, too, and composing takes time.
        held = max(_held(round_), key=lambda cells: lost(cells, most))
        precision = 1e-2 if rounds > 1 else 1e-3
        return _last_noise(lambda sigma: lost(held, sigma) >= delta, most, precision=precision)

    def is_found(sigma: float) -> bool:
        changed = replace(round_, noise_multiplier=sigma)
        return realised_delta_after(changed, 1, epsilon) >= delta

    low = _last_noise(is_found, most, precision=1e-3)
    if low < _SEARCHED_FROM:
        return low
    _, found = realised_delta(replace(round_, noise_multiplier=low), epsilon)
    for pair in (aligned(round_), found):

        def is_lost(sigma: float, pair: Analysis = pair) -> bool:
            return pair.with_noise(sigma).delta(epsilon) - CANCELLATION >= delta

        if is_lost(low):
            low = _last_noise(is_lost, most, precision=1e-9, reached=low)
    return low


def _last_noise(
    is_reached: Callable[[float], bool], most: float, *, precision: float, reached: float = 0.0
) -> float:
    """Return the most noise up to ``most`` at which something is reached, 0 if it never is.

    Args:
        is_reached: Holds up to some noise.
        most: Where to start.
        precision: How close to come, relatively.
        reached: Noise at which it is known to hold.
    """
    low = high = most
    while not is_reached(low):
        low, high = max(low / 2, reached), low
        if low < LEAST_SIGMA:
            return 0.0
    while high > (1 + precision) * low:
        middle = (low * high) ** 0.5
        low, high = (middle, high) if is_reached(middle) else (low, middle)
    return low


def _quiet_pairs(round_: Round) -> Iterator[Analysis]:
    yield aligned(round_)
    yield Realised(round_, angle=math.pi / 2)


def _held(round_: Round) -> Iterator[Cells]:
    """Return, for each geometry, how one round's cells of outputs depend on the noise."""
    setting: dict[str, Any] = {"p": round_.p, "q": round_.q, "d": round_.d}
    for others, length in _others(round_):
        line = {**setting, "d": others, "cap": round_.cap, "length": length}
        yield functools.partial(_along, line)
        yield functools.partial(_against, line)
    # Of so few the sum never meets the cap.
    few = {**setting, "d": math.floor(min(round_.d, round_.cap - 1))}
    for angle in _ANGLES if round_.noise_multiplier >= _SEARCHED_FROM else (math.pi / 2,):
        yield functools.partial(_planar, few, angle)


def _others(round_: Round) -> Iterator[tuple[int, float]]:
    """Return how many other records have a gradient, all the same one, and how long it is.

    Records whose gradient is 0 might as well not be there, but they are allowed to be.
    """
    yield round_.d, 1.0
    if round_.is_capped:
        yield 0, 1.0
        some = min(round_.d, math.ceil(_MOST_SAMPLED / round_.q))
        room = min(1.0, (round_.cap - 1) / max(1.0, some * round_.q))
        for length in {share * room for share in _SHARES_OF_ROOM} - {0.0, 1.0}:
            yield some, length


def _with_cap_that_bites(round_: Round) -> Round:
    """Return the round without its cap if no sum of x' and all others is longer."""
    return round_ if round_.cap < round_.d + 1 else replace(round_, cap=math.inf)


def _along(setting: dict[str, Any], sigma: float) -> tuple[Array, Array]:
    return aligned_pair(**setting, sigma=sigma, direction=Direction.REMOVE).cells()


def _against(setting: dict[str, Any], sigma: float) -> tuple[Array, Array]:
    base, gain = aligned_pair(**setting, sigma=sigma, direction=Direction.ADD).cells()
    return base + gain, -gain


def _planar(setting: dict[str, Any], angle: float, sigma: float) -> tuple[Array, Array]:
    return planar_cells(**setting, sigma=sigma, angle=angle)


def _composed(round_: Round, rounds: int, delta: float) -> Iterator[LeastSum]:
    for cells in _held(round_):
        base, gain = cells(round_.noise_multiplier)
        yield least_sum(base, gain, rounds, delta)
