"""What a ledger's ε means and what it does not, in plain sentences."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from coinflower.accounting.analyses.analysis import Analysis
from coinflower.accounting.analyses.client_unit import whole_client
from coinflower.accounting.composition.compose import Rounds, merged
from coinflower.accounting.ledger.entries import Budget
from coinflower.accounting.ledger.ledger import Ledger
from coinflower.accounting.ledger.prices import Prices
from coinflower.accounting.ledger.statement import Statement, Statements
from coinflower.accounting.ledger.stops import name_of
from coinflower.accounting.rounding import rounded_down, rounded_up
from coinflower.protocol.agreed import query_of, terms_of, unit_of
from coinflower.protocol.modes import PRIVATE_MODES, Mode
from coinflower.protocol.query import QueryKind
from coinflower.protocol.unit import Unit, protected_by
from coinflower.report.guarantee import (
    OTHER_USES,
    detection_rate,
    group_loss,
    guessing_chance,
)

GROUPS = (2, 5, 10)
"""How many records a person may have, or persons a family: the cases that are worked out."""
FALSE_ALARMS = 0.01
# Beyond this, "protected" would be a lie.
_WEAK_CHANCE = 0.95
_MOST_NAMES = 10
# So many different terms are added up for the client as a whole; each takes a fiftieth of a second.
_MOST_WHOLE = 200
# e^20 is half a billion: beyond, the client is as good as seen.
_PLAIN_TO_SEE = 20.0
_FOR_WHOM = {
    Unit.RECORD: "For whom: one record, not one person",
    Unit.PERSON: "For whom: one person",
}
_OTHERS = {Unit.RECORD: "every other record", Unit.PERSON: "the records of everybody else"}


@dataclass(frozen=True, kw_only=True)
class GroupLoss:
    """What several records, or persons, lose together."""

    count: int
    epsilon: float
    delta: float


@dataclass(frozen=True, kw_only=True)
class Explanation(Statement):
    """A ledger's figures at one δ, and what follows from them.

    Attributes:
        data_set: Name of the data set.
        guessing_chance: How often an adversary guesses right at most, one half being chance.
        detection_rate: How many members it finds at most among one per cent false alarms.
        groups: What several records, or persons, lose together.
        client_epsilon: What all records lose together, the client as a whole; None if there are so
            many different terms that it was not worked out.
    """

    data_set: str
    guessing_chance: float
    detection_rate: float
    groups: Sequence[GroupLoss]
    client_epsilon: float | None

    @property
    def units(self) -> set[Unit]:
        """What the charged experiments protect: one unit, or both."""
        return {unit_of(tally) for tally in self.tallies if tally.charged}

    @property
    def unit(self) -> Unit:
        """What the sum protects; a person with a single record if there are both."""
        return Unit.PERSON if Unit.PERSON in self.units else Unit.RECORD


def explain_ledger(ledger: Ledger, delta: float, budget: Budget | None = None) -> Explanation:
    """Work out what a ledger's entries mean at a δ."""
    statements = Statements(ledger.prices)
    stated = statements.statement(ledger.tallies(), delta, budget)
    charged = [(tally.terms, tally.charged) for tally in stated.tallies]
    return Explanation(
        **vars(stated),
        data_set=ledger.data_set,
        guessing_chance=guessing_chance(statements.total_variation(stated), stated.spent, delta),
        detection_rate=detection_rate(FALSE_ALARMS, stated.spent, delta),
        groups=[
            GroupLoss(count=count, epsilon=losses[0], delta=losses[1])
            for count in GROUPS
            for losses in [group_loss(count, stated.spent, delta)]
        ],
        client_epsilon=_client_epsilon(charged, delta),
    )


def _client_epsilon(charged: Rounds, delta: float) -> float | None:
    rounds = merged((whole_client(cost), count) for cost, count in charged)
    return Prices().after(rounds, delta) if len(rounds) <= _MOST_WHOLE else None


def sections(told: Explanation) -> dict[str, list[str]]:
    """Return the sentences, under the question that each answers."""
    if not told.rounds:
        nothing = (
            "No round was ever charged to this data set. Mode none charges nothing and protects "
            "nothing, so what was sent in it does not show here."
        )
        return {"What was spent": [nothing], "What is left": _left(told)}
    return {
        "What was spent": _spent(told),
        "What that means": _meaning(told),
        "Who is protected against whom": _against(told),
        _FOR_WHOM[told.unit]: _unit(told),
        "What it does not mean": [
            "It does not say that this much was lost: ε bounds the worst case, for the unluckiest "
            f"{told.unit} and the best adversary.",
            OTHER_USES,
            "It counts what this ledger charged. Training that bypassed the ledger, or entries "
            "lost with an older copy of the file, are not in it.",
        ],
        "What is left": _left(told),
    }


def _spent(told: Explanation) -> list[str]:
    experiments = sum(tally.charged > 0 for tally in told.tallies)
    sentences = [
        f"Data set {told.data_set!r} has spent ε ≤ {rounded_up(told.spent)} at "
        f"δ = {told.delta:g}: {told.rounds:,} {_plural('round', told.rounds)} of {experiments} "
        f"{_plural('experiment', experiments)}, all added up.",
        f"It took part in {told.took_part:,} of them; the others cost as much, since it is the "
        "secrecy of the coin that protects.",
    ]
    for kind in QueryKind:
        asked = [
            name_of(tally.experiment)
            for tally in told.tallies
            if tally.charged and query_of(tally) is kind
        ]
        if asked:
            sentences.append(f"Not all of it was training: {_listed(asked)} {kind.told}.")
    if not told.secure:
        sentences.insert(
            0,
            "INSECURE: coins or noise of at least one experiment were seeded; for those rounds "
            "none of what follows holds.",
        )
    return sentences


def _meaning(told: Explanation) -> list[str]:
    chance = told.guessing_chance
    sentences = [
        f"Suppose that somebody knows {_OTHERS[told.unit]} and every message that the guarantee "
        f"covers, and finds it as likely as not that a certain {told.unit}"
        f"{' with a single record' * (len(told.units) > 1)} was among the data. They then guess "
        f"right in at most {_percent(chance)} of cases; blind guessing is right in 50 %.",
        f"If they accept {_percent(FALSE_ALARMS)} false alarms, they recognise at most "
        f"{_percent(told.detection_rate)} of the {told.unit}s that are in the data.",
    ]
    if told.spent < 20:
        sentences.append(
            "No conclusion that anybody draws becomes more than "
            f"e^ε = {rounded_up(math.exp(told.spent))} times as likely because one {told.unit} "
            f"was there, apart from exceptions of probability δ = {told.delta:g}."
        )
    if chance > _WEAK_CHANCE:
        sentences.append(
            "That is hardly any protection: an adversary that strong would be almost certain."
        )
    return sentences


def _against(told: Explanation) -> list[str]:
    """Say it of each mode; where a ledger does not name the mode, of all that it may have been."""
    found: dict[tuple[Mode | None, type[Analysis]], list[str]] = {}
    for tally in told.tallies:
        if tally.charged:
            terms = terms_of(tally)
            key = (None if terms is None else terms.mode, type(tally.terms))
            found.setdefault(key, []).append(name_of(tally.experiment))
    sentences, possible = [], set[Mode]()
    for (mode, scheme), names in found.items():
        modes = [each for each in PRIVATE_MODES if mode in (None, each) and each.scheme is scheme]
        possible.update(modes)
        charged = f"charged as {scheme.name} ({scheme.title})"
        if mode is not None:
            holds = f"mode {mode}, {charged}. It holds against {mode.facts.against}"
        else:
            cases = (f"In mode {each} it holds against {each.facts.against}" for each in modes)
            holds = f"{charged}; this ledger does not name the mode. {'. '.join(cases)}"
        sentences.append(f"{_listed(names)}: {holds}.")
    caveats = [
        mode.facts.caveat for mode in PRIVATE_MODES if mode in possible and mode.facts.caveat
    ]
    return [*sentences, *caveats]


def _listed(names: Sequence[str]) -> str:
    """Return different names, or how many more there are."""
    different = list(dict.fromkeys(names))
    shown, others = different[:_MOST_NAMES], len(different) - _MOST_NAMES
    return ", ".join(shown) + (f" and {others:,} more" if others > 0 else "")


def _unit(told: Explanation) -> list[str]:
    cases = "; ".join(
        f"{group.count} {told.unit}s: ε ≤ {rounded_up(group.epsilon)} at δ = "
        f"{rounded_up(group.delta, 2)}"
        if group.delta < 1
        else f"{group.count} {told.unit}s: no bound at this δ"
        for group in told.groups
    )
    return [
        f"All figures are for {protected_by(told.units)}, added or removed.",
        *_protected_less(told),
        f"{cases[0].upper()}{cases[1:]}.",
        _whole(told),
    ]


def _protected_less(told: Explanation) -> list[str]:
    if told.unit is Unit.RECORD:
        return [
            "A patient with several records is protected less: k of them lose up to k·ε together, "
            "and δ grows faster still."
        ]
    names = [
        name_of(tally.experiment)
        for tally in told.tallies
        if tally.charged and unit_of(tally) is Unit.RECORD
    ]
    several = (
        f"A person with k records loses up to k times as much in those that protect records: "
        f"{_listed(names)}."
    )
    return [*[several] * bool(names), Unit.PERSON.facts.caveat]


def _whole(told: Explanation) -> str:
    epsilon = told.client_epsilon
    if epsilon is None:
        return (
            "What the client as a whole loses, all its records at once, is not known: this ledger "
            f"holds more than {_MOST_WHOLE} different terms."
        )
    if not epsilon < _PLAIN_TO_SEE:
        return (
            "The client as a whole is not protected: whether all its records were there at once is "
            f"plain to see (ε ≤ {rounded_up(epsilon)} at δ = {told.delta:g}). A cap on its sum, or "
            "a smaller one, would hide more."
        )
    return (
        "And for the client as a whole, all its records at once: "
        f"ε ≤ {rounded_up(epsilon)} at δ = {told.delta:g}."
    )


def _left(told: Explanation) -> list[str]:
    sentences = []
    if told.reserved_epsilon > told.spent:
        sentences.append(
            f"Experiments now enrolled may bring it to ε ≤ {rounded_up(told.reserved_epsilon)}: "
            "rounds reserved and not yet charged."
        )
    if told.budget is None:
        sentences.append("The budget is in the owner's policy; name it with --policy.")
    elif told.left is not None and told.left > 0:
        sentences.append(
            f"Of the budget ε = {told.budget.epsilon:g} at δ = {told.budget.delta:g}, "
            f"ε = {rounded_down(told.left)} is neither spent nor reserved. When it is used up, "
            "the client refuses every further round."
        )
    else:
        sentences.append(
            f"The budget ε = {told.budget.epsilon:g} at δ = {told.budget.delta:g} is used up: the "
            "client refuses every new experiment."
        )
    return sentences


def _percent(share: float) -> str:
    """Return a share in per cent, rounded up."""
    return f"{min(100.0, math.ceil(share * 1000 - 1e-9) / 10):g} %"


def _plural(word: str, count: int) -> str:
    return word + "s" * (count != 1)
