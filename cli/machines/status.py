"""The commands that report how a run, a server or a client is."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from coinflower.cli.machines.options import DEFAULT_FOLDER
from coinflower.cli.output import JsonFlag, print_json, print_table
from coinflower.deploy.terminal import complain, say


def status(
    folder: Annotated[
        Path, typer.Argument(help="Folder of a server or of `coinflower run`.")
    ] = DEFAULT_FOLDER,
    as_json: JsonFlag = False,
) -> None:
    """Show who is online, the round, the metrics, refusals and the last error of a run."""
    from coinflower.deploy.machines.standing import read_server_status

    found = read_server_status(folder)
    if as_json:
        print_json(found)
        return
    rows = [
        ["server", " at ".join(filter(None, (found["server"], found["address"])))],
        *(_of_run(found) if "mode" in found else []),
        ["nodes online", str(found["online"])],
        *([f"node {name}", "online" if up else "away"] for name, up in found["nodes"].items()),
        ["refusals", found.get("refusals") or "none"],
        ["last error", found["last_error"] or "none"],
    ]
    others = [one for one in found["experiments"] if one["experiment"] != found.get("experiment")]
    rows += [
        [
            f"experiment {one['experiment']}",
            f"{one['state']}, round {one['round']} of {one['rounds']}",
        ]
        for one in others
    ]
    print_table(f"{folder}", ["what", "is"], rows)


def _of_run(found: Mapping[str, Any]) -> list[list[str]]:
    from coinflower.learning.tasks.metrics import private_sentence, shown, title_of

    at = f" (round {found['metrics_round']})"
    metrics = found["metrics"] or {}
    private = private_sentence(found["private_metrics"])
    private_at = f" (two standard errors, round {found['private_metrics_round']})"
    return [
        *([["experiment", found["experiment"]]] if "experiment" in found else []),
        ["run", f"{found['run']}, mode {found['mode']}"],
        ["round", f"{found['round']} of {found['rounds']}"],
        *([title_of(name), shown(name, value) + at] for name, value in metrics.items()),
        *([["measured", "not yet"]] if not metrics else []),
        *([["on clients' own records", private + private_at]] if private else []),
    ]


def health(
    port: Annotated[int, typer.Argument(help="The port given to --health-port.")],
) -> None:
    """Exit with 0 if the client or server on this machine is healthy, with 1 otherwise."""
    from coinflower.deploy.machines.health import ask_health

    answer = ask_health(port)
    if answer == "SERVING":
        say(answer)
        return
    complain(answer)
    raise typer.Exit(1)
