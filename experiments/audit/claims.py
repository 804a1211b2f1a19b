"""Verdicts: a claimed ε beside the ε that the outputs prove."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from coinflower.experiments.audit.bounds import Array, Coins, Counts, Tries, event_epsilon
from coinflower.experiments.audit.settings import (
    Setting,
    claimed_scheme,
    log_likelihood_ratio,
    paper_scheme,
)
from coinflower.experiments.audit.trials import Outputs

Score = Callable[[Array], Array]

_THRESHOLDS = 200
_RAREST = 1e-4


@dataclass(frozen=True, kw_only=True)
class Claim:
    """One claim and what was found.

    Attributes:
        name: What was audited.
        mode: Mode of the terms.
        geometry: How the canary lies to the other gradients.
        delta: The δ of the claim.
        claimed_epsilon: The ε that is claimed.
        audited_epsilon: The ε that is proven to be lost, with the confidence.
        holds: Whether the claim survives.
        trials: Outputs that were looked at, over both worlds.
        confidence: Probability that ``audited_epsilon`` is no larger than the truth.
        paper_epsilon: What the source paper says, where it says anything.
    """

    name: str
    mode: str
    geometry: str
    delta: float
    claimed_epsilon: float
    audited_epsilon: float
    holds: bool
    trials: int
    confidence: float
    paper_epsilon: float | None = None


def judge(
    setting: Setting, with_canary: Outputs, without: Outputs, error: float
) -> Iterator[Claim]:
    """Yield the verdict on every claim of a setting.

    Args:
        setting: What was run.
        with_canary: What was seen on the data set with the canary.
        without: On the one without it; for a twin setting both less what the twin sent.
        error: Probability that a claim that is true is refuted.
    """
    for delta in setting.deltas:
        in_paper = setting.mode.hides_coins and setting.p < 1 and math.isinf(setting.cap)
        yield _verdict(
            setting,
            setting.name,
            delta=delta,
            audited=audited_epsilon(setting, with_canary, without, delta, error),
            trials=with_canary.trials + without.trials,
            error=error,
            claimed=0.0 if setting.under_masks else None,
            paper_epsilon=paper_scheme(setting).epsilon(delta) if in_paper else None,
        )


def judge_coins(
    setting: Setting, with_canary: Coins, without: Coins, error: float
) -> Iterator[Claim]:
    """Yield the verdicts on the coins alone: they know nothing of the data, and are no more than p.

    Coins that are independent of the data lose ε = 0 at δ = 0. Of their rate, the proven ε is what
    a ledger would have to charge for the least rate that the coins allow.

    Args:
        setting: What was run.
        with_canary: Coins on the data set with the canary.
        without: Coins on the other.
        error: Probability that a true claim is refuted, for each of the two.
    """
    worlds = [
        Tries(
            heads=np.array([coins.joined, coins.flips - coins.joined]),
            heads_total=coins.flips,
            tails=np.zeros(2, dtype=np.int64),
            tails_total=0,
        )
        for coins in (with_canary, without)
    ]
    audited = max(
        float(event_epsilon(one, other, None, 0.0, error / 4).max())
        for one, other in (worlds, worlds[::-1])
    )
    coins = pooled(with_canary, without)
    yield _verdict(
        setting,
        f"{setting.mode}, coins and data",
        delta=0.0,
        claimed=0.0,
        audited=audited,
        trials=coins.flips,
        error=error,
    )
    least_rate, _ = coins.range(error)
    delta = min(setting.deltas)
    yield _verdict(
        setting,
        f"{setting.mode}, rate of coins",
        delta=delta,
        audited=claimed_scheme(replace(setting, p=least_rate)).epsilon(delta),
        trials=coins.flips,
        error=error,
    )


def _verdict(
    setting: Setting,
    name: str,
    *,
    delta: float,
    audited: float,
    trials: int,
    error: float,
    claimed: float | None = None,
    paper_epsilon: float | None = None,
) -> Claim:
    if claimed is None:
        claimed = claimed_scheme(setting).epsilon(delta)
    return Claim(
        name=name,
        mode=str(setting.mode),
        geometry=setting.geometry,
        delta=delta,
        claimed_epsilon=claimed,
        audited_epsilon=audited,
        holds=audited <= claimed,
        trials=trials,
        confidence=1 - error,
        paper_epsilon=paper_epsilon,
    )


def audited_epsilon(
    setting: Setting, with_canary: Outputs, without: Outputs, delta: float, error: float
) -> float:
    """Return a lower bound on ε, wrong with probability ``error``.

    Even rounds choose the event, a threshold on one of a few scores, in one of both directions; odd
    rounds, which have not been looked at, give the bound.
    """
    coins = (
        pooled(with_canary.coins, without.coins) if with_canary.coins and without.coins else None
    )
    best = (0.0, 0.0, 0, 0)
    scores = list(_scores(setting))
    halves = [
        [_scored(setting, score, world, 0), _scored(setting, score, world, 1)]
        for score in scores
        for world in (with_canary, without)
    ]
    for index in range(len(scores)):
        inside, outside = halves[2 * index][0], halves[2 * index + 1][0]
        thresholds = _thresholds(np.concatenate([*inside, *outside]))
        for sign in (1, -1):
            likely, unlikely = (
                _count(world, thresholds, sign) for world in (inside, outside)[::sign]
            )
            found = event_epsilon(likely, unlikely, coins, delta, error)
            at = int(np.argmax(found))
            best = max(best, (float(found[at]), float(thresholds[at]), sign, index))
    _, threshold, sign, index = best
    if sign == 0:
        return 0.0
    likely, unlikely = (
        _count(world[1], np.array([threshold]), sign)
        for world in halves[2 * index : 2 * index + 2][::sign]
    )
    return float(event_epsilon(likely, unlikely, coins, delta, error)[0])


def _scores(setting: Setting) -> Iterator[Score]:
    """Yield functions that are large where the canary seems to be in."""
    if setting.twin:
        # Less the twin's noise, only the canary would be left on its axis.
        yield lambda points: -np.abs(points[:, 1] - 1.0)
        return
    if setting.under_masks:
        # Were a mask used twice, the canary would be in one of both rounds, or in the other.
        yield lambda points: np.abs(points @ np.array(setting.canary))
        return
    yield lambda points: log_likelihood_ratio(setting, points)
    yield lambda points: points @ np.array(setting.canary)


def _scored(setting: Setting, score: Score, outputs: Outputs, parity: int) -> tuple[Array, Array]:
    """Return the scores of heads and tails in rounds of one parity; silence counts as 0."""
    heads = score(outputs.heads[parity::2].reshape(-1, 2))
    if setting.mode.shows_coins:
        return heads, np.zeros(len(heads))
    return heads, score(outputs.tails[parity::2].reshape(-1, 2))


def _thresholds(scores: Array) -> Array:
    tails = np.geomspace(_RAREST, 0.5, _THRESHOLDS // 2)
    return np.asarray(np.quantile(scores, np.concatenate([tails, 1 - tails])))


def _count(scores: tuple[Array, Array], thresholds: Array, sign: int) -> Tries:
    """Count scores of at least (sign +1) or at most (−1) each threshold."""
    heads, tails = (_beyond(np.sort(sign * part), sign * thresholds) for part in scores)
    return Tries(heads=heads, heads_total=len(scores[0]), tails=tails, tails_total=len(scores[1]))


def _beyond(ascending: Array, thresholds: Array) -> Counts:
    return np.asarray(len(ascending) - np.searchsorted(ascending, thresholds), dtype=np.int64)


def pooled(one: Coins, other: Coins) -> Coins:
    """Return the coins of both worlds, which are alike if they know nothing of the data."""
    return Coins(joined=one.joined + other.joined, flips=one.flips + other.flips)
