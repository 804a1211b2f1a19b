"""What a ledger adds up to: spent, reserved, left; one experiment alone; over time; and what fits.

Everything goes through the ledger's own prices, so it is the same figure wherever it is shown, and
what was added up before is not added up again.
"""

from __future__ import annotations

import itertools
import math
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from coinflower.accounting.analyses.analysis import Analysis
from coinflower.accounting.composition.compose import epsilon_after, merged
from coinflower.accounting.ledger.entries import Budget, Tally
from coinflower.accounting.ledger.prices import Prices

MOST_ROUNDS = 1_000_000
"""A search for rounds that fit ends here."""
_MOST_POINTS = 24
# So many experiments are priced on their own, the latest; each takes a hundredth of a second.
_MOST_ALONE = 100
# So many different terms are drawn over time; each takes about as long.
_MOST_DRAWN = 100


@dataclass(frozen=True, kw_only=True)
class Statement:
    """What a ledger's experiments add up to.

    Attributes:
        tallies: All its experiments.
        delta: The δ of every ε.
        budget: What the owner allows in all; None if it is not known.
        spent: ε of all charged rounds.
        reserved_epsilon: ε of all charged and reserved rounds.
    """

    tallies: Sequence[Tally]
    delta: float
    budget: Budget | None
    spent: float
    reserved_epsilon: float

    @property
    def rounds(self) -> int:
        """Rounds charged, over all experiments."""
        return sum(tally.charged for tally in self.tallies)

    @property
    def took_part(self) -> int:
        """Rounds whose coin said yes."""
        return sum(tally.took_part for tally in self.tallies)

    @property
    def secure(self) -> bool:
        """Whether neither coins nor noise were seeded."""
        return all(tally.secure for tally in self.tallies)

    @property
    def reserved_on_top(self) -> float:
        """What the reserved rounds add to what was spent."""
        return max(0.0, self.reserved_epsilon - self.spent) if math.isfinite(self.spent) else 0.0

    @property
    def left(self) -> float | None:
        """What is neither spent nor reserved; below 0 if the budget was lowered since."""
        return None if self.budget is None else self.budget.epsilon - self.reserved_epsilon


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
        tally: The experiment.
        next_round: By how much one more charged round raises what was spent.
        affordable_rounds: How many more the budget allows beside all that others reserved; None
            without a budget, at most a million.
    """

    tally: Tally
    next_round: float
    affordable_rounds: int | None


class Statements:
    """Answers questions about one ledger, however often they are asked.

    Args:
        prices: The ledger's.
    """

    def __init__(self, prices: Prices) -> None:
        self._prices = prices
        self._earlier = Prices()  # what is folded of an earlier state is of no use to the present
        self._known: dict[tuple[frozenset[tuple[Analysis, int]], float], float] = {}
        self._lock = threading.Lock()  # two visitors at once would work out the same

    def statement(
        self, tallies: Sequence[Tally], delta: float, budget: Budget | None = None
    ) -> Statement:
        """Return what all experiments add up to."""
        # In the order of the ledger's own sums, so that ε is the same number.
        tallies = sorted(tallies, key=lambda tally: tally.experiment)
        with self._lock:
            return Statement(
                tallies=tallies,
                delta=delta,
                budget=budget,
                spent=self._prices.spent(tallies, delta),
                reserved_epsilon=self._prices.reserved_epsilon(tallies, delta),
            )

    def total_variation(self, stated: Statement) -> float:
        """Return δ at ε = 0 of all charged rounds."""
        with self._lock:
            return self._prices.total_variation(stated.tallies, stated.delta)

    def alone(self, latest_first: Sequence[Tally], delta: float) -> dict[str, float | None]:
        """Return ε of each experiment's charged rounds on their own.

        Of very many experiments only the latest are worked out; None for the others.
        """
        found: dict[str, float | None] = {}
        with self._lock:
            for index, tally in enumerate(latest_first):
                rounds = [(tally.terms, tally.charged)]
                key = frozenset(rounds), delta
                if key not in self._known and index < _MOST_ALONE:
                    self._known[key] = epsilon_after(rounds, delta)
                found[tally.experiment] = self._known.get(key)
        return found

    def outlook(self, stated: Statement, tally: Tally) -> Outlook:
        """Return what comes next for one of a statement's experiments."""
        with self._lock:
            raised = self._prices.spent(
                [
                    replace(each, charged=each.charged + 1)
                    if each.experiment == tally.experiment
                    else each
                    for each in stated.tallies
                ],
                stated.delta,
            )
            affordable = None if stated.budget is None else self._affordable(stated, tally)
        more = max(0.0, raised - stated.spent) if math.isfinite(raised) else raised
        return Outlook(tally=tally, next_round=more, affordable_rounds=affordable)

    def _affordable(self, stated: Statement, tally: Tally) -> int:
        budget = stated.budget
        assert budget is not None
        if not self._prices.reserved_epsilon(stated.tallies, budget.delta) <= budget.epsilon:
            return 0

        def fits(more: int) -> bool:
            return not self._prices.would_exceed(stated.tallies, tally.terms, more, budget)

        low, high = 0, max(1, tally.reserved_rounds)
        most = max(high, MOST_ROUNDS - tally.reserved_rounds)
        while fits(high):
            if high == most:
                return tally.remaining_rounds + high
            low, high = high, min(2 * high, most)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if fits(middle) else (low, middle)
        return tally.remaining_rounds + low

    def curve(
        self, stated: Statement, charges: Sequence[str], *, most_points: int = _MOST_POINTS
    ) -> list[Point]:
        """Return ε over charged rounds by a few dozen points, from none to all.

        They stand at multiples of a power of two, so that a growing ledger reuses those it has; at
        the first round, which costs most; and where the experiment changes, unless that is often.
        Nothing is returned for a ledger with very many different terms.

        Args:
            stated: The ledger's statement.
            charges: The experiment of every charged round, oldest first.
            most_points: How many points there are, about.
        """
        terms = {tally.experiment: tally.terms for tally in stated.tallies}
        if len(set(terms.values())) > _MOST_DRAWN:
            return []
        wanted = _drawn(charges, most_points)
        points = [Point(rounds=0, epsilon=0.0, experiment="")]
        counts: Counter[str] = Counter()
        with self._lock:
            for index, experiment in enumerate(charges, start=1):
                counts[experiment] += 1
                if index in wanted:
                    epsilon = self._after(terms, counts, stated.delta)
                    # Folding rounds up; the ledger's own figure is the better bound.
                    epsilon = stated.spent if index == len(charges) else min(epsilon, stated.spent)
                    points.append(Point(rounds=index, epsilon=epsilon, experiment=experiment))
        return points

    def _after(
        self, terms: Mapping[str, Analysis], counts: Mapping[str, int], delta: float
    ) -> float:
        rounds = merged((terms[name], counts[name]) for name in sorted(counts))
        key = frozenset(rounds), delta
        if key not in self._known:
            self._known[key] = self._earlier.after(rounds, delta)
        return self._known[key]


def _drawn(charges: Sequence[str], most_points: int) -> set[int]:
    """Return after which charges a point is drawn."""
    total = len(charges)
    stride = 1
    while total > stride * most_points:
        stride *= 2
    pairs = enumerate(itertools.pairwise(charges), start=1)
    changes = {index for index, (experiment, following) in pairs if experiment != following}
    often = len(changes) > most_points
    return {1, total, *range(stride, total + 1, stride), *(() if often else changes)}
