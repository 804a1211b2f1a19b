"""What a client as a whole loses: all its records are there, or none is.

Without the client the output is N(0, σ²) around what the others sent. With it, it is a mixture of
Gaussians: i of its records are sampled, and their sum has length min(i, cap) at most. Equal
gradients of full length are the worst, so the mixture on a line is exact (docs/mathematics.md, "The
client as the unit").
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import scipy

from coinflower.accounting.analyses.analysis import Analysis
from coinflower.accounting.analyses.baselines import WeakClientSampling
from coinflower.accounting.analyses.binomial import binomial_window
from coinflower.accounting.analyses.gaussian_excess import excess, log_sum, mills_ratio
from coinflower.accounting.mechanism import Direction

Array = npt.NDArray[np.float64]

# More components than this are merged, longer ones standing in for shorter ones.
_MOST_COMPONENTS = 128
# Left of this many standard deviations Mills' ratio grows like exp(u²/2); plain tail probabilities
# lose nothing there.
_SCALED_FORM_FROM = -10.0
_MOST_NEWTON_STEPS = 100
# Elements of one work array.
_CHUNK = 1 << 16


def client_delta(
    epsilon: Array, *, p: float, q: float, size: int, sigma: float, cap: float, direction: Direction
) -> Array:
    """Return δ(ε ≥ 0) of one round if the whole client is removed, or added.

    remove: ∫ [ p·Σ_k m_k·N(z; k) − (e^ε − 1 + p·(1 − m_0))·N(z; 0) ]₊ dz over lengths k > 0
    add:    ∫ [ (1 − e^ε·(1 − p + p·m_0))·N(z; 0) − e^ε·p·Σ_k m_k·N(z; k) ]₊ dz

    Args:
        epsilon: One-dimensional, none below 0.
        p: Participation probability.
        q: Local sampling rate.
        size: Bound on the number of the client's records.
        sigma: Noise multiplier.
        cap: Largest length of the client's sum in clip norms, at least 1; ∞ for none.
        direction: Whether the client is removed or added.
    """
    lengths, mass = _components(q, size, cap)
    weights = p * mass
    # The probability that the client sends something other than nothing.
    active = float(weights.sum())
    if lengths.size == 0:
        return np.zeros_like(epsilon)
    rows = max(1, _CHUNK // lengths.size)
    parts = [epsilon[start : start + rows] for start in range(0, epsilon.size, rows)]
    if direction is Direction.REMOVE:
        values = [_removed(part, weights, active, lengths / sigma) for part in parts]
    else:
        values = [_added(part, weights, active, lengths, sigma) for part in parts]
    return np.concatenate(values) if values else np.zeros_like(epsilon)


@dataclass(frozen=True)
class WholeClient(Analysis):
    """The whole client as the unit: d records are there or not. Exact for the worst data."""

    name: ClassVar[str] = "client"
    title: ClassVar[str] = "the client as a whole"

    def _delta(self, epsilon: Array, direction: Direction) -> Array:
        return client_delta(
            epsilon,
            p=self.round.p,
            q=self.round.q,
            size=self.round.d,
            sigma=self.round.noise_multiplier,
            cap=self.round.cap,
            direction=direction,
        )


@dataclass(frozen=True)
class SeenWholeClient(Analysis):
    """The whole client as the unit if everybody sees when it joins: δ = p·δ(p = 1) for ε ≥ 0."""

    name: ClassVar[str] = "seen-client"
    title: ClassVar[str] = "the client as a whole, seen to join"

    def _delta(self, epsilon: Array, direction: Direction) -> Array:
        always = WholeClient(replace(self.round, p=1.0))
        return self.round.p * always._delta(epsilon, direction)


def whole_client(cost: Analysis) -> Analysis:
    """Return what a round that is charged so for one record costs the client as a whole.

    Args:
        cost: An analysis that ledgers take. It says whether the coin is secret, or there is none.
    """
    if cost.hides_coin:
        return WholeClient(cost.round)
    if isinstance(cost, WeakClientSampling):
        return SeenWholeClient(cost.round)
    return WholeClient(replace(cost.round, p=1.0))


def _components(q: float, size: int, cap: float) -> tuple[Array, Array]:
    """Return the positive lengths of the client's sum, increasing, and their probabilities."""
    counts, mass, cut = binomial_window(size, q)
    lengths, mass = np.minimum(np.append(counts, float(size)), cap), np.append(mass, cut)
    stride = math.ceil(np.unique(lengths).size / _MOST_COMPONENTS)
    if stride > 1:
        # Counted from the longest, so that none is shortened.
        lengths = lengths[-1] - (lengths[-1] - lengths) // stride * stride
    lengths, place = np.unique(lengths, return_inverse=True)
    total = np.zeros(lengths.size)
    np.add.at(total, place, mass)
    seen = (lengths > 0) & (total > 0)
    return lengths[seen], total[seen]


def _removed(epsilon: Array, weights: Array, active: float, means: Array) -> Array:
    """Return δ of a mixture against its component at 0.

    With r_k(u) = w_k·exp(m_k·u − m_k²/2) the two sides meet where Σ_k r_k(u) = e^ε − 1 + Σ_k w_k,
    and there δ = Σ_k w_k·φ(u − m_k)·(M(u − m_k) − M(u)) with Mills' ratio M: nothing cancels.
    log Σ r_k is convex and rising; where one component alone reaches the level we are right of the
    crossing, and Newton's steps approach it and never pass it.
    """
    level = epsilon + np.log(-np.expm1(-epsilon) + active * np.exp(-epsilon))
    logs = np.log(weights)[:, None]
    shifts = means[:, None]
    u = np.min((level - logs) / shifts + shifts / 2, axis=0)
    for _ in range(_MOST_NEWTON_STEPS):
        ratios = logs + shifts * (u - shifts / 2)
        value = log_sum(ratios)
        step = (value - level) / (np.exp(ratios - value) * shifts).sum(axis=0)
        u = u - step
        if np.all(np.abs(step) <= 1e-14 * (1 + np.abs(u))):
            break
    a = u - shifts
    at = np.maximum(a, _SCALED_FORM_FROM)
    scaled = np.exp(at * at / -2) / math.sqrt(2 * math.pi) * (mills_ratio(at) - mills_ratio(u))
    tails = scipy.special.ndtr(-a) - np.exp(shifts * (u - shifts / 2) + scipy.special.log_ndtr(-u))
    return np.asarray(weights @ np.where(a >= _SCALED_FORM_FROM, scaled, np.maximum(tails, 0.0)))


def _added(epsilon: Array, weights: Array, active: float, lengths: Array, sigma: float) -> Array:
    """Return δ of the component at 0 against the mixture: a Gaussian's excess over a basket."""
    vanishes_at = -math.log1p(-active) if active < 1 else math.inf
    gain = np.expm1(np.minimum(epsilon, min(vanishes_at, 700.0)))
    # 1 − e^ε·(1 − active)
    top = active - (1 - active) * gain if active < 1 else np.ones_like(epsilon)
    with np.errstate(divide="ignore"):
        log_top = np.log(np.where(epsilon < vanishes_at, np.maximum(top, 0.0), 0.0))
    members = [epsilon + math.log(weight) for weight in weights]
    return excess(log_top, members, lengths.tolist(), sigma)
