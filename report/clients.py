"""What the report says of each client of a local run: ε over rounds, and against its budget."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from coinflower.accounting.analyses.analysis import Analysis
from coinflower.accounting.charts import Axis, Line, line_chart
from coinflower.accounting.ledger.entries import EntryKind
from coinflower.accounting.ledger.ledger import Ledger
from coinflower.accounting.ledger.statement import Statement
from coinflower.accounting.rounding import rounded_down, rounded_up
from coinflower.deploy.local.folder import Cluster
from coinflower.protocol.policy import load_policy
from coinflower.protocol.unit import Unit
from coinflower.report.page import ClientLine, Figure, epsilon_points

# More curves would be a smear, and each takes half a second; all clients are listed all the same.
_MOST_CURVES = 12


@dataclass(frozen=True, kw_only=True)
class ClientRecord:
    """One client of a local run, read from its own files.

    Attributes:
        name: Its name.
        size: Declared size.
        coins: Its coins by round, of every round of training charged.
        charged_at: The round of training of every charge, evaluations included.
        experiments: The experiment of each of these.
        stated: What its ledger adds up to.
        cost: What a round costs; None without privacy.
        epsilon: What its ledger says was spent; None without privacy.
        budget: What its policy allows.
        secure: Whether nothing of it was seeded.
    """

    name: str
    size: int
    coins: dict[int, bool]
    charged_at: Sequence[int]
    experiments: Sequence[str]
    stated: Statement
    cost: Analysis | None
    epsilon: float | None
    budget: float
    secure: bool

    def share(self, epsilon: float) -> float:
        """Return ε as a share of the budget; where there is none, any ε is too much."""
        return epsilon / self.budget if self.budget else float(epsilon > 0)


def read_client(cluster: Cluster, index: int) -> ClientRecord:
    """Read policy and ledger of a client that lives on this machine."""
    policy, key = load_policy(cluster.policy(index)), cluster.terms.ledger_key
    with Ledger.open(cluster.ledger(index), read_only=True) as ledger:
        charges = [entry for entry in ledger.history() if entry.kind == EntryKind.FLIP]
        stated = ledger.statement(cluster.delta)
        trained = {entry.seq: entry.round for entry in charges if entry.experiment == key}
        private = cluster.terms.mode.is_private
        return ClientRecord(
            name=f"client-{index}",
            size=policy.declared_size,
            coins={
                entry.round: bool(entry.coin)
                for entry in charges
                if entry.seq in trained and entry.round is not None
            },
            charged_at=list(
                itertools.accumulate((trained.get(entry.seq) or 0 for entry in charges), max)
            ),
            experiments=[entry.experiment for entry in charges],
            stated=stated,
            cost=cluster.terms.round_cost(policy.declared_size),
            epsilon=stated.spent if private else None,
            budget=policy.budget.epsilon,
            secure=stated.secure and policy.insecure_seed is None,
        )


def epsilon_figure(clients: Sequence[ClientRecord], delta: float) -> Figure:
    """Draw clients' ε: against the budget if they share one, else as shares of their own."""
    title = "Each client’s ε over rounds"
    ranked = sorted(clients, key=lambda client: client.epsilon or 0.0)
    shown = _evenly(ranked, _MOST_CURVES)
    budgets = {client.budget for client in clients}
    common = budgets.pop() if len(budgets) == 1 else None
    lines = []
    for client in shown:
        points = epsilon_points(client.stated, client.charged_at, client.experiments)
        if common is None:
            points = [(at, client.share(value)) for at, value in points]
        kind = "main" if client is ranked[-1] else "faint"
        lines.append(Line(name=client.name, points=points, kind=kind))
    end = max((at for line in lines for at, _ in line.points), default=1.0)
    limit = 1.0 if common is None else common
    lines.insert(0, Line(name="budget", points=[(0.0, limit), (end, limit)], kind="limit"))
    caption = (
        f"At δ = {delta:g}, from the ledgers. Blue: {ranked[-1].name}, which lost most; "
        f"dashed: {'each client’s own budget' if common is None else f'the budget ε = {common:g}'}."
    )
    if len(shown) < len(clients):
        caption += (
            f" {len(shown)} of {len(clients)} clients are drawn, from the least ε to the "
            "largest; all are listed below."
        )
    label = "ε" if common is not None else "ε / budget"
    svg = line_chart(title, lines, x=Axis(label="round", whole=True), y=Axis(label=label))
    return Figure(name="epsilon", title=title, svg=svg, caption=caption)


def _evenly(ranked: Sequence[ClientRecord], most: int) -> Sequence[ClientRecord]:
    """Return at most so many of them, first and last included."""
    if len(ranked) <= most:
        return ranked
    return [ranked[round(index * (len(ranked) - 1) / (most - 1))] for index in range(most)]


def client_line(client: ClientRecord, unit: Unit) -> ClientLine:
    """Return what the page says of a client."""
    assert client.epsilon is not None
    return ClientLine(
        name=client.name,
        size=f"{client.size:,} {unit}s",
        epsilon=rounded_up(client.epsilon),
        budget=rounded_down(client.budget),
        share=client.share(client.epsilon),
        charged=len(client.coins),
        took_part=sum(client.coins.values()),
    )
