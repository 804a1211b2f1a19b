"""The commands that submit experiments to a server, list, stop and resume them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from coinflower.cli.machines.options import DEFAULT_FOLDER, FOR_THE_OWNER_ONLY, Folder
from coinflower.cli.output import JsonFlag, print_json, print_table
from coinflower.deploy.terminal import say

Name = Annotated[str, typer.Argument(help="Name of the experiment, as in its terms.")]


def submit(
    settings: Annotated[Path, typer.Argument(help="Settings of the experiment (TOML).")],
    folder: Folder = DEFAULT_FOLDER,
) -> None:
    """Add an experiment to a server's queue; a running server needs no restart.

    The settings are checked first and kept as they are: later changes of the file change nothing.
    """
    from coinflower.deploy.machines.queue import ExperimentQueue

    os.umask(FOR_THE_OWNER_ONLY)
    made = ExperimentQueue(folder).submit(settings)
    say(f"Experiment {made.name} is in the queue. {_when(folder)} Its files: {made.settings.state}")


def list_(folder: Folder = DEFAULT_FOLDER, as_json: JsonFlag = False) -> None:
    """List a server's experiments: their state, rounds, metrics and errors."""
    from coinflower.deploy.machines.standing import server_standings
    from coinflower.learning.tasks.metrics import brief

    found = server_standings(folder)
    if as_json:
        print_json({"experiments": found})
        return
    rows = [
        [
            one["experiment"],
            one["state"],
            one["mode"],
            f"{one['round']} of {one['rounds']}",
            brief(one["metrics"]) if one["metrics"] else "not yet",
            one["last_error"] or one["refusals"] or "none",
        ]
        for one in found
    ]
    columns = ["experiment", "state", "mode", "round", "measured", "errors and refusals"]
    print_table(f"{folder}", columns, rows)


def stop(name: Name, folder: Folder = DEFAULT_FOLDER) -> None:
    """Stop an experiment between two rounds; it stays stopped until it is resumed."""
    from coinflower.deploy.machines.queue import ExperimentQueue
    from coinflower.deploy.machines.standing import running_in

    os.umask(FOR_THE_OWNER_ONLY)
    ExperimentQueue(folder).hold(name)
    if name in running_in(folder):
        say(f"Experiment {name} stops after its current round.")
    else:
        say(f"Experiment {name} is stopped.")


def resume(name: Name, folder: Folder = DEFAULT_FOLDER) -> None:
    """Let an experiment go on after a stop or a failure, with the next unused round."""
    from coinflower.deploy.machines.queue import ExperimentQueue
    from coinflower.deploy.machines.standing import running_in

    os.umask(FOR_THE_OWNER_ONLY)
    queue = ExperimentQueue(folder)
    at_work = name in running_in(folder) and not queue.get(name).held
    queue.release(name)
    if at_work:
        say(f"Experiment {name} is at work already.")
        return
    say(f"Experiment {name} is in the queue. {_when(folder)}")


def _when(folder: Path) -> str:
    from coinflower.deploy.machines.status_file import is_served

    if is_served(folder):
        return "The server begins it as soon as there is room."
    return "No server is at work there now; the next one begins it."
