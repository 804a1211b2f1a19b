"""What a server writes into its folder about itself, for commands that ask how it is."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from coinflower.deploy.runs import is_alive
from coinflower.server.checkpoint import write_atomically
from coinflower.server.journal import read_object

_FILE = "server.json"
SETTINGS = "settings.toml"
"""Name of the settings in the folder of an experiment, or of `coinflower run`."""


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
            "running": [],
            "error": "",
        }
        self._write()

    def note(self, nodes: Mapping[str, bool], online: int, running: Sequence[str]) -> None:
        """Note who is online, by name where names are known, and which experiments run."""
        now = {"nodes": dict(nodes), "online": online, "running": list(running)}
        if not now.items() <= self._content.items():
            self._content |= now
            self._write()

    def note_error(self, error: str) -> None:
        """Note why the server stopped."""
        self._content["error"] = error
        self._write()

    def _write(self) -> None:
        write_atomically(self._path, json.dumps(self._content).encode())


def is_server_folder(folder: Path) -> bool:
    """Return whether a server ever served from a folder."""
    return (folder / _FILE).exists()


def read_status_file(folder: Path) -> dict[str, Any]:
    """Return what the server of a folder wrote last; empty if it never ran."""
    return read_object(folder / _FILE)


def is_served(folder: Path) -> bool:
    """Return whether a server is at work in a folder."""
    status_file = read_status_file(folder)
    return bool(status_file) and is_alive(status_file["pid"])
