"""The checker of the soak accepts a federation in order and finds each thing that is not."""

import json
import sqlite3
from dataclasses import replace

import numpy as np
import pytest

from coinflower.accounting.ledger.entries import Budget
from coinflower.accounting.ledger.ledger import Ledger
from coinflower.deploy.local.cluster import prepare
from coinflower.protocol.modes import Mode
from coinflower.server.checkpoint import Checkpoint, CheckpointFolder
from coinflower.server.journal import METRICS, read_metrics
from tests.soak.invariants import (
    ANSWER,
    BACKED,
    BUDGET,
    COIN,
    COUNTED,
    FINITE,
    FORWARD,
    LEDGER,
    LEFT,
    ONCE,
    TAILS,
    THRESHOLD,
    Book,
    Protocol,
    check,
    check_openings,
    read_entries,
)
from tests.soak.witness import ASKED, COINS, SAID, SUM
from tests.soak.world import WITNESS
from tests.support.builders import make_terms
from tests.support.federations import plan

ROUNDS = (1, 2, 3)


@pytest.fixture
def cluster(tmp_path):
    """Return a federation of two clients that played three rounds, with every file in order."""
    made = prepare(plan(clients=2, rounds=5), tmp_path / "run")
    key, lines, heads = made.terms.ledger_key, [], dict.fromkeys(ROUNDS, 0)
    for index, policy in enumerate(made.policies):
        with Ledger.open(made.ledger(index)) as ledger:
            cost = made.terms.round_cost(1000)
            ledger.reserve(key, cost, 5, Budget(epsilon=1e6, delta=1e-3))
            coins = dict(zip(ROUNDS, ledger.flip_all(key, ROUNDS), strict=True))
            for round_, coin in coins.items():
                lines += told(policy.stem, key, COINS, round_, coins=[coin])
                if coin:
                    ledger.claim_answer(key, round_)
                    lines += told(policy.stem, key, SUM, round_)
                    heads[round_] += 1
    write_lines(made.folder / WITNESS, lines)
    made.server.mkdir()
    rows = [
        {"round": round_, "available": 2, "participants": count, "answered": count}
        for round_, count in heads.items()
    ]
    write_lines(made.server / METRICS, rows)
    checkpoints = CheckpointFolder(made.server, made.terms.hash)
    checkpoints.use_rounds_through(3)
    save(made, np.zeros(4, "f4"))
    return made


def told(client, experiment, what, round_, coins=None):
    line = {"client": client, "experiment": experiment, "what": what, "rounds": [round_]}
    return [{**line, "event": ASKED}, {**line, "event": SAID, "coins": coins}]


def write_lines(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def save(cluster, weights, round_=3):
    checkpoint = Checkpoint(weights=weights, memory={"steps": np.array([round_])}, round=round_)
    CheckpointFolder(cluster.server, cluster.terms.hash).save(checkpoint)


def violated(cluster):
    found = check(cluster, [cluster.settings]).invariants()
    return {one.name for one in found if one.violations}


def entries_of(cluster):
    with Ledger.open(cluster.ledger(0)) as ledger:
        return list(ledger.history())


def violated_by(entries):
    protocol = Protocol()
    read_entries(protocol, "client-0.db", entries, {entries[0].experiment})
    return {one.name for one in protocol.invariants() if one.violations}


def charge_of(entries, round_, **changes):
    (entry,) = [entry for entry in entries if (entry.kind, entry.round) == ("charge", round_)]
    return replace(entry, **changes)


def lines_of(cluster):
    return [json.loads(line) for line in (cluster.folder / WITNESS).read_text().splitlines()]


def test_a_federation_in_order_violates_nothing_and_is_checked_in_every_respect(cluster):
    found = check(cluster, [cluster.settings]).invariants()
    assert not any(one.violations for one in found)
    always = {LEDGER, BUDGET, COIN, LEFT, ONCE, COUNTED, FORWARD, FINITE}
    assert always <= {one.name for one in found if one.checks}


def test_a_round_that_was_charged_twice_is_found(cluster):
    entries = entries_of(cluster)
    assert violated_by(entries) == set()
    assert violated_by([*entries, charge_of(entries, 2)]) == {COIN}


def test_a_charge_without_a_coin_is_found(cluster):
    entries = entries_of(cluster)
    assert violated_by([*entries, charge_of(entries, 2, round=4, coin=None)]) == {COIN}


def test_an_answer_that_was_given_twice_is_found(cluster):
    entries = entries_of(cluster)
    heads = charge_of(entries, 2, round=4, coin=True)
    answer = replace(heads, kind="answer", coin=None)
    assert violated_by([*entries, heads, answer]) == set()
    assert violated_by([*entries, heads, answer, answer]) == {ANSWER}


def test_an_answer_on_tails_is_found(cluster):
    entries = entries_of(cluster)
    tails = charge_of(entries, 2, round=4, coin=False)
    assert violated_by([*entries, tails, replace(tails, kind="answer", coin=None)]) == {TAILS}


def test_an_answer_to_a_round_that_was_never_charged_is_found(cluster):
    entries = entries_of(cluster)
    assert ANSWER in violated_by([*entries, charge_of(entries, 2, round=4, kind="answer")])


def test_coins_that_left_without_a_charge_are_found(cluster):
    extra = told("client-0", cluster.terms.ledger_key, COINS, 4, coins=[False])
    write_lines(cluster.folder / WITNESS, [*lines_of(cluster), *extra])
    assert violated(cluster) == {LEFT}


def test_a_coin_that_is_not_the_recorded_one_is_found(cluster):
    lines = lines_of(cluster)
    for line in lines:
        if line["event"] == SAID and line["what"] == COINS:
            line["coins"] = [not line["coins"][0]]
    write_lines(cluster.folder / WITNESS, lines)
    assert violated(cluster) == {LEFT}


def test_a_sum_that_left_without_a_claim_is_found(cluster):
    with Ledger.open(cluster.ledger(0)) as ledger:
        ledger.flip(cluster.terms.ledger_key, 4)
    extra = told("client-0", cluster.terms.ledger_key, SUM, 4)
    write_lines(cluster.folder / WITNESS, [*lines_of(cluster), *extra])
    assert violated(cluster) == {LEFT}


def test_a_round_that_a_client_was_asked_for_twice_is_found(cluster):
    lines = lines_of(cluster)
    write_lines(cluster.folder / WITNESS, [*lines, lines[0]])
    assert violated(cluster) == {ONCE}


@pytest.mark.parametrize("what", ["available", "participants", "answered"])
def test_a_client_that_the_server_counted_and_that_never_charged_is_found(cluster, what):
    rows = read_metrics(cluster.server)
    rows[1][what] = 3
    write_lines(cluster.server / METRICS, rows)
    assert violated(cluster) == {COUNTED}


def test_a_budget_that_was_exceeded_is_found(cluster):
    policy = cluster.policies[1]
    epsilon = [line for line in policy.read_text().splitlines() if line.startswith("epsilon")]
    policy.write_text(policy.read_text().replace(epsilon[0], "epsilon = 0.01"))
    assert violated(cluster) == {BUDGET}


def test_a_ledger_that_was_tampered_with_is_found(cluster):
    with sqlite3.connect(cluster.ledger(0)) as connection:
        connection.execute("UPDATE tallies SET charged = 1")
    connection.close()
    assert LEDGER in violated(cluster)


def test_a_round_that_was_played_again_is_found(cluster):
    rows = read_metrics(cluster.server)
    write_lines(cluster.server / METRICS, [*rows, rows[1]])
    assert violated(cluster) == {FORWARD}


def test_a_round_that_the_checkpoint_forgot_is_found(cluster):
    save(cluster, np.zeros(4, "f4"), round_=2)
    assert violated(cluster) == {FORWARD}


def test_a_model_that_is_not_finite_is_found(cluster):
    save(cluster, np.full(4, np.nan, "f4"))
    assert violated(cluster) == {FINITE}


@pytest.mark.parametrize(
    ("owners", "found"), [(3, set()), (2, {THRESHOLD}), (4, {BACKED}), (0, {THRESHOLD})]
)
def test_a_sum_that_should_not_have_been_opened_is_found(owners, found):
    terms = make_terms(Mode.MASKED, threshold=3, colluders=1)
    key = (terms.ledger_key, 5)
    answered = Book(coins={key: True}, answers=frozenset({key}))
    silent = Book(coins={key: False}, answers=frozenset())
    protocol = Protocol()
    check_openings(protocol, terms, {5: owners}, [answered] * 3 + [silent])
    assert {one.name for one in protocol.invariants() if one.violations} == found
