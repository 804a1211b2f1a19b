"""Whether the process of a run lives, and why a run failed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from coinflower.deploy.errors import DefectError, DeploymentError


class RunFailedError(DeploymentError):
    """The run did not finish; the message says why."""


class RunDefectError(RunFailedError, DefectError):
    """The run did not finish, because of a defect in this program."""


def is_alive(pid: int) -> bool:
    """Return whether a process of this machine is there and not yet a zombie."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def is_at_work(status: Mapping[str, Any]) -> bool:
    """Return whether a parameter server that wrote this status has not said that it ended."""
    return status.get("state") in ("waiting", "running")


def require_alive(status: Mapping[str, Any], *, again: str) -> None:
    """Notice a parameter server that ended without a word; Flower takes a minute to."""
    if is_at_work(status) and not is_alive(status["pid"]):
        raise RunFailedError(
            f"The server's process ended in the middle of the run; continue with {again}"
        )


def failure(status: Mapping[str, Any], details: str, log: Path) -> RunFailedError:
    """Return why a run ended early, from what its server wrote last and what Flower says."""
    reason = status.get("message") or details
    if status.get("state") == "defective":
        return RunDefectError(
            f"The server failed because of a defect in this program: {reason}. Its trace is in "
            f"{log}."
        )
    return RunFailedError(reason or f"The run failed: see {log}.")
