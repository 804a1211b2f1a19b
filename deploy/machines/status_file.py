"""Where a server stands: what it writes into its folder for `coinflower status` and for metrics."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from coinflower.accounting.errors import UserError
from coinflower.deploy.runs import is_alive, is_at_work
from coinflower.server.checkpoint import write_atomically
from coinflower.server.journal import last_measured, read_metrics, read_status
from coinflower.server.settings import Settings, load_settings

_FILE = "server.json"
SETTINGS = "settings.toml"


class StatusFile:
    """A file in the server's folder that says who is there and what went wrong."""

    def __init__(self, folder: Path, address: str) -> None:
        self._path = folder / _FILE
        self._content: dict[str, Any] = {
            "pid": os.getpid(),
            "started": datetime.now(UTC).isoformat(timespec="seconds"),
            "address": address,
            "nodes": {},
            "online": 0,
            "error": "",
        }
        self._write()

    def note_nodes(self, nodes: Mapping[str, bool], online: int) -> None:
        """Note who is online; ``nodes`` by name, where names are known."""
        if (dict(nodes), online) != (self._content["nodes"], self._content["online"]):
            self._content |= {"nodes": dict(nodes), "online": online}
            self._write()

    def note_error(self, error: str) -> None:
        """Note why the server stopped."""
        self._content["error"] = error
        self._write()

    def _write(self) -> None:
        write_atomically(self._path, json.dumps(self._content).encode())


def read_status_file(folder: Path) -> dict[str, Any]:
    """Return what the server of a folder wrote last; empty if it never ran."""
    path = folder / _FILE
    status_file: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return status_file


def is_served(folder: Path) -> bool:
    """Return whether a server is at work in a folder."""
    status_file = read_status_file(folder)
    return bool(status_file) and is_alive(status_file["pid"])


def read_server_status(folder: Path) -> dict[str, Any]:
    """Return where the server of a folder stands, as figures.

    Raises:
        ValueError: No server ever ran there.
    """
    if not (folder / SETTINGS).exists():
        raise UserError(
            f"{folder} holds neither a server nor a run; name the folder given to --folder, or one "
            "in runs/."
        )
    return standing(load_settings(folder / SETTINGS), folder)


def standing(settings: Settings, folder: Path) -> dict[str, Any]:
    """Return where a server stands, from its status file and the run's own files."""
    status_file, status = read_status_file(folder), read_status(settings.state)
    metrics = read_metrics(settings.state)
    local = not status_file  # written by `coinflower run`, which has no server of its own
    running = is_at_work(status) and is_alive(status["pid"]) if local else is_served(folder)
    state = status.get("state", "not begun")
    if not running and is_at_work(status):
        state = "interrupted"
    measured_round, measured = last_measured(metrics) or (None, None)
    return {
        "server": "running" if running else "stopped",
        "run": state,
        "address": status_file.get("address", ""),
        "started": status_file.get("started", ""),
        "nodes": status_file.get("nodes", {}) if running else {},
        "online": _online(status_file, status, metrics) if running else 0,
        "round": metrics[-1]["round"] if metrics else 0,
        "rounds": settings.terms.rounds,
        "task": settings.terms.task,
        "accuracy": (measured or {}).get("accuracy"),
        "accuracy_round": measured_round if "accuracy" in (measured or {}) else None,
        "metrics": measured,
        "metrics_round": measured_round,
        "last_error": status_file.get("error") or status.get("message", ""),
        "refusals": status.get("refusals", ""),
        "mode": str(settings.terms.mode),
        "insecure": settings.insecure_seed is not None or bool(status.get("insecure")),
    }


def _online(
    status_file: Mapping[str, Any], status: Mapping[str, Any], metrics: list[dict[str, Any]]
) -> int:
    """Return how many clients are there; a run on one machine notes it with each round."""
    if status_file:
        return int(status_file["online"])
    return int(metrics[-1]["available"]) if metrics and status["state"] == "running" else 0
