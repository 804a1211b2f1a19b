"""The commands that redo the paper: its figures, and its experiments."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from coinflower.accounting.errors import UserError
from coinflower.cli.output import JsonFlag, print_json
from coinflower.cli.research.results import results
from coinflower.deploy.signals import stop_on_signals
from coinflower.deploy.terminal import console, say, warn

app = typer.Typer(add_completion=False)
app.command()(results)

OutFolder = Annotated[Path | None, typer.Option("--out", help="Folder for PNG, SVG and CSV files.")]


@app.callback(invoke_without_command=True)
def paper(
    context: typer.Context,
    out: OutFolder = None,
    points: Annotated[
        Path | None,
        typer.Option(
            "--points", help="The paper's own points, figures.json (default: the built-in copy)."
        ),
    ] = None,
    figure: Annotated[
        list[int] | None,
        typer.Option(
            "--figure",
            help="Draw this figure only, by its number in the paper (1 to 5); may be repeated.",
        ),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Draw the paper's figures and its table of σ next to what really holds.

    Curves named `paper` are the paper as plotted: not an upper bound. Takes half a minute.
    """
    if context.invoked_subcommand is not None:
        return
    if out is None:
        raise UserError("--out is missing: name a folder for the figures.")
    from coinflower.experiments.paper.drawing import draw_all

    drawn = []
    for number, name in draw_all(out, points, figure or ()):
        drawn.append(name)
        if not as_json:
            what = "Table of σ" if number is None else f"Figure {number}"
            say(f"{what}: {out / name}.png, .svg, .csv")
    if as_json:
        print_json({"out": str(out), "figures": drawn})


@app.command()
def experiments(
    question: Annotated[str, typer.Argument(help="per-iteration or cap.")],
    data: Annotated[str, typer.Option(help="Name or path of the data.")],
    out: Annotated[Path, typer.Option("--out", help="Folder for figures, tables and page.")],
    scenario: Annotated[str, typer.Option(help="many-small or few-large.")] = "many-small",
    partition: Annotated[
        str, typer.Option(help="How data is divided: equal, writer or dirichlet.")
    ] = "equal",
    iterations: Annotated[int, typer.Option(help="Iterations of every training.")] = 600,
    epsilons: Annotated[str, typer.Option(help="Total budgets ε, comma-separated.")] = "0.5,1,2,4",
    delta: Annotated[float, typer.Option(help="δ of those budgets.")] = 1e-5,
    caps: Annotated[
        str, typer.Option(help="Caps in clip norms for cap, comma-separated; inf for none.")
    ] = "1,1.5,2,3,5,inf",
    rates: Annotated[
        str, typer.Option(help="Learning rates to choose from, comma-separated.")
    ] = "0.005,0.02,0.08",
    extend: Annotated[
        bool,
        typer.Option("--extend", help="Go beyond these rates until the best lies inside."),
    ] = False,
    seeds: Annotated[int, typer.Option(help="Trainings per case.")] = 3,
    test_images: Annotated[
        int,
        typer.Option(help="Images that measure accuracy; as many more choose the learning rate."),
    ] = 2000,
    model: Annotated[str, typer.Option(help="paper-cnn or package.module:function.")] = "paper-cnn",
    split: Annotated[str | None, typer.Option(help="Split of EMNIST (default: byclass).")] = None,
    download: Annotated[bool, typer.Option("--download", help="Download missing data.")] = False,
    work: Annotated[
        Path,
        typer.Option(help="Folder for finished trainings, so that a stopped study can continue."),
    ] = Path("runs/experiments"),
    workers: Annotated[
        int | None, typer.Option(help="Trainings at a time (default: one per core).")
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Train with the noise of every analysis and draw the accuracy that each leaves.

    Seeded, so that the figures are reproducible; the models are not private.
    """
    from coinflower.experiments.studies.page import describe, write_page
    from coinflower.experiments.studies.studies import Study, parse_question
    from coinflower.experiments.studies.trainings import play, training_data

    study = Study(
        question=parse_question(question),
        scenario=scenario,
        data=data,
        partition=partition,
        iterations=iterations,
        epsilons=parse_numbers("epsilons", epsilons),
        delta=delta,
        caps=parse_numbers("caps", caps),
        rates=parse_numbers("rates", rates),
        extend=extend,
        seeds=seeds,
        test_images=test_images,
        model=model,
        split=split,
        download=download,
    )
    described = describe(training_data(study))
    columns = (TextColumn("trainings"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with (
        stop_on_signals() as stop,
        Progress(*columns, console=console, disable=as_json) as bar,
    ):
        task = bar.add_task("trainings", total=None)
        outcomes = play(
            study,
            work,
            workers=workers or os.cpu_count() or 1,
            progress=lambda done, of: bar.update(task, completed=done, total=of),
            stopped=stop.is_set,
        )
    if outcomes is None:
        warn(f"stopped early; trainings are kept in {work}; to continue, repeat the command.")
        raise typer.Exit(130)
    write_page(study, outcomes, out, data=described, command=_command_line(data))
    if as_json:
        accuracy = [
            {
                "scheme": each.case.scheme,
                "budget_epsilon": each.case.epsilon,
                "clients": each.clients,
                "cap": each.case.cap,
                "sigma": each.sigma,
                "epsilon": each.epsilon,
                "accuracy": each.mean,
            }
            for each in outcomes
        ]
        print_json({"out": str(out), "insecure": True, "results": accuracy})
    else:
        say(f"{out / 'README.md'} shows it.")


def parse_numbers(field: str, text: str) -> tuple[float, ...]:
    """Return comma-separated numbers."""
    try:
        return tuple(float(each) for each in text.split(",") if each.strip())
    except ValueError:
        raise UserError(f"{field} = {text!r} must be comma-separated numbers.") from None


def parse_counts(field: str, text: str) -> tuple[int, ...]:
    """Return comma-separated whole numbers."""
    try:
        return tuple(int(each) for each in text.split(",") if each.strip())
    except ValueError:
        raise UserError(f"{field} = {text!r} must be comma-separated whole numbers.") from None


def _command_line(data: str) -> str:
    """Return the command as it was given; where data lies on this machine is nobody's concern."""
    path = Path(data)
    shown = f"PATH/TO/{path.resolve().name}" if path.exists() else data
    words = (word.replace(data, shown) for word in sys.argv[1:] if word != "--json")
    return shlex.join(["coinflower", *words])
