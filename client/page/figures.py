"""The figures of the page: what was spent, what is committed, what is left, what comes next.

Every ε is an upper bound.
"""

from __future__ import annotations

import itertools
import math
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from coinflower.accounting.analyses.schemes import Scheme
from coinflower.accounting.composition.compose import epsilon_after
from coinflower.accounting.ledger.entries import Budget
from coinflower.client.page.ledger_snapshot import Account, LedgerSnapshot

_MOST_POINTS = 24
MOST_ROUNDS = 1_000_000

Rounds = list[tuple[Scheme, int]]

# Two visitors at once would work out the same figures twice.
_working = threading.Lock()


@dataclass(frozen=True, kw_only=True)
class Point:
    """ε after so many charged rounds, and the experiment of the last of them."""

    rounds: int
    epsilon: float
    experiment: str


@dataclass(frozen=True, kw_only=True)
class Outlook:
    """What comes next at the terms of one experiment.

    Attributes:
        account: The experiment.
        next_round: By how much one more charged round raises what was spent.
        committed_rounds: Rounds that are committed and not charged yet.
        affordable_rounds: How many more the budget allows beside all that others committed; None
            without a budget, at most a million.
    """

    account: Account
    next_round: float
    committed_rounds: int
    affordable_rounds: int | None


@dataclass(frozen=True, kw_only=True)
class Figures:
    """All figures of the page, at one δ.

    Attributes:
        delta: The δ of every ε.
        budget: What the owner allows in all; None if it is not known.
        spent: ε of all charged rounds.
        committed: ε of all charged and committed rounds.
        by_experiment: ε of each experiment's charged rounds on their own.
        outlook: What comes next; None in an empty ledger.
        curve: ε over charged rounds, from none to all.
    """

    delta: float
    budget: Budget | None
    spent: float
    committed: float
    by_experiment: dict[str, float]
    outlook: Outlook | None
    curve: Sequence[Point]

    @property
    def committed_on_top(self) -> float:
        """What the committed rounds add to what was spent."""
        return max(0.0, self.committed - self.spent) if math.isfinite(self.spent) else 0.0

    @property
    def left(self) -> float | None:
        """What nobody has spent or committed; below 0 if the budget was lowered since."""
        return None if self.budget is None else self.budget.epsilon - self.committed


def work_out(
    snapshot: LedgerSnapshot,
    *,
    delta: float,
    budget: Budget | None = None,
    current: str | None = None,
) -> Figures:
    """Return the figures of a ledger; what was worked out before costs nothing.

    Args:
        snapshot: The ledger.
        delta: The δ at which to state every ε.
        budget: What the owner allows.
        current: The experiment to look ahead for; the one that was touched last if left out.
    """
    with _working:
        return _work_out(snapshot, delta, budget, current)


def _work_out(
    snapshot: LedgerSnapshot, delta: float, budget: Budget | None, current: str | None
) -> Figures:
    known = {account.experiment: account for account in snapshot.accounts}
    ahead = known.get(current or "") or (snapshot.accounts[-1] if snapshot.accounts else None)
    charged = {account.experiment: account.charged for account in snapshot.accounts}
    committed = {account.experiment: account.committed for account in snapshot.accounts}
    spent = epsilon_after(_rounds(snapshot, charged), delta)
    return Figures(
        delta=delta,
        budget=budget,
        spent=spent,
        committed=epsilon_after(_rounds(snapshot, committed), delta),
        by_experiment={
            account.experiment: epsilon_after([(account.terms, account.charged)], delta)
            for account in snapshot.accounts
        },
        outlook=None if ahead is None else _outlook(snapshot, ahead, spent, delta, budget),
        curve=_curve(snapshot, delta),
    )


def _rounds(snapshot: LedgerSnapshot, counts: Mapping[str, int]) -> Rounds:
    """Return the rounds of all experiments, so many of each."""
    return [(account.terms, counts.get(account.experiment, 0)) for account in snapshot.accounts]


def _outlook(
    snapshot: LedgerSnapshot, account: Account, spent: float, delta: float, budget: Budget | None
) -> Outlook:
    charged = {other.experiment: other.charged for other in snapshot.accounts}
    charged[account.experiment] += 1
    raised = epsilon_after(_rounds(snapshot, charged), delta)
    affordable = None
    if budget is not None:
        affordable = max(0, _affordable(snapshot, account, budget) - account.charged)
    return Outlook(
        account=account,
        next_round=max(0.0, raised - spent) if math.isfinite(raised) else raised,
        committed_rounds=account.committed - account.charged,
        affordable_rounds=affordable,
    )


def _affordable(snapshot: LedgerSnapshot, account: Account, budget: Budget) -> int:
    """Return how many rounds of an experiment fit beside what the others committed.

    Does not depend on how many of them are charged, so it is worked out once a commitment.
    """
    counts = {other.experiment: other.committed for other in snapshot.accounts}

    def fits(rounds: int) -> bool:
        rounds_ = _rounds(snapshot, {**counts, account.experiment: rounds})
        return epsilon_after(rounds_, budget.delta) <= budget.epsilon

    if budget.epsilon == 0:
        return 0
    low, high = 0, max(1, account.committed)  # most experiments commit about what fits
    while fits(high):
        if high == MOST_ROUNDS:
            return high
        low, high = high, min(2 * high, MOST_ROUNDS)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _curve(snapshot: LedgerSnapshot, delta: float) -> list[Point]:
    """Return a few dozen points at most.

    They stand at multiples of a power of two, so that a growing ledger reuses those it has; at the
    first round, which costs most; and where the experiment changes, unless that is often.
    """
    total = len(snapshot.charges)
    stride = 1
    while total > stride * _MOST_POINTS:
        stride *= 2
    charges = enumerate(itertools.pairwise(snapshot.charges), start=1)
    changes = {index for index, (experiment, following) in charges if experiment != following}
    wanted = {1, total, *(changes if len(changes) <= _MOST_POINTS else ())}
    points = [Point(rounds=0, epsilon=0.0, experiment="")]
    counts: Counter[str] = Counter()
    for index, experiment in enumerate(snapshot.charges, start=1):
        counts[experiment] += 1
        if index % stride == 0 or index in wanted:
            epsilon = epsilon_after(_rounds(snapshot, counts), delta)
            points.append(Point(rounds=index, epsilon=epsilon, experiment=experiment))
    return points
