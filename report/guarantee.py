"""What a figure of ε promises, in words: who is protected against whom, for what, how surely."""

from __future__ import annotations

import math
from dataclasses import dataclass

from coinflower.accounting.analyses.analysis import Analysis
from coinflower.accounting.analyses.baselines import OnlyLocalSampling, WeakClientSampling
from coinflower.accounting.analyses.certified import Certified
from coinflower.accounting.composition.tightness import realised_epsilon_after
from coinflower.accounting.rounding import rounded_down, rounded_up
from coinflower.protocol.modes import Mode
from coinflower.protocol.unit import Unit

ANALYSES = {
    Certified.name: "a proved upper bound for random participation with secret coins",
    WeakClientSampling.name: "random participation that everybody may see, exact for one round",
    OnlyLocalSampling.name: "the sampling of each client alone, exact for one round",
}

THIS_PAGE = (
    "This page shows who took part and when, or how many did. The figure for secret coins protects "
    "against people who see the model, not against readers of this page: keep it as safe as the "
    "ledgers."
)
OTHER_USES = (
    "It covers these rounds only, not other uses of the same data, break-ins, or what is true of "
    "everybody: that smoking is harmful can be learned from data without you, too."
)


@dataclass(frozen=True, kw_only=True)
class Statement:
    """One question about a guarantee, with its answer."""

    question: str
    answer: str


def who_is_protected(mode: Mode, unit: Unit) -> list[Statement]:
    """Return whom the promise of a mode is to, against whom, and for what."""
    return [
        Statement(
            question="Who is protected",
            answer=f"every {unit} of every client that followed its policy, whatever others do",
        ),
        Statement(question="Against whom", answer=mode.facts.against),
        Statement(
            question="For what unit",
            answer=f"{unit.facts.protected}: the promise compares data with it to the same data "
            "without it",
        ),
    ]


def statements(
    mode: Mode,
    unit: Unit,
    cost: Analysis,
    rounds: int,
    epsilon: float,
    delta: float,
    *,
    evaluations: int = 0,
) -> list[Statement]:
    """Return the guarantee of ``rounds`` rounds, question by question.

    Args:
        mode: Who adds noise and who sees participation.
        unit: What is protected.
        cost: One round of the client that lost most.
        rounds: How many it was charged for.
        epsilon: What they cost at ``delta``, as its ledger says.
        delta: Of the budget.
        evaluations: How many it was charged for on top, which ``epsilon`` includes.
    """
    on_top = f" and {evaluations:,} charged evaluations" * bool(evaluations)
    return [
        *who_is_protected(mode, unit),
        Statement(
            question="At what ε and δ",
            answer=f"ε ≤ {rounded_up(epsilon)} at δ = {delta:g} for the client that lost most, "
            f"after {rounds:,} charged rounds{on_top}; every flipped coin was charged, heads or "
            "tails",
        ),
        Statement(
            question="By which analysis",
            answer=f"{cost.title} (scheme {cost.name}): {ANALYSES[cost.name]}; rounds composed by "
            "privacy-loss distributions, rounded up",
        ),
        Statement(question="How tight", answer=tightness(cost, rounds, epsilon, delta)),
    ]


def tightness(cost: Analysis, rounds: int, epsilon: float, delta: float) -> str:
    """Return how far the truth may lie below the bound."""
    if not rounds:
        return "nothing was charged, so nothing was lost"
    if not cost.hides_coin:
        return "the worst data set loses as much, up to the rounding of a fraction of a per cent"
    least = realised_epsilon_after(cost.round, rounds, delta)
    return (
        f"some data set loses ε ≥ {rounded_down(least)}: "
        f"the worst case lies between that and {rounded_up(epsilon)}"
    )


def guessing_chance(total_variation: float, epsilon: float, delta: float) -> float:
    """Return a bound on how often an adversary guesses right whether a unit was in the data.

    It knows everything else and finds both cases equally likely beforehand. Its chance is
    (1 + TV)/2 with the total variation TV = δ(0); (ε, δ) alone gives (e^ε + δ)/(1 + e^ε).
    """
    by_pair = (1 + delta * math.exp(-epsilon)) / (1 + math.exp(-epsilon))
    return min(by_pair, (1 + total_variation) / 2, 1.0)


def detection_rate(false_alarms: float, epsilon: float, delta: float) -> float:
    """Return a bound on how many members are recognised at a rate of false alarms.

    An (ε, δ) pair in both directions bounds the test's power by e^ε·α + δ and by
    1 − e^(−ε)·(1 − δ − α).
    """
    upper = math.exp(min(epsilon, 700.0)) * false_alarms + delta
    other = 1 - math.exp(-epsilon) * (1 - delta - false_alarms)
    return min(1.0, upper, other)


def group_loss(units: int, epsilon: float, delta: float) -> tuple[float, float]:
    """Return (ε, δ) of several units together: k·ε and δ·(e^(kε) − 1)/(e^ε − 1)."""
    if epsilon == 0:
        return 0.0, min(1.0, units * delta)
    if units * epsilon > 700:
        return units * epsilon, 1.0
    return units * epsilon, min(1.0, delta * math.expm1(units * epsilon) / math.expm1(epsilon))
