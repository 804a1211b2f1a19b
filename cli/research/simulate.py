"""The command that plays the algorithm at the paper's scale on one machine."""

from __future__ import annotations

import contextlib
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from coinflower.accounting.errors import UserError
from coinflower.cli.options.bundles import bundling
from coinflower.cli.options.learning import LearningOptions, stated_fields
from coinflower.cli.options.masked import Colluders, Threshold
from coinflower.cli.options.model import DeviceOption
from coinflower.cli.options.sources import Download, Partition
from coinflower.cli.options.update import UpdateOptions
from coinflower.cli.output import JsonFlag, number, print_json
from coinflower.cli.privacy import Cap
from coinflower.cli.stated import stated
from coinflower.deploy.signals import stop_on_signals
from coinflower.deploy.terminal import console, say, warn
from coinflower.protocol.modes import Mode
from coinflower.protocol.unit import Unit


@dataclass(frozen=True, kw_only=True)
class SteppingOptions(UpdateOptions):
    """How the model steps, as the paper does unless somebody says otherwise."""

    learning_rate: Annotated[
        float | None,
        typer.Option(
            help="Step size (default: for sgd the paper's, or a plan's if there is a total ε; "
            "0.01 for adam and adamw)."
        ),
    ] = None
    momentum: Annotated[float | None, typer.Option(help="Momentum.")] = 0.9


@bundling
def simulate(
    context: typer.Context,
    *,
    scenario: Annotated[str, typer.Argument(help="many-small or few-large.")],
    data: Annotated[
        str, typer.Option(help="Name or path of the data, or synthetic (of the paper's size).")
    ] = "synthetic",
    plan: Annotated[
        Path | None,
        typer.Option(help="Take all that a plan's JSON says; options beside it come first."),
    ] = None,
    iterations: Annotated[int, typer.Option(help="Number of iterations.")] = 300,
    scheme: Annotated[
        str | None,
        typer.Option(
            help="Analysis that chooses σ: certified, wcs, ols, cs, paper or none (default: the "
            "one that holds for --noise)."
        ),
    ] = None,
    total_epsilon: Annotated[
        float | None,
        typer.Option(help="ε for all iterations (default: the paper's (0.015, 1e-6) for each)."),
    ] = None,
    delta: Annotated[float, typer.Option(help="δ of the total ε.")] = 1e-5,
    sigma: Annotated[
        float | None, typer.Option(help="Noise multiplier σ (default: chosen by --scheme).")
    ] = None,
    noise: Annotated[
        str,
        typer.Option(help=f"Who adds noise: {', '.join(Mode)}, or central."),
    ] = "trusted",
    threshold: Threshold = None,
    colluders: Colluders = None,
    learning: LearningOptions,
    partition: Partition = "equal",
    clients: Annotated[
        int | None, typer.Option(help="Number of clients (default: as many as the data allows).")
    ] = None,
    d: Annotated[
        int | None, typer.Option("-d", help="Records of each client (default: the scenario's).")
    ] = None,
    p: Annotated[
        float | None,
        typer.Option("-p", help="Participation probability p (default: the scenario's)."),
    ] = None,
    q: Annotated[
        float | None, typer.Option("-q", help="Local sampling rate q (default: the scenario's).")
    ] = None,
    availability: Annotated[
        float, typer.Option(help="Probability that a client is available in an iteration.")
    ] = 1.0,
    clip_norm: Annotated[float, typer.Option(help="Clip norm C.")] = 1.0,
    cap: Cap = math.inf,
    stepping: SteppingOptions,
    device: DeviceOption = None,
    evaluate_every: Annotated[int, typer.Option(help="Iterations between evaluations.")] = 50,
    split: Annotated[str | None, typer.Option(help="Split of EMNIST (default: byclass).")] = None,
    download: Download = False,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for state, curve and report (default: a new one in runs/)."),
    ] = None,
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Continue the simulation in --out, on its original terms."),
    ] = False,
    seed: Annotated[
        int | None, typer.Option(help="Seed all randomness. INSECURE: for tests only.")
    ] = None,
    threads: Annotated[
        int | None, typer.Option(help="Threads that compute gradients (default: all cores).")
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Simulate thousands of clients; any analysis may choose σ, but ε is one that holds."""
    from coinflower.deploy.local.folder import fresh_name
    from coinflower.experiments.simulator.planned import read_plan
    from coinflower.experiments.simulator.request import Request
    from coinflower.experiments.simulator.simulated_run import run_request
    from coinflower.learning import Update

    if out is None:
        if resume:
            raise UserError("--resume needs --out, the folder of the simulation to continue.")
        out = Path("runs") / fresh_name("simulation")
    fields: dict[str, Any] = {
        **{"iterations": iterations, "total_epsilon": total_epsilon, "delta": delta},
        **{"sigma": sigma, "noise": noise, "clients": clients, "d": d, "p": p, "q": q},
        **{"clip_norm": clip_norm, "cap": cap, "threshold": threshold, "colluders": colluders},
        **learning.fields(),
    }
    update = stepping.fields()
    if plan is not None:
        by_a_person = stated_fields(stated(context))
        planned = read_plan(plan)
        fields |= {key: planned.fields[key] for key in fields if key not in by_a_person}
        update |= {key: planned.update[key] for key in planned.update if key not in by_a_person}
    request = Request(
        scenario=scenario,
        data=data,
        scheme=scheme,
        partition=partition,
        availability=availability,
        **fields,
        update=Update(**update),
        device=device or Request.device,
        evaluate_every=evaluate_every,
        split=split,
        download=download,
        out=out,
        resume=resume,
        seed=seed,
        threads=threads,
    )
    with stop_on_signals() as stop, _bar(request.iterations, quiet=as_json) as advance:
        results = run_request(request, note=warn, progress=advance, stopped=stop.is_set)
        results["report"] = _report(out, results)
    if as_json:
        print_json(results)
    else:
        _print_results(results)
    if stop.is_set():
        warn(f"stopped early; to continue, repeat the command with --resume --out {out}")
        raise typer.Exit(130)


@contextlib.contextmanager
def _bar(iterations: int, *, quiet: bool) -> Any:
    """Yield a function that shows a curve's progress, with steps per second and time left."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeRemainingColumn(), console=console, disable=quiet) as bar:
        task = bar.add_task("simulating", total=iterations)

        def advance(curve: Any) -> None:
            rate = curve.iterations / curve.seconds if curve.seconds else 0.0
            bar.update(task, completed=curve.iterations, description=f"{rate:.0f} steps/s")

        yield advance


def _report(out: Path, results: dict[str, Any]) -> str | None:
    from coinflower.report.simulation import report_simulation

    try:
        return str(report_simulation(out, results))
    except OSError as error:
        warn(f"the report could not be written into {out} ({error.strerror}).")
        return None


def _print_results(results: dict[str, Any]) -> None:
    from coinflower.learning.tasks.metrics import sentence

    if results["report"]:
        say(f"Report: {results['report']}")
    say(
        f"On the test part after {results['iterations']} iterations: "
        f"{sentence(results['metrics'])}; {results['steps_per_second']:.4g} steps/s"
    )
    if results["epsilon"] is None:
        say("NO PRIVACY: nothing is protected.", style="red")
        return
    say(
        f"σ = {number(results['sigma'])} by {results['scheme']}; ε = {number(results['epsilon'])} "
        f"at δ = {results['delta']:g} at most, by {results['analysis']}, for "
        f"{Unit(results['unit']).facts.protected}"
    )
