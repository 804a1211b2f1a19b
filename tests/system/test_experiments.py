"""Several experiments on one server, over real processes: submitted, stopped, killed, resumed."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from coinflower.accounting.ledger.ledger import Ledger
from coinflower.client.app import make_app
from coinflower.client.node.resident import ResidentNode
from coinflower.client.participant import Participant
from coinflower.deploy.flower.loopback import LOOPBACK, free_port
from coinflower.deploy.machines.standing import server_standings
from coinflower.deploy.machines.status_file import is_server_folder
from coinflower.protocol.modes import Mode
from coinflower.protocol.policy import Refusal
from coinflower.server.journal import read_metrics, read_status
from tests.support.builders import make_owner, terms_fields, write_images
from tests.support.federations import processes
from tests.support.waiting import PATIENCE, wait_until

COINFLOWER = Path(sys.executable).parent / "coinflower"


class Server:
    """A server as a process, two clients as threads, and the commands of an operator."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.superlink = folder / "superlink"
        self.port = free_port(LOOPBACK)
        self.ledgers = [folder / f"client-{index}.db" for index in range(2)]
        write_images(folder / "public.npz", 20)
        self.start()

    def start(self) -> None:
        command = [COINFLOWER, "server", "run", "--folder", self.superlink, "--side-by-side", "2"]
        with (self.folder / "server.log").open("a") as log:
            self.process = subprocess.Popen([*command, "--port", str(self.port)], stderr=log)
        wait_until(lambda: is_server_folder(self.superlink), self.alive)

    def alive(self) -> bool:
        return self.process.poll() is None

    def told(self, *words: object) -> subprocess.CompletedProcess[str]:
        command = [COINFLOWER, "server", *map(str, words), "--folder", self.superlink]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    def tell(self, *words: object) -> str:
        done = self.told(*words)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def write(self, name: str, *, settings: dict[str, Any] | None = None, **terms: Any) -> Path:
        fields = terms_fields(
            **{"experiment": name, "noise_multiplier": 4.0, "q": 0.2, "p": 0.5} | terms
        )
        fields["mode"] = str(fields["mode"])
        table = {"test_data": str(self.folder / "public.npz"), "least_clients": 2}
        table |= {"reply_seconds": PATIENCE}
        table |= {**(settings or {}), "terms": fields}
        path = self.folder / f"{name}.toml"
        path.write_text(tomli_w.dumps(table))
        return path

    def state(self, name: str) -> Path:
        return self.superlink / "experiments" / name / "state"

    def rounds(self, name: str) -> list[int]:
        return [row["round"] for row in read_metrics(self.state(name))]

    def await_rounds(self, name: str, more: int) -> None:
        enough = len(self.rounds(name)) + more
        wait_until(lambda: len(self.rounds(name)) >= enough, self.alive)

    def listed(self, name: str) -> dict[str, Any]:
        found = server_standings(self.superlink)
        return next(one for one in found if one["experiment"] == name)

    def await_state(self, name: str, state: str) -> None:
        wait_until(lambda: self.listed(name)["state"] == state, self.alive)


@contextlib.contextmanager
def client(address: str, policy: Path) -> Iterator[None]:
    owner, stop = Participant.open(policy), threading.Event()
    node = ResidentNode(address, make_app(owner), stop=stop, insecure=True, max_backoff=0.5)
    thread = threading.Thread(target=node.run)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(PATIENCE)
        owner.ledger.close()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("experiments")
    served = Server(folder)
    with contextlib.ExitStack() as stack:
        for ledger in served.ledgers:
            budget = {"epsilon": 20.0, "delta": 1e-5}
            policy = make_owner(ledger.with_suffix(".toml"), 20, budget=budget)
            stack.enter_context(client(f"{LOOPBACK}:{served.port}", policy))
        # Slowly, so that the other experiments get some of the machine, too.
        slowly = {"poll_seconds": 1.0}
        first = served.write("first", settings=slowly, rounds=500, mode=Mode.UNTRUSTED)
        served.tell("submit", first)
        served.await_rounds("first", 1)
        yield served
        served.process.send_signal(signal.SIGTERM)
        assert served.process.wait(PATIENCE) == 0, (folder / "server.log").read_text()
    assert not processes(folder)
    for ledger in served.ledgers:
        _check(ledger)


def _check(path: Path) -> None:
    """Check that a ledger holds no round twice, in whichever experiment."""
    with Ledger.open(path) as ledger:
        ledger.verify()
        entries = list(ledger.history())
    for kind in ("charge", "answer"):
        found = [(one.experiment, one.round) for one in entries if one.kind == kind]
        assert len(found) == len(set(found))
        assert len({experiment for experiment, _ in found}) >= 2


def test_a_second_experiment_completes_while_the_first_goes_on(server: Server) -> None:
    before = len(server.rounds("first"))
    told = server.tell("submit", server.write("second", rounds=4, mode=Mode.COVERED))
    assert "Experiment second is in the queue. The server begins it" in told
    server.await_state("second", "finished")
    assert server.rounds("second") == [1, 2, 3, 4]
    assert len(server.rounds("first")) > before
    listed = json.loads(server.tell("list", "--json"))["experiments"]
    assert [one["state"] for one in listed] == ["running", "finished"]
    assert (server.state("second") / "report.html").exists()


def test_a_budget_that_fits_only_one_refuses_the_other_which_can_be_stopped(
    server: Server,
) -> None:
    server.tell(
        "submit", server.write("greedy", mode=Mode.COVERED, rounds=500, noise_multiplier=1.5, q=1.0)
    )
    sentence = f"2 of 2 clients refuse: {Refusal.BUDGET.value}"
    wait_until(lambda: server.listed("greedy")["refusals"] == sentence, server.alive)
    server.await_rounds("first", 1)
    assert "stops after its current round" in server.tell("stop", "greedy")
    server.await_state("greedy", "stopped")
    assert server.rounds("greedy") == []


def test_a_stopped_experiment_goes_on_with_the_next_round(server: Server) -> None:
    server.tell("stop", "first")
    server.await_state("first", "stopped")
    played = server.rounds("first")
    assert read_status(server.state("first"))["state"] == "stopped"
    assert "is in the queue" in server.tell("resume", "first")
    server.await_rounds("first", 2)
    assert "is at work already" in server.tell("resume", "first")
    assert server.rounds("first")[: len(played)] == played
    assert sorted(set(server.rounds("first"))) == server.rounds("first")


def test_an_experiment_whose_process_is_killed_goes_on(server: Server) -> None:
    server.await_rounds("first", 1)
    killed = read_status(server.state("first"))["pid"]
    os.kill(killed, signal.SIGKILL)
    server.await_rounds("first", 3)
    wait_until(lambda: read_status(server.state("first")).get("pid") != killed, server.alive)
    server.await_rounds("first", 1)
    assert sorted(set(server.rounds("first"))) == server.rounds("first")


def test_a_killed_server_resumes_what_ran_and_begins_what_was_submitted_meanwhile(
    server: Server,
) -> None:
    server.await_rounds("first", 1)
    server.process.kill()
    server.process.wait()
    assert "No server is at work there now" in server.tell(
        "submit", server.write("late", rounds=4, mode=Mode.QUIET)
    )
    wait_until(lambda: not processes(server.folder, "superlink"))
    server.start()
    server.await_rounds("first", 2)
    server.await_state("late", "finished")
    assert sorted(set(server.rounds("first"))) == server.rounds("first")
    again = server.told("submit", server.folder / "late.toml")
    assert again.returncode == 2
    assert "has the same terms" in again.stderr.replace("\n", " ")
