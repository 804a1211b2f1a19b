"""What a run writes as it proceeds: one line of metrics per round, and its status."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coinflower.accounting.errors import UserError
from coinflower.learning import Metrics
from coinflower.server.checkpoint import write_atomically

METRICS = "metrics.jsonl"
STATUS = "status.json"
_STOP = "stop"


@dataclass(frozen=True, kw_only=True)
class RoundReport:
    """What the server may know about a round; none of it depends on clients' data.

    But for what clients were charged for: the metrics of the model on their records, with noise,
    each with its ``value`` and its ``standard_error``.
    """

    round: int
    available: int
    participants: int
    answered: int
    dropped: int
    expected_batch: float
    seconds: float
    received_bytes: int
    private_metrics: dict[str, dict[str, float | None]] | None = None


class Journal:
    """Files in the server's folder that others follow.

    Args:
        folder: The server's state folder.
        insecure: Whether the server's noise is or ever was seeded in this run; stamped on the
            status and on every line. What clients seed is in their own ledgers.
    """

    def __init__(self, folder: Path, *, insecure: bool) -> None:
        self._folder = folder
        self._stamp: dict[str, Any] = {"insecure": True} if insecure else {}
        self._status: dict[str, Any] = {}
        self._refusals = ""
        folder.mkdir(parents=True, exist_ok=True)
        self._cut_torn_line()
        (folder / _STOP).unlink(missing_ok=True)  # meant for the previous run

    def asked_to_stop(self) -> bool:
        """Return whether somebody wants the run to end between two rounds."""
        return (self._folder / _STOP).exists()

    def status(self, state: str, *, round_: int = 0, message: str = "") -> None:
        """Say where the run stands: waiting, running, stopped, finished, failed or defective."""
        self._status = {"state": state, "round": round_, "message": message, "pid": os.getpid()}
        self._write_status()

    def stopped(self) -> None:
        """Say that the run ended between two rounds because it was asked to."""
        self.status("stopped", round_=self._status.get("round", 0))

    def refusals(self, sentence: str) -> None:
        """Say which clients refuse and why; an empty sentence if none does."""
        self._refusals = sentence
        self._write_status()

    def _write_status(self) -> None:
        content = {**self._status, "refusals": self._refusals, **self._stamp}
        write_atomically(self._folder / STATUS, json.dumps(content).encode())

    def round(self, report: RoundReport, metrics: Metrics | None) -> None:
        """Add a round, with the metrics if they were measured."""
        line = {
            **dataclasses.asdict(report),
            "asked": report.participants,
            "accuracy": (metrics or {}).get("accuracy"),
            "metrics": metrics,
            **self._stamp,
        }
        if report.private_metrics is None:
            del line["private_metrics"]
        with (self._folder / METRICS).open("a") as file:
            file.write(json.dumps(line) + "\n")

    def _cut_torn_line(self) -> None:
        """Drop the half line that a crash left, or the next line would be appended to it."""
        path = self._folder / METRICS
        content = path.read_bytes() if path.exists() else b""
        if content and not content.endswith(b"\n"):
            os.truncate(path, content.rfind(b"\n") + 1)


def ask_to_stop(folder: Path) -> None:
    """Ask the run in a state folder to end after its current round."""
    folder.mkdir(parents=True, exist_ok=True)  # it may not have begun
    (folder / _STOP).touch()


class MetricsReader:
    """Follows the metrics of a run: each look reads only what was written since the last one."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / METRICS
        self._read_bytes = 0
        self.rows: list[dict[str, Any]] = []

    def read_new(self) -> list[dict[str, Any]]:
        """Return the rounds since the last look, and add them to ``rows``.

        Raises:
            ValueError: The file is damaged.
        """
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            file.seek(self._read_bytes)
            # What follows the last newline is a line that is still being written.
            whole = file.read().rpartition(b"\n")[0]
        new = [_decoded(line, self._path) for line in whole.splitlines()]
        self._read_bytes += len(whole) + 1 if whole else 0
        self.rows += new
        return new


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """Return the rounds that a run has played so far."""
    return MetricsReader(folder).read_new()


def metrics_of(row: dict[str, Any]) -> Metrics | None:
    """Return what was measured after a round, the headline first; None if nothing was."""
    if "metrics" in row:
        measured: Metrics | None = row["metrics"]
        return measured
    # Earlier versions measured nothing but accuracy.
    return None if row["accuracy"] is None else {"accuracy": row["accuracy"]}


def last_measured(rows: Sequence[dict[str, Any]]) -> tuple[int, Metrics] | None:
    """Return the last round that was measured, with its metrics; None if none was."""
    for row in reversed(rows):
        metrics = metrics_of(row)
        if metrics:
            return row["round"], metrics
    return None


def last_private(rows: Sequence[dict[str, Any]]) -> tuple[int, dict[str, Any]] | None:
    """Return the last round after which clients' records measured the model, and what they said."""
    for row in reversed(rows):
        if row.get("private_metrics"):
            return row["round"], row["private_metrics"]
    return None


def read_status(folder: Path) -> dict[str, Any]:
    """Return where the run stands; empty before it has begun."""
    return read_object(folder / STATUS)


def read_object(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file; an empty one if there is no file.

    Raises:
        ValueError: The file is damaged.
    """
    return _decoded(path.read_bytes(), path) if path.exists() else {}


def _decoded(text: bytes, path: Path) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise UserError(f"{path} is damaged: {error}.") from None
    if not isinstance(found, dict):
        raise UserError(f"{path} is damaged: it must hold an object.")
    return found
