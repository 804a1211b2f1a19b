"""What many rounds cost: privacy-loss distributions of our curves, held by dp-accounting.

The lattice is chosen from the mechanism, so that ε is hardly rounded and memory bounded. See
docs/mathematics.md, "Many rounds".
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from coinflower.accounting import validation
from coinflower.accounting.analyses.analysis import Analysis
from coinflower.accounting.composition.convolution import add_up
from coinflower.accounting.composition.losses import Losses, round_losses, sampled_losses
from coinflower.accounting.composition.past import KNOT_RATIO, Past, past_of

if TYPE_CHECKING:  # takes a second to import, and one round does without
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

Array = npt.NDArray[np.float64]
Rounds = Sequence[tuple[Analysis, int]]
Parts = Sequence[tuple[Analysis | Past, int]]

# The lattice may add this share to the composed loss's variance, hence half of it to ε.
_VARIANCE_SHARE = 0.001
# ... or this, where the result is folded into others again and again; it is then cut at this share
# of δ.
_FOLDED_VARIANCE_SHARE = 1e-5
_FOLDED_DELTA_SHARE = 1e-3
# ... and may not be coarser than this share of the ε that comes out.
_EPSILON_SHARE = 0.02
# Losses so large that all rounds together reach them with less than this share of δ count as
# infinite.
_TAIL_SHARE = 1e-3
# 2^20 doubles are 8 MB; FFT and copies stay well below 1 GB.
_MOST_LATTICE_POINTS = 1 << 20
# The composed loss spans about this many of its standard deviations on the lattice.
_DEVIATIONS = 16.0
_SMALLEST_DELTA = 1e-15
# Searches end after so many attempts, wherever they are: each result is an upper bound.
_MOST_ATTEMPTS = 64


def epsilon_after(
    rounds: Rounds, delta: float, *, step: float | None = None, past: Past | None = None
) -> float:
    """Return an upper bound on ε at ``delta`` after all the rounds.

    Args:
        rounds: Pairs of a round's scheme and how many such rounds.
        delta: In (0, 1).
        step: Lattice step; chosen from the schemes if left out.
        past: What was before these rounds.

    Returns:
        ε, ∞ if no finite ε is certified at this δ.
    """
    validation.require_delta(delta)
    # In one order, whatever the caller's: sums of floats differ by it in the last digits.
    groups = sorted(merged(rounds), key=repr)
    return _epsilon_after(tuple(_with_past(groups, past)), delta, step)


# Ledgers ask the same question again and again, and equal clients ask equal ones.
@functools.lru_cache(maxsize=1024)
def _epsilon_after(
    groups: tuple[tuple[Analysis | Past, int], ...], delta: float, step: float | None
) -> float:
    if not groups:
        return 0.0
    alone = groups[0][0]
    if step is None and groups[0][1] == len(groups) == 1 and isinstance(alone, Analysis):
        return alone.epsilon(delta)
    spread = _Spread(groups, delta)
    if step is not None:
        return max(losses.epsilon(delta) for losses in spread.losses(step))
    step, epsilon = spread.lattice_step(), math.inf
    for _ in range(_MOST_ATTEMPTS):
        epsilon = max(losses.epsilon(delta) for losses in spread.losses(step))
        wanted = max(_EPSILON_SHARE * epsilon, spread.finest_step)
        if step <= wanted or epsilon == 0:
            break
        step /= 2 ** math.ceil(math.log2(step / wanted))
    return epsilon


def _bounded(value: float, most: float = math.inf) -> float:
    """Return the value; ``most``, which bounds everything, if it is larger or undefined."""
    return float(value) if value <= most else most


def delta_after(rounds: Rounds, epsilon: float, *, past: Past | None = None) -> float:
    """Return an upper bound on δ at ``epsilon`` after all the rounds, and what was before."""
    validation.require_epsilon(epsilon)
    groups = _with_past(merged(rounds), past)
    if not groups:
        return 0.0
    alone = groups[0][0]
    if groups[0][1] == len(groups) == 1 and isinstance(alone, Analysis):
        return alone.delta(epsilon)
    # The lattice is cut to a δ, which is what we look for: go down until it was small enough.
    aim, reached = 1e-5, 1.0
    for _ in range(_MOST_ATTEMPTS):
        spread = _Spread(groups, aim)
        step = min(spread.lattice_step(), _EPSILON_SHARE * epsilon or math.inf)
        composed = spread.compose(max(step, spread.finest_step))
        reached = _bounded(composed.get_delta_for_epsilon(epsilon), 1.0)
        if reached >= aim or aim <= _SMALLEST_DELTA:
            break
        aim = max(reached / 10, _SMALLEST_DELTA)
    return reached


def fold(rounds: Rounds, delta: float, *, past: Past | None = None) -> Past:
    """Return what was before and the rounds as one, to be used at ``delta`` and above.

    Folded a thousand times, it still hardly raises ε: the lattice is finer than for one figure, and
    what counts as infinite is less.
    """
    groups = merged(rounds)
    validation.require_count("rounds", len(groups), least=1)
    spread = _Spread(_with_past(groups, past), _FOLDED_DELTA_SHARE * delta)
    step = max(spread.lattice_step(_FOLDED_VARIANCE_SHARE), spread.finest_step)
    before = list(past.counts.items()) if past else []
    return past_of(dict(merged([*before, *groups])), *spread.losses(step, room=2))


def _with_past(groups: Rounds, past: Past | None) -> Parts:
    return groups if past is None else [(past, 1), *groups]


def merged(rounds: Iterable[tuple[Analysis, int]]) -> list[tuple[Analysis, int]]:
    """Return the rounds with equal schemes counted together."""
    counts: dict[Analysis, int] = {}
    for scheme, count in rounds:
        validation.require_count("rounds", count, least=0)
        if count:
            counts[scheme] = counts.get(scheme, 0) + count
    return list(counts.items())


def lattice_step(rounds: Rounds, delta: float) -> float:
    """Return the lattice step that the mechanism's variance asks for."""
    return _Spread(merged(rounds), delta).lattice_step()


class _Spread:
    """How far the losses of some rounds reach and vary, and so which lattice they need."""

    def __init__(self, groups: Parts, delta: float) -> None:
        self._groups = groups
        self._truncation = 1e-5 * delta
        tail = _TAIL_SHARE * delta / sum(count for _, count in groups)
        self._reaches = [
            curve.reach if isinstance(curve, Past) else _reach(curve, tail) for curve, _ in groups
        ]

    @functools.cached_property
    def _samples(self) -> list[tuple[int, Array, Array]]:
        """Return, for each group, how many rounds, absolute losses and their probabilities."""
        samples = []
        for (curve, count), reach in zip(self._groups, self._reaches, strict=True):
            knots = np.concatenate([[0.0], np.geomspace(1e-9 * reach, reach, 200)])
            samples.append((count, *sampled_losses(curve, knots)))
        return samples

    @functools.cached_property
    def _variance(self) -> float:
        return sum(count * float(mass @ losses**2) for count, losses, mass in self._samples)

    @functools.cached_property
    def finest_step(self) -> float:
        """The finest lattice that memory allows."""
        widest = max(2 * max(self._reaches), _DEVIATIONS * math.sqrt(self._variance))
        return 2.0 ** math.ceil(math.log2(widest / _MOST_LATTICE_POINTS))

    def lattice_step(self, share: float = _VARIANCE_SHARE) -> float:
        """Return a power of two as step, fine enough for ε within a fraction of a per cent.

        A loss ℓ between lattice points a < ℓ < b is split between them, which adds
        (ℓ − a)(b − ℓ) ≤ min(step·|ℓ|, step²/4) to the variance. All rounds together may gain a
        fixed share of their variance.
        """
        step = 2.0 ** math.ceil(math.log2(max(self._reaches)))
        while step > self.finest_step:
            added = sum(
                count * float(mass @ np.minimum(step * losses, step**2 / 4))
                for count, losses, mass in self._samples
            )
            if added <= share * self._variance:
                break
            step /= 2
        return step

    def compose(self, step: float) -> PrivacyLossDistribution:
        """Return the privacy-loss distribution of all the rounds."""
        from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

        remove, add = self.losses(step)
        return PrivacyLossDistribution(remove.as_pmf(), add.as_pmf())

    def losses(self, step: float, *, room: int = 1) -> tuple[Losses, Losses]:
        """Return the losses of all the rounds in both directions; see `add_up`."""
        rounds = [
            (_losses_of(curve, step, reach), count)
            for (curve, count), reach in zip(self._groups, self._reaches, strict=True)
        ]
        remove, add = (
            add_up(
                [(both[direction], count) for both, count in rounds], self._truncation, room=room
            )
            for direction in (0, 1)
        )
        return remove, add


def _losses_of(curve: Analysis | Past, step: float, reach: float) -> tuple[Losses, Losses]:
    if isinstance(curve, Past):
        return round_losses(curve, step, reach, knot_ratio=KNOT_RATIO)
    return round_losses(curve, step, reach)


@functools.lru_cache(maxsize=256)
def _reach(scheme: Analysis, tail: float) -> float:
    """Return an ε with δ(ε) ≤ tail, at most a tenth above the least."""
    # One call for many points costs little more than for one.
    coarse: Array = 1e-9 * 4.0 ** np.arange(16, dtype=np.float64)
    above = int(np.count_nonzero(scheme.delta(coarse) > tail))
    first = float(coarse[min(above, coarse.size - 1)])
    for _ in range(_MOST_ATTEMPTS):
        if scheme.delta(first) <= tail:
            break
        first *= 4
    else:  # what lies beyond counts as infinite, however much it is
        return first
    fine: Array = np.geomspace(first / 4, first, 16)
    return float(fine[np.argmax(scheme.delta(fine) <= tail)])
