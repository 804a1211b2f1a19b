"""A ledger's folder that is restored from a copy, over real processes: the client stops."""

import contextlib
import os
import shutil
import signal

from coinflower.accounting.ledger.ledger import Ledger
from coinflower.accounting.ledger.stops import read_stops
from coinflower.deploy.local.nodes import NodeKind
from coinflower.protocol.modes import Mode
from coinflower.protocol.policy import Refusal
from coinflower.server.journal import read_status
from tests.support.federations import processes
from tests.support.waiting import wait_until


def test_a_client_whose_ledger_was_restored_stops_and_flips_no_coin(federation, resumed):
    run = federation(clients=1, rounds=400, mode=Mode.TRUSTED, kind=NodeKind.PROCESSES)
    run.await_round(3)
    clients = run.cluster.ledger(0).parent
    with frozen(run.cluster.folder):
        shutil.copytree(clients, clients.with_name("snapshot"))
    run.await_round(8)
    run.close()
    shutil.rmtree(clients)
    shutil.copytree(clients.with_name("snapshot"), clients)
    restored = resumed(run, kind=NodeKind.PROCESSES)
    wait_until(
        lambda: Refusal.SET_BACK.value in read_status(run.cluster.server).get("refusals", "")
    )
    restored.close()
    log = (run.cluster.folder / "logs" / "client-0.log").read_text()
    assert "was set back: it lacks an entry that a server has seen" in log
    snapshot = clients.with_name("snapshot") / run.cluster.ledger(0).name
    assert entries_of(run.cluster.ledger(0)) == entries_of(snapshot)
    assert read_stops(run.cluster.ledger(0)).set_back_since is not None


@contextlib.contextmanager
def frozen(folder):
    """Stop the client where it is, as a snapshot of its machine would."""
    (client,) = processes(folder, "coinflower client")
    os.kill(client, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(client, signal.SIGCONT)


def entries_of(path):
    with Ledger.open(path, read_only=True) as ledger:
        return list(ledger.history())
