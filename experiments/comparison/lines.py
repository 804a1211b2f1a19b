"""The lines of a comparison: who adds noise, by which analysis, and the noise that is in a sum."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

from coinflower.accounting.analyses.names import scheme_class
from coinflower.accounting.composition.calibration import least_sigma
from coinflower.accounting.composition.compose import epsilon_after
from coinflower.accounting.masked import chosen_shares
from coinflower.accounting.mechanism import Round
from coinflower.experiments.comparison.comparisons import DELTA, Comparison
from coinflower.protocol.modes import Mode
from coinflower.protocol.planning.choices import CAPS, signal_left

NO_PRIVACY = "no privacy"
_WITHIN = 1.01


@dataclass(frozen=True, kw_only=True)
class Line:
    """A way to train that is compared.

    Attributes:
        name: What the tables call it.
        mode: Who adds noise; None without privacy.
        scheme: The analysis that chooses the noise.
        capped: Whether clients' sums are capped, where that pays.
        everybody: Whether all clients take part in every round, at the same batch.
    """

    name: str
    mode: Mode | None = Mode.TRUSTED
    scheme: str = "certified"
    capped: bool = False
    everybody: bool = False


LINES = (
    Line(name=NO_PRIVACY, mode=None),
    Line(name="centralised DP-SGD", scheme="cs", everybody=True),
    Line(name="trusted, everybody", everybody=True),
    Line(name="trusted, capped", capped=True),
    Line(name="masked, capped", mode=Mode.MASKED, capped=True),
    Line(name="trusted", scheme="certified"),
    Line(name="trusted, σ of wcs", scheme="wcs"),
    Line(name="trusted, σ of ols", scheme="ols"),
    Line(name="trusted, the paper's σ", scheme="paper"),
    Line(name="quiet", mode=Mode.QUIET, scheme="wcs"),
    Line(name="untrusted", mode=Mode.UNTRUSTED, capped=True),
)


def lines_of(comparison: Comparison) -> list[Line]:
    """Return the lines that a comparison trains."""
    return [
        line
        for line in LINES
        if line.everybody or line.mode is None or not comparison.everybody_only
    ]


@dataclass(frozen=True, kw_only=True)
class Level:
    """All that the accuracy of a training depends on, beside its learning rate and its seed.

    Attributes:
        rounds: Number of rounds.
        p: Participation probability.
        q: Sampling rate.
        cap: Cap on a client's sum in clip norms; ∞ for none.
        noise: Standard deviation of the noise in a sum, in clip norms, within half a per cent.
    """

    rounds: int
    p: float
    q: float
    cap: float
    noise: float


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A line at a budget.

    Attributes:
        line: The line.
        epsilon: The budget; None without privacy.
        sigma: Noise multiplier that the line's analysis asks for.
        true_epsilon: What the rounds cost at most, by the analysis that holds.
        level: What is trained for it.
        clients: Number of clients.
    """

    line: Line
    epsilon: float | None
    sigma: float
    true_epsilon: float | None
    level: Level
    clients: int


def cell_of(
    comparison: Comparison, line: Line, epsilon: float | None, *, clients: int | None = None
) -> Cell:
    """Return a line at a budget.

    Args:
        comparison: What is compared.
        line: The line.
        epsilon: The budget; None without privacy.
        clients: Share the same data out to so many instead, equally.
    """
    count, d = comparison.clients, comparison.d
    if clients is not None:
        count, d = clients, comparison.units // clients
    rounds, batch = comparison.rounds, comparison.batch
    p = 1.0 if line.everybody else comparison.p
    q = batch / (p * comparison.units)
    if line.mode is None or epsilon is None:
        level = Level(rounds=rounds, p=p, q=q, cap=math.inf, noise=0.0)
        return Cell(
            line=line, epsilon=None, sigma=0.0, true_epsilon=None, level=level, clients=count
        )
    cap = _best_cap(p, q, d, epsilon, rounds) if line.capped else math.inf
    sigma = _sigma(line.scheme, p, q, d, epsilon, rounds, cap)
    honest = 1
    if line.mode.masks_sums:
        threshold, colluders = chosen_shares(count, None, None)
        honest = threshold - colluders
    noises = line.mode.noises_in_sum(asked=count, took_part=p * count, honest=honest)
    scheme = scheme_class("cs") if line.scheme == "cs" else line.mode.scheme
    assert scheme is not None
    true_epsilon = epsilon_after([(scheme(Round(p, q, d, sigma, cap)), rounds)], DELTA)
    noise = rounded_noise(sigma * math.sqrt(noises))
    level = Level(rounds=rounds, p=p, q=q, cap=cap, noise=noise)
    return Cell(
        line=line,
        epsilon=epsilon,
        sigma=sigma,
        true_epsilon=true_epsilon,
        level=level,
        clients=count,
    )


def rounded_noise(noise: float) -> float:
    """Return the nearest power of 1.01: lines whose noise differs by less share their trainings."""
    return float(f"{_WITHIN ** round(math.log(noise) / math.log(_WITHIN)):.5g}")


@functools.cache
def _sigma(
    scheme: str, p: float, q: float, d: int, epsilon: float, rounds: int, cap: float
) -> float:
    return least_sigma(
        scheme_class(scheme), p=p, q=q, d=d, epsilon=epsilon, delta=DELTA, rounds=rounds, cap=cap
    )


@functools.cache
def _best_cap(p: float, q: float, d: int, epsilon: float, rounds: int) -> float:
    """Return the cap with the most signal over noise, as a plan does; none if that gains little."""

    def worth(cap: float) -> float:
        return signal_left(d, q, cap) / _sigma("certified", p, q, d, epsilon, rounds, cap)

    best = max(CAPS, key=worth)
    return best if worth(best) > _WITHIN * worth(math.inf) else math.inf
