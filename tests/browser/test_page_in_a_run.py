"""The owner's buttons in mid-run: a real server, a real client, a real browser."""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from coinflower.accounting.ledger.ledger import Ledger
from coinflower.deploy.flower.loopback import LOOPBACK, free_port
from coinflower.deploy.local.cluster import prepare
from coinflower.protocol.modes import Mode
from coinflower.protocol.policy import Refusal
from tests.support.federations import plan, processes
from tests.support.waiting import PATIENCE

COINFLOWER = Path(sys.executable).parent / "coinflower"


@contextlib.contextmanager
def started(log: Path, *command: object) -> Iterator[subprocess.Popen[str]]:
    """Run a program of ours as long as the block lasts; it must end well when told to."""
    with log.open("w") as errors:
        process = subprocess.Popen(
            [COINFLOWER, *map(str, command)],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            cwd=log.parent,
        )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(PATIENCE)
        finally:
            process.kill()


def test_pause_resume_and_leave_take_effect_before_the_next_coin(
    browser: Any, tmp_path: Path
) -> None:
    cluster = prepare(
        plan(clients=1, rounds=400, mode=Mode.QUIET, rounds_per_invitation=2), tmp_path / "run"
    )
    address = f"{LOOPBACK}:{free_port(LOOPBACK)}"
    log = tmp_path / "client.log"

    def tally() -> Any:
        with Ledger.open(cluster.ledger(0), read_only=True) as ledger:
            return ledger.tallies()[0]

    def played() -> int:
        shown = browser.text("#played")  # not there while the page is being replaced
        return int(shown) if shown.isdigit() else 0

    def told(refusal: Refusal) -> bool:
        return f"Refused to enrol: {refusal.value}" in log.read_text()

    client = ("client", cluster.policies[0], "--superlink", address, "--insecure")
    server = ("server", "run", cluster.settings, "--port", address.rpartition(":")[2])
    with (
        started(log, *client, "--page", "127.0.0.1:0") as owner,
        started(tmp_path / "server.log", *server, "--drain-seconds", "1"),
    ):
        assert owner.stdout is not None
        (link,) = re.findall(r"is in (\S+),", owner.stdout.readline())
        browser.open(Path(link).read_text().strip())
        browser.wait(lambda: played() > 2)
        assert "quiet" in browser.text("#now")

        browser.press("#pause")
        charged = tally().charged
        browser.wait(lambda: told(Refusal.PAUSED))
        assert tally().charged == charged < 400
        browser.wait(lambda: played() == charged)
        browser.wait(lambda: "Paused" in browser.text("header"))

        browser.press("#resume")
        browser.wait(lambda: played() > charged)

        browser.run("document.querySelector('details').open = true")
        browser.press(".danger")
        left = tally()
        assert left.reserved_rounds == left.charged > charged
        browser.wait(lambda: told(Refusal.LEFT))
        assert tally() == left
        assert browser.value("#reserved") == 0
        with Ledger.open(cluster.ledger(0), read_only=True) as ledger:
            assert browser.value("#spent") == ledger.spent(cluster.delta)
        browser.leave()
    assert owner.returncode == 0
    assert not processes(tmp_path)
