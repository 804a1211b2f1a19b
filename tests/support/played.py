"""Runs that have all the files of a real one, without its training: for what reads them."""

from __future__ import annotations

from collections.abc import Collection

from coinflower.accounting.ledger.ledger import Ledger
from coinflower.deploy.local.cluster import Cluster
from coinflower.learning import SeededRandom
from coinflower.protocol.policy import load_policy
from coinflower.server.journal import Journal
from coinflower.server.strategy import RoundReport


def play(cluster: Cluster, *, seeded: Collection[int] = ()) -> dict[int, list[bool]]:
    """Charge every round to every ledger and journal it, as a run would, without training."""
    terms = cluster.terms
    coins: dict[int, list[bool]] = {}
    for index, path in enumerate(cluster.policies):
        policy = load_policy(path)
        source = SeededRandom(index) if index in seeded else None
        with Ledger.open(cluster.ledger(index), coins=source) as ledger:
            cost = terms.round_cost(policy.declared_size)
            if cost is not None:
                ledger.reserve(terms.ledger_key, cost, terms.rounds, policy.budget)
                rounds = range(1, terms.rounds + 1)
                coins[index] = ledger.flip_all(terms.ledger_key, rounds)
            else:
                coins[index] = [True] * terms.rounds
    journal = Journal(cluster.server, insecure=cluster.insecure)
    for round_ in range(1, terms.rounds + 1):
        joined = [index for index in coins if coins[index][round_ - 1]]
        asked = list(coins) if terms.mode.answers_always else joined
        journal.round(
            RoundReport(
                round=round_,
                available=len(coins),
                participants=len(asked),
                answered=len(asked),
                dropped=0,
                expected_batch=7.5 * len(asked),
                seconds=0.1,
                received_bytes=10,
            ),
            0.25 + 0.1 * round_,
        )
    return coins
