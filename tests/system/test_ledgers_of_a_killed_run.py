"""A local run that is killed in mid-round: its ledgers' files, copied alone, forget nothing."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from coinflower.accounting.ledger.ledger import Ledger
from tests.support.federations import processes
from tests.support.waiting import wait_until

COINFLOWER = Path(sys.executable).parent / "coinflower"


def verified(path):
    return subprocess.run(
        [COINFLOWER, "ledger", "verify", path, "--json"],
        capture_output=True,
        text=True,
        check=False,
    )


def kill(process):
    with contextlib.suppress(ProcessLookupError):
        os.kill(process, signal.SIGKILL)


def test_a_ledger_copied_after_a_kill_shows_every_round_or_is_refused(tmp_path):
    out = tmp_path / "run"
    command = [COINFLOWER, "run", "--clients", "2", "--rounds", "200", "--out", out]
    running = subprocess.Popen(
        [*command, "--processes"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    metrics = out / "server" / "metrics.jsonl"
    try:
        wait_until(
            lambda: metrics.exists() and len(metrics.read_text().splitlines()) >= 5,
            alive=lambda: running.poll() is None,
        )
    finally:
        kill(running.pid)
        running.wait()
        while victims := processes(out):
            for victim in victims:
                kill(victim)
            time.sleep(0.05)
    for index in range(2):
        ledger = out / "clients" / f"client-{index}.db"
        copy = shutil.copy(ledger, tmp_path / f"copy-{index}.db")
        shown = verified(copy)
        with Ledger.open(ledger, read_only=True) as whole:  # with its journal
            assert whole.tallies()[0].charged >= 5
            entries = whole.verify().entries
        if shown.returncode == 0:
            assert json.loads(shown.stdout)["entries"] >= entries
        else:
            assert "cannot be trusted" in shown.stderr or "is damaged" in shown.stderr
