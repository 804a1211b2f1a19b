"""Mode masked in real processes: the notary is killed and comes back; no round is opened twice."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from coinflower.accounting.ledger.entries import EntryKind
from coinflower.accounting.ledger.ledger import Ledger
from coinflower.accounting.ledger.stops import read_stops
from coinflower.deploy.local.cluster import prepare
from coinflower.deploy.local.nodes import NodeKind
from coinflower.protocol.modes import Mode
from coinflower.server.journal import read_metrics
from tests.support.federations import check_ledgers, plan, processes

COINFLOWER = Path(sys.executable).parent / "coinflower"


def opened(cluster):
    """How many rounds the notary has opened, and the last of them."""
    record = cluster.notary.open_record(read_only=True)
    try:
        (found,) = record.opened()
        return found.rounds, found.last_round
    finally:
        record.close()


def address_of(process):
    words = Path(f"/proc/{process}/cmdline").read_bytes().decode().split("\0")
    return words[words.index("--superlink") + 1]


@pytest.fixture
def second_notary():
    """Return a function that starts the notary of a cluster once more."""
    started = []

    def start(cluster, address):
        command = [COINFLOWER, "notary", "run", "--folder", cluster.notary.path]
        with (cluster.folder / "second.log").open("wb") as log:
            started.append(
                subprocess.Popen(
                    [*command, "--superlink", address, "--insecure"], stdout=log, stderr=log
                )
            )

    yield start
    for process in started:
        process.terminate()
        process.wait()


def test_a_notary_that_was_killed_comes_back_and_opens_no_round_twice(federation, second_notary):
    run = federation(mode=Mode.MASKED, rounds=12, clients=3)
    run.await_round(3)
    victim = processes(run.cluster.folder, "notary run")[-1]
    address = address_of(victim)
    os.kill(victim, signal.SIGKILL)
    before, _ = opened(run.cluster)
    second_notary(run.cluster, address)
    assert run.finish() is None
    played = [row["round"] for row in read_metrics(run.cluster.server)]
    assert played == list(range(1, 13))
    rounds, last = opened(run.cluster)
    assert before < rounds <= 12
    assert last == 12
    charged = check_ledgers(run.cluster)
    assert [len(charges) for charges in charged.values()] == [12] * 3


def test_killed_in_mid_run_it_resumes_and_opens_no_round_twice(federation, resumed):
    run = federation(mode=Mode.MASKED, rounds=10, clients=3)
    run.await_round(4)
    run.kill("flwr-serverapp")
    assert run.finish() is not None
    before, _ = opened(run.cluster)
    run.close()
    again = resumed(run)
    assert again.finish() is None
    rounds, last = opened(again.cluster)
    assert (last, before <= rounds <= 10) == (10, True)
    check_ledgers(again.cluster)
    assert again.results()["notary"]["rounds_opened"] == rounds


def test_every_client_is_charged_and_answers_alike_whatever_its_coin(federation):
    run = federation(mode=Mode.MASKED, rounds=6, clients=4, kind=NodeKind.PROCESSES)
    assert run.finish() is None
    for index in range(4):
        with Ledger.open(run.cluster.ledger(index), read_only=True) as ledger:
            entries = list(ledger.history())
        kinds = [entry.kind for entry in entries]
        assert kinds == [EntryKind.RESERVE, *[EntryKind.FLIP, EntryKind.ANSWER] * 6]
    notary = run.results()["notary"]
    assert notary["rounds_opened"] == 6
    assert (notary["threshold"], notary["colluders"], notary["honest_shares"]) == (4, 1, 3)
    assert (notary["fewest_clients"], notary["witnesses"], notary["ring_bits"]) == (4, 4, 32)
    shown = json.loads(
        subprocess.run(
            [COINFLOWER, "notary", "show", "--folder", run.cluster.notary.path, "--json"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    )
    assert shown["owners"] == [f"client-{index}" for index in range(4)]
    assert shown["key"] == run.cluster.terms.notaries[0]
    assert [each["rounds"] for each in shown["experiments"]] == [6]


def test_a_ledger_that_was_set_back_is_noticed_by_the_notary_even_if_the_server_forgets(
    federation, resumed, tmp_path
):
    shape = {"clients": 4, "threshold": 3, "rounds": 8}
    cluster = prepare(plan(mode=Mode.MASKED, **shape), tmp_path / "run")
    ledger = cluster.ledger(0)
    empty = ledger.read_bytes()
    run = federation(cluster)
    run.await_round(3)
    run.kill("flwr-serverapp")
    assert run.finish() is not None
    run.close()
    ledger.write_bytes(empty)
    (cluster.server / "echoes.json").unlink()
    again = resumed(run)
    assert again.finish() is None
    charged = check_ledgers(again.cluster)
    assert charged[0] == {}
    assert all(len(charged[index]) >= 7 for index in (1, 2, 3))
    assert read_stops(ledger).set_back_since
    assert opened(again.cluster)[1] == 8
