"""Federations whose parts are killed in mid-run, or told to stop."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from coinflower.accounting.ledger.ledger import Ledger
from coinflower.deploy.local.nodes import NodeKind
from coinflower.protocol.modes import Mode
from coinflower.server.journal import read_metrics
from tests.support.federations import check_ledgers, processes
from tests.support.waiting import PATIENCE, wait_until

COINFLOWER = Path(sys.executable).parent / "coinflower"


@pytest.mark.parametrize("mode", [Mode.TRUSTED, Mode.UNTRUSTED])
def test_a_killed_client_does_not_stop_the_others(federation, mode):
    run = federation(kind=NodeKind.PROCESSES, rounds=16, mode=mode)
    run.await_round(2)
    victim = processes(run.cluster.folder, "client-1.toml")[-1]
    os.kill(victim, signal.SIGKILL)
    cluster = run.cluster
    settings = cluster.settings.read_text()
    assert "reply_seconds" in settings
    assert run.finish() is None
    charged = check_ledgers(cluster)
    assert len(charged[0]) == len(charged[2]) == 16
    assert len(charged[1]) < 16


@pytest.mark.parametrize("victim", ["flwr-serverapp", "fenced_superlink"])
def test_killed_in_mid_run_it_resumes_and_asks_no_round_twice(federation, resumed, victim):
    run = federation(rounds=14, rounds_per_invitation=2, mode=Mode.TRUSTED)
    run.await_round(4)
    run.kill(victim)
    assert run.finish() is not None
    played = {row["round"] for row in read_metrics(run.cluster.server)}
    before = check_ledgers(run.cluster)
    run.close()
    again = resumed(run)
    assert again.finish() is None
    after = check_ledgers(again.cluster)
    rounds = [row["round"] for row in read_metrics(again.cluster.server)]
    assert len(rounds) == len(set(rounds))
    assert max(rounds) == 14
    assert played <= set(rounds)
    for index, charges in before.items():
        assert charges.items() <= after[index].items()


def test_ctrl_c_stops_everything_and_leaves_whole_ledgers(tmp_path):
    out = tmp_path / "run"
    command = [COINFLOWER, "run", "--clients", "2", "--rounds", "60", "--out", out]
    running = subprocess.Popen(
        [*command, "--nodes", "processes"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_until((out / "server" / "metrics.jsonl").exists, alive=lambda: running.poll() is None)
    running.send_signal(signal.SIGINT)
    stdout, stderr = running.communicate(timeout=PATIENCE)
    assert running.returncode == 130, stdout + stderr
    assert "--resume" in stderr
    assert "Traceback" not in stdout + stderr
    assert not processes(out)
    for index in range(2):
        with Ledger.open(out / "clients" / f"client-{index}.db") as ledger:
            assert ledger.verify().entries > 0
