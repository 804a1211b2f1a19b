"""Real federations on this machine: prepared, run in a thread of their own, watched and killed."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, Protocol

from coinflower.accounting.ledger.entries import Entry
from coinflower.accounting.ledger.ledger import Ledger
from coinflower.deploy.local.folder import Cluster
from coinflower.deploy.local.local_run import collect_results, run_cluster
from coinflower.deploy.local.nodes import NodeKind
from coinflower.deploy.local.plan import Plan
from coinflower.learning import SeededRandom, Update
from coinflower.protocol.modes import Mode
from coinflower.protocol.policy import load_policy
from coinflower.protocol.terms import Terms
from coinflower.server.journal import Journal, RoundReport, read_metrics
from tests.support.waiting import PATIENCE, wait_until

REPORT = RoundReport(
    round=1,
    available=3,
    participants=2,
    answered=1,
    dropped=1,
    expected_batch=70.0,
    seconds=0.5,
    received_bytes=1000,
)
"""A round that went as rounds do."""


def plan(**changes: Any) -> Plan:
    """Return a small trusted plan on digits."""
    fields: dict[str, Any] = {
        "clients": 3,
        "data": "digits",
        "how": "equal",
        "alpha": 0.5,
        "mode": Mode.TRUSTED,
        "p": 0.5,
        "q": 0.1,
        "clip_norm": 1.0,
        "sigma": 1.0,
        "epsilon": None,
        "delta": 1e-3,
        "rounds": 4,
        "rounds_per_invitation": 1,
        "model": None,
        "update": Update(learning_rate=0.5),
        "evaluate_every": 2,
    }
    return Plan(**{**fields, **changes})


def _environment(entry: Path) -> bytes:
    try:
        return (entry / "environ").read_bytes()
    except PermissionError:  # the program's own processes show it to root only
        return b""


def processes(folder: Path, name: str = "") -> list[int]:
    """Return the ids of live processes that were started for a cluster and bear a name."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            environment = _environment(entry)
            state = (entry / "stat").read_text().rsplit(")", 1)[1].split()[0]
        except OSError:
            continue
        if "guard.py" in command and name:
            continue  # bears the name of what it guards
        known = str(folder).encode() in environment or str(folder) in command
        if known and name in command and state != "Z":
            found.append(int(entry.name))
    return found


class Federation:
    """A cluster whose run goes on in the background."""

    def __init__(self, cluster: Cluster, kind: NodeKind = NodeKind.THREADS) -> None:
        self.cluster = cluster
        self._kind = kind
        self._stop = threading.Event()
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            run_cluster(self.cluster, kind=self._kind, stop=self._stop, progress=lambda *_: None)
        except Exception as error:
            self._error = error

    def await_round(self, round_: int) -> None:
        """Wait until the server has played a round."""

        def played() -> bool:
            metrics = read_metrics(self.cluster.server)
            return bool(metrics) and metrics[-1]["round"] >= round_

        try:
            wait_until(played, alive=self._thread.is_alive)
        except AssertionError as vain:
            raise AssertionError(f"round {round_} was not reached: {self._error}") from vain

    def kill(self, name: str) -> None:
        """Send SIGKILL to the cluster's processes of that name."""
        victims = processes(self.cluster.folder, name)
        assert victims, f"no process {name}"
        for victim in victims:
            os.kill(victim, signal.SIGKILL)

    def finish(self) -> Exception | None:
        """Wait for the end and return the error, if any."""
        self._thread.join(2 * PATIENCE)
        assert not self._thread.is_alive(), "the run did not end"
        return self._error

    def results(self) -> dict[str, Any]:
        return collect_results(self.cluster, time.monotonic())

    def close(self) -> None:
        self._stop.set()
        self._thread.join(PATIENCE)
        assert not processes(self.cluster.folder), "processes were left running"


def charges(history: Sequence[Entry]) -> dict[int, bool]:
    """Return the coins that a ledger was charged for, by round; no round is charged twice."""
    coins = [
        (entry.round, bool(entry.coin))
        for entry in history
        if entry.kind == "charge" and entry.round is not None
    ]
    assert len(coins) == len(dict(coins)), "charged twice"
    return dict(coins)


class HasLedgers(Protocol):
    """What has clients with ledgers, in order."""

    @property
    def policies(self) -> Sequence[Path]: ...

    @property
    def terms(self) -> Terms: ...

    def ledger(self, index: int) -> Path: ...


def check_ledgers(cluster: HasLedgers) -> dict[int, dict[int, bool]]:
    """Check every invariant that a ledger must keep, whatever happened; return the charges."""
    charged: dict[int, dict[int, bool]] = {}
    for index in range(len(cluster.policies)):
        with Ledger.open(cluster.ledger(index)) as ledger:
            ledger.verify()
            entries = list(ledger.history())
        coins = charges(entries)
        answers = [entry.round or 0 for entry in entries if entry.kind == "answer"]
        assert len(answers) == len(set(answers)), "a round was answered twice"
        assert set(answers) <= set(coins), "a round was answered uncharged"
        if not cluster.terms.mode.answers_always:
            assert all(coins[round_] for round_ in answers), "a client answered on tails"
        assert len(coins) <= cluster.terms.rounds
        charged[index] = coins
    return charged


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
            {"accuracy": 0.25 + 0.1 * round_, "macro_f1": 0.5},
        )
    return coins
