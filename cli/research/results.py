"""The command that redoes the comparison of all modes and analyses at equal ε."""

from __future__ import annotations

import functools
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn

from coinflower.accounting.errors import UserError
from coinflower.cli.output import JsonFlag, print_json
from coinflower.deploy.signals import stop_on_signals
from coinflower.deploy.terminal import console, say, warn


def results(
    names: Annotated[
        list[str] | None, typer.Argument(help="Comparisons to train (default: all of them).")
    ] = None,
    out: Annotated[Path, typer.Option("--out", help="Folder of pages, figures and CSV files.")] = (
        Path("docs/results")
    ),
    mnist: Annotated[Path | None, typer.Option(help="Folder of MNIST.")] = None,
    emnist: Annotated[Path | None, typer.Option(help="Folder of EMNIST.")] = None,
    jobs: Annotated[int, typer.Option(help="Trainings at a time.", min=1)] = 1,
    minutes: Annotated[
        float | None, typer.Option(help="Begin no training after so many minutes.")
    ] = None,
    draw_only: Annotated[
        bool, typer.Option("--draw-only", help="Train nothing; draw what is there.")
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """Train every mode and analysis at equal ε, and draw the accuracy that each leaves.

    What is trained already is not trained again; seeded, so the models are not private.
    """
    from coinflower.experiments.comparison.comparisons import COMPARISONS
    from coinflower.experiments.comparison.page import OVERVIEW, write_overview, write_page
    from coinflower.experiments.comparison.playing import play
    from coinflower.experiments.comparison.record import TRAININGS, TrainingRecord

    unknown = [name for name in names or () if name not in COMPARISONS]
    if unknown:
        raise UserError(
            f"{unknown[0]!r} is no comparison; choose from {', '.join(COMPARISONS)}, or name none "
            "for all."
        )
    folders = {
        name: path for name, path in (("mnist", mnist), ("emnist", emnist)) if path is not None
    }
    chosen = [COMPARISONS[name] for name in names or COMPARISONS]
    records = {name: TrainingRecord(out / name / TRAININGS) for name in COMPARISONS}
    began = time.monotonic()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with stop_on_signals() as stop, Progress(*columns, console=console, disable=as_json) as bar:

        def stopped() -> bool:
            late = minutes is not None and time.monotonic() - began > 60 * minutes
            return stop.is_set() or late

        for comparison in chosen:
            if not draw_only:
                task = bar.add_task(f"levels of noise, {comparison.name}", total=None)
                play(
                    comparison,
                    records[comparison.name],
                    folders,
                    jobs=jobs,
                    progress=functools.partial(_advance, bar, task),
                    stopped=stopped,
                )
            write_page(
                comparison,
                records[comparison.name],
                out / comparison.name,
                command=_command(comparison.name, comparison.source),
            )
    if (out / OVERVIEW).exists():
        write_overview(COMPARISONS.values(), records, out / OVERVIEW)
    trained = {each.name: len(records[each.name]) for each in chosen}
    if as_json:
        print_json({"out": str(out), "insecure": True, "trainings": trained})
    else:
        say(f"{out} shows it: {', '.join(f'{name} ({n})' for name, n in trained.items())}.")
    if stop.is_set():
        warn(f"stopped early; what was trained is kept in {out}; to continue, repeat the command.")
        raise typer.Exit(130)


def _advance(bar: Progress, task: TaskID, done: int, of: int) -> None:
    bar.update(task, completed=done, total=of)


def _command(name: str, source: str) -> str:
    """Return the command that redoes one comparison; where data lies is nobody's concern."""
    data = "" if source == name == "clinics" else f" --{source} PATH/TO/{source.upper()}"
    return f"coinflower paper results {name}{data} --jobs 2"
