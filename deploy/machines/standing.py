"""Where a server and its experiments stand, as figures; none is about what clients spent."""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from coinflower.accounting.errors import UserError
from coinflower.deploy.machines.experiment import Experiment
from coinflower.deploy.machines.queue import ExperimentQueue
from coinflower.deploy.machines.status_file import (
    SETTINGS,
    is_served,
    is_server_folder,
    read_status_file,
)
from coinflower.deploy.runs import is_alive, is_at_work
from coinflower.server.journal import (
    METRICS,
    last_measured,
    last_private,
    read_metrics,
    read_status,
)
from coinflower.server.settings import Settings, load_settings

_NOBODY: dict[str, Any] = {"run": "not begun", "round": 0, "rounds": 0, "last_error": ""}


def read_server_status(folder: Path) -> dict[str, Any]:
    """Return where the server of a folder, or the run of a folder, stands.

    Of several experiments, the first one at work is described beside the server itself, and
    without any the next or the last; all are in ``experiments``.

    Raises:
        ValueError: No server ever ran there.
    """
    experiments = ExperimentQueue(folder).all()
    if not experiments and (folder / SETTINGS).exists():
        # Of `coinflower run`, which has no server of its own, or of an earlier version.
        settings = load_settings(folder / SETTINGS)
        run = _of_run(settings, _runs_here(folder, settings))
        return {**_together(_of_server(folder, settings), run), "experiments": []}
    if not is_server_folder(folder):
        raise UserError(
            f"{folder} holds neither a server nor a run; name the folder given to --folder, or one "
            "in runs/."
        )
    shown = _shown(experiments, running_in(folder))
    described = _NOBODY if shown is None else standing(shown, running_in(folder))
    status = _together(_of_server(folder, None), described)
    return {**status, "experiments": _standings(folder)}


def _together(server: dict[str, Any], run: dict[str, Any]) -> dict[str, Any]:
    return {**server, **run, "last_error": server["last_error"] or run["last_error"]}


def server_standings(folder: Path) -> list[dict[str, Any]]:
    """Return where each experiment of a server stands.

    Raises:
        ValueError: No server ever ran there.
    """
    if not is_server_folder(folder):
        raise UserError(
            f"{folder} holds no server; name the folder given to coinflower server run --folder."
        )
    return _standings(folder)


def _standings(folder: Path) -> list[dict[str, Any]]:
    running = running_in(folder)
    return [standing(one, running) for one in ExperimentQueue(folder).all()]


def running_in(folder: Path) -> list[str]:
    """Return the names of the experiments that the server of a folder runs now."""
    if not is_served(folder):
        return []
    names: list[str] = read_status_file(folder).get("running", [])
    return names


def standing(experiment: Experiment, running: Collection[str]) -> dict[str, Any]:
    """Return where an experiment stands.

    Args:
        experiment: The experiment.
        running: The names of those that run now.
    """
    described = _of_run(experiment.settings, experiment.name in running)
    return {
        "experiment": experiment.name,
        "state": _state(experiment, described["run"], running),
        "submitted": experiment.submitted,
        **described,
        "last_error": experiment.error or described["last_error"],
        "folder": str(experiment.settings.state),
    }


def _state(experiment: Experiment, run: str, running: Collection[str]) -> str:
    if experiment.is_finished:
        return "finished"
    if experiment.name in running:
        return "stopping" if experiment.held else "enrolling" if run != "running" else run
    if experiment.held:
        return "stopped"
    return "failed" if experiment.error else "queued"


def _shown(experiments: list[Experiment], running: Collection[str]) -> Experiment | None:
    at_work = [one for one in experiments if one.name in running]
    due = [one for one in experiments if one.is_due]
    return next(iter([*at_work, *due, *reversed(experiments)]), None)


def _of_server(folder: Path, settings: Settings | None) -> dict[str, Any]:
    status_file = read_status_file(folder)
    if not status_file and settings is not None:
        running, online = _runs_here(folder, settings), _last_available(settings)
    else:
        running, online = is_served(folder), int(status_file.get("online", 0))
    return {
        "server": "running" if running else "stopped",
        "address": status_file.get("address", ""),
        "started": status_file.get("started", ""),
        "nodes": status_file.get("nodes", {}) if running else {},
        "online": online if running else 0,
        "last_error": status_file.get("error", ""),
    }


def _of_run(settings: Settings, running: bool) -> dict[str, Any]:
    """Return how far a run is, from its own files."""
    status = read_status(settings.state)
    state = status.get("state", "not begun")
    if not running and is_at_work(status):
        state = "interrupted"
    return {
        "run": state,
        "rounds": settings.terms.rounds,
        "task": settings.terms.task,
        **_figures(settings.state),
        "last_error": status.get("message", ""),
        "refusals": status.get("refusals", ""),
        "mode": str(settings.terms.mode),
        "insecure": settings.insecure_seed is not None or bool(status.get("insecure")),
    }


def _figures(state: Path) -> Mapping[str, Any]:
    """Return what the rounds so far say; a page asks every second, for days, mostly in vain."""
    try:
        found = (state / METRICS).stat()
    except FileNotFoundError:
        return _figures_in(state, 0, 0, 0)
    return _figures_in(state, found.st_ino, found.st_mtime_ns, found.st_size)


@functools.lru_cache(maxsize=1 << 10)
def _figures_in(state: Path, _file: int, _changed: int, _size: int) -> Mapping[str, Any]:
    metrics = read_metrics(state)
    measured_round, measured = last_measured(metrics) or (None, None)
    private_round, private = last_private(metrics) or (None, None)
    return {
        "round": metrics[-1]["round"] if metrics else 0,
        "available": metrics[-1]["available"] if metrics else 0,
        "accuracy": (measured or {}).get("accuracy"),
        "accuracy_round": measured_round if "accuracy" in (measured or {}) else None,
        "metrics": measured,
        "metrics_round": measured_round,
        "private_metrics": private,
        "private_metrics_round": private_round,
    }


def _runs_here(folder: Path, settings: Settings) -> bool:
    """Return whether a run without a queue is at work."""
    status: Mapping[str, Any] = read_status(settings.state)
    if is_server_folder(folder):
        return is_served(folder)
    return is_at_work(status) and is_alive(status["pid"])


def _last_available(settings: Settings) -> int:
    """Return how many clients are there; a run on one machine notes it with each round."""
    running = read_status(settings.state).get("state") == "running"
    return int(_figures(settings.state)["available"]) if running else 0
