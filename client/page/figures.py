"""The figures of the page: a ledger's statement, its experiments, its history, what comes next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from coinflower.accounting.ledger.entries import Budget
from coinflower.accounting.ledger.statement import Outlook, Point, Statement
from coinflower.client.page.ledger_snapshot import LedgerSnapshot


@dataclass(frozen=True, kw_only=True)
class Figures(Statement):
    """All figures of the page, at one δ.

    Attributes:
        by_experiment: ε of each experiment's charged rounds on their own; None for old ones of very
            many.
        outlook: What comes next; None in an empty ledger.
        curve: ε over charged rounds, from none to all; empty for very many experiments.
    """

    by_experiment: Mapping[str, float | None]
    outlook: Outlook | None
    curve: Sequence[Point]


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
    statements = snapshot.statements
    stated = statements.statement(snapshot.accounts, delta, budget)
    known = {account.experiment: account for account in snapshot.accounts}
    ahead = known.get(current or "") or (snapshot.accounts[-1] if snapshot.accounts else None)
    return Figures(
        **vars(stated),
        by_experiment=statements.alone(snapshot.accounts[::-1], delta),
        outlook=None if ahead is None else statements.outlook(stated, ahead),
        curve=statements.curve(stated, snapshot.charges),
    )
