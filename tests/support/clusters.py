"""Clusters of containers, seen from outside: compose commands, volumes, ledgers."""

from __future__ import annotations

import contextlib
import json
import math
import os
import shutil
import sqlite3
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from safetensors.numpy import load_file

from coinflower.accounting.ledger.entries import Entry
from coinflower.accounting.ledger.ledger import Ledger
from coinflower.protocol.terms import Terms
from coinflower.server.journal import read_metrics, read_status
from coinflower.server.settings import load_settings, save_settings
from tests.support.engine import Engine
from tests.support.federations import charges, check_ledgers

ROOT = Path(__file__).parents[2]
PACKAGES = (
    "accounting",
    "cli",
    "client",
    "deploy",
    "experiments",
    "flower_internals",
    "learning",
    "masking",
    "notary",
    "protocol",
    "report",
    "server",
    "src",
)
FILES = ("pyproject.toml", "README.md", ".dockerignore")
PATIENCE_SECONDS = 600.0
Found = TypeVar("Found")


def copy_context(folder: Path) -> Path:
    """Copy what the images are built from, without keys that lie there."""
    secrets = ROOT / "deploy" / "secrets"
    for package in PACKAGES:
        shutil.copytree(
            ROOT / package,
            folder / package,
            symlinks=True,
            ignore=lambda where, names: [
                name
                for name in names
                if name == "__pycache__" or (secrets in Path(where).parents and name != ".gitkeep")
            ],
        )
    for path in (*(ROOT / name for name in FILES), *ROOT.glob("docker-compose*.yml")):
        shutil.copy(path, folder)
    shutil.rmtree(folder / "deploy" / "secrets" / "authority", ignore_errors=True)
    return folder


class ComposeCluster:
    """One project of docker compose; ``check_ledgers`` takes it for a federation."""

    def __init__(
        self,
        engine: Engine,
        context: Path,
        options: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._engine = engine
        self._context = context
        self._options = options
        self._environment = dict(environment or {})
        self.project: str = json.loads(self.compose("config", "--format", "json"))["name"]
        root = engine.docker("info", "--format", "{{.DockerRootDir}}").strip()
        self._volumes = Path(root) / "volumes"
        self._copies = context / "copies"

    def compose(self, *arguments: str, check: bool = True) -> str:
        """Run docker compose and return what it printed."""
        done = subprocess.run(
            ["docker", "compose", *self._options, *arguments],
            env={**os.environ, **self._engine.environment, **self._environment},
            cwd=self._context,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=900,
            check=False,
        )
        if check and done.returncode != 0:
            logs = self.compose("logs", "--tail", "30", "--no-color", check=False)
            raise AssertionError(f"{arguments}: {done.stderr[-3000:]}\n{logs[-6000:]}")
        return done.stdout

    def wait_for_all(self, clients: int) -> None:
        """Set the cluster up, to play no round with fewer clients, however slow they are."""
        self.compose("build", "setup")
        self.compose("run", "--rm", "-T", "setup")
        settings = self.volume("server") / "settings.toml"
        patient = replace(
            load_settings(settings), least_clients=clients, reply_seconds=PATIENCE_SECONDS
        )
        save_settings(patient, settings)

    def up(self, *arguments: str) -> None:
        self.compose("up", "--wait", "--wait-timeout", "600", *arguments)

    def container(self, service: str) -> str:
        return f"{self.project}-{service}-1"

    def inspect(self, service: str) -> dict[str, Any]:
        found: list[dict[str, Any]] = json.loads(
            self._engine.docker("inspect", self.container(service))
        )
        return found[0]

    def volume(self, name: str) -> Path:
        return self._volumes / f"{self.project}_{name}" / "_data"

    @property
    def state(self) -> Path:
        """The folder of the server's run."""
        return self.volume("server") / "run"

    @property
    def terms(self) -> Terms:
        return load_settings(self.volume("server") / "settings.toml").terms

    @property
    def policies(self) -> list[Path]:
        """The clients' policies, in order."""
        return sorted(self._volumes.glob(f"{self.project}_client-*-data/_data/policy.toml"))

    def ledger(self, index: int) -> Path:
        """Return a copy of a client's ledger, made while the client may not write to its own."""
        original = self.volume(f"client-{index + 1}-ledger") / "ledger.db"
        copies = self._copies / self.project / str(index)
        shutil.rmtree(copies, ignore_errors=True)
        copies.mkdir(parents=True)
        with contextlib.closing(
            sqlite3.connect(original, timeout=PATIENCE_SECONDS, isolation_level=None)
        ) as lock:
            lock.execute("BEGIN IMMEDIATE")
            # By another process: closing the file in this one would give up the lock.
            subprocess.run(["cp", "--preserve", original, copies], check=True)
        return copies / "ledger.db"

    def histories(self) -> list[list[Entry]]:
        """Check all ledgers and return every entry of each."""
        check_ledgers(self)
        found = []
        for index in range(len(self.policies)):
            with Ledger.open(self.ledger(index)) as ledger:
                found.append(list(ledger.history()))
        return found

    def rounds(self) -> list[dict[str, Any]]:
        return read_metrics(self.state)

    def model(self) -> dict[str, npt.NDArray[np.float32]]:
        tensors: dict[str, npt.NDArray[np.float32]] = load_file(self.state / "model.safetensors")
        return tensors

    def online(self) -> dict[str, Any]:
        """Return which nodes the server sees."""
        told = self.compose(
            "exec", "-T", "server", "coinflower", "status", "superlink", "--json", check=False
        )
        nodes: dict[str, Any] = json.loads(told)["nodes"] if told else {}
        return nodes

    def await_round(self, round_: int) -> int:
        """Wait until the server has played a round; returns the last one played."""

        def played() -> int | None:
            rounds = self.rounds()
            return rounds[-1]["round"] if rounds and rounds[-1]["round"] >= round_ else None

        return self.wait_until(played, f"round {round_}")

    def await_end(self) -> None:
        """Wait until the run is complete."""
        self.wait_until(
            lambda: read_status(self.state).get("state") in ("finished", "failed"),
            "the end of the run",
        )
        assert read_status(self.state)["state"] == "finished", read_status(self.state)

    def health(self) -> dict[str, str]:
        """Return how the containers say they are, by service."""
        told = self.compose("ps", "--format", "json").splitlines()
        return {one["Service"]: one["Health"] for one in map(json.loads, told)}

    def wait_until(self, look: Callable[[], Found | None], what: str) -> Found:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < deadline:
            found = look()
            if found:
                return found
            time.sleep(0.3)
        logs = self.compose("logs", "--tail", "40", "--no-color", check=False)
        raise AssertionError(f"{what} was not reached in {PATIENCE_SECONDS} s:\n{logs[-8000:]}")


def check_nothing_lost(
    rounds: Sequence[Mapping[str, Any]],
    histories: Sequence[Sequence[Entry]],
    *,
    calm: float = math.inf,
) -> None:
    """Check that the ledgers know of every coin and every answer that the server counted.

    Args:
        rounds: What the server kept of them.
        histories: The ledgers.
        calm: Last round before clients were disturbed. One that went silent after its coins came
            still counts as available, but is not asked.
    """
    coins = [charges(history) for history in histories]
    answers = Counter(
        entry.round for history in histories for entry in history if entry.kind == "answer"
    )
    for row in rounds:
        round_ = row["round"]
        known = [coin[round_] for coin in coins if round_ in coin]
        assert row["available"] <= len(known), f"a ledger lost round {round_}"
        assert row["participants"] <= sum(known), f"a ledger lost a coin of round {round_}"
        if row["available"] == len(histories) and round_ <= calm:
            assert row["participants"] == sum(known), f"round {round_} had other coins"
        assert row["answered"] <= answers[round_], f"a ledger lost an answer of round {round_}"
