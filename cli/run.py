"""The command that trains with a federation on this machine."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Annotated, Any, Literal, cast, get_args

import click
import typer

from coinflower.accounting.errors import UserError
from coinflower.accounting.rounding import rounded_up
from coinflower.cli.options.bundles import bundling
from coinflower.cli.options.learning import LearningOptions
from coinflower.cli.options.masked import Colluders, Threshold
from coinflower.cli.options.model import DeviceOption
from coinflower.cli.options.sources import Download, Partition
from coinflower.cli.options.update import UpdateOptions
from coinflower.cli.output import JsonFlag, number, print_json, print_table
from coinflower.cli.privacy import Cap
from coinflower.cli.stated import refuse_beside
from coinflower.deploy.signals import stop_on_signals
from coinflower.deploy.terminal import console, say, warn
from coinflower.protocol.modes import Mode, parse_mode
from coinflower.protocol.query import MetricName
from coinflower.protocol.unit import Unit
from coinflower.protocol.usual import usual_rounds_per_invitation

_CLIENTS, _EPSILON, _DELTA = 10, 3.0, 1e-3
# With --resume: how the run is played here and now, not what it is.
# Hidden names of the kinds of --nodes.
_OLDER_NODES = ("processes", "stock_nodes", "ray")
_BESIDE_RESUME = ("resume", "no_privacy", "port", "nodes", *_OLDER_NODES, "as_json")


@bundling
def run(
    context: typer.Context,
    *,
    clients: Annotated[
        int | None, typer.Option(help="Number of clients (default: 10, or one for each file).")
    ] = None,
    data: Annotated[
        str,
        typer.Option(help="digits, mnist, cifar10, …, a folder, a .csv, .parquet or .npz file."),
    ] = "digits",
    download: Download = False,
    learning: LearningOptions,
    partition: Partition = "equal",
    alpha: Annotated[
        float,
        typer.Option(help="Concentration of the Dirichlet partition; smaller is more skewed."),
    ] = 0.5,
    mode: Annotated[str, typer.Option(help=f"{', '.join(Mode)}.")] = "trusted",
    no_privacy: Annotated[
        bool, typer.Option("--no-privacy", help="Required for mode none, which protects nothing.")
    ] = False,
    p: Annotated[
        float | None,
        typer.Option("-p", help="Participation probability p (default: 0.5; 1 in local-only)."),
    ] = None,
    q: Annotated[float, typer.Option("-q", help="Local sampling rate q.")] = 0.2,
    clip_norm: Annotated[float, typer.Option(help="Clip norm C; inf only without privacy.")] = 1.0,
    cap: Cap = math.inf,
    sigma: Annotated[
        float | None, typer.Option(help="Noise multiplier σ (default: calibrated to --epsilon).")
    ] = None,
    epsilon: Annotated[
        float | None,
        typer.Option(help="Privacy budget of each client (default: 3; with --sigma, its cost)."),
    ] = None,
    delta: Annotated[float | None, typer.Option(help="δ of the budget (default: 1e-3).")] = None,
    rounds: Annotated[int, typer.Option(help="Number of rounds.")] = 100,
    rounds_per_invite: Annotated[
        int | None, typer.Option(help="Coins per invitation (default: 10, or all rounds if fewer).")
    ] = None,
    device: DeviceOption = None,
    stepping: UpdateOptions,
    evaluate_every: Annotated[int, typer.Option(help="Rounds between evaluations.")] = 5,
    evaluation_epsilon: Annotated[
        float | None,
        typer.Option(
            help="Measure the model on clients' own records, too, for so much of their ε."
        ),
    ] = None,
    evaluation_metric: Annotated[
        list[str] | None,
        typer.Option(
            click_type=click.Choice(get_args(MetricName)),
            help="What that measures; several make the noise on each larger (default: one).",
        ),
    ] = None,
    poll_seconds: Annotated[
        float, typer.Option(help="Seconds between the server's polls for replies.")
    ] = 0.05,
    round_seconds: Annotated[
        float | None,
        typer.Option(help="Start a round every N seconds; late answers are dropped."),
    ] = None,
    download_precision: Annotated[
        Literal["single", "half"],
        typer.Option(
            click_type=click.Choice(["single", "half"]),
            help="How exactly clients are told the model; half makes the download half as long.",
        ),
    ] = "single",
    tracker: Annotated[
        list[str] | None,
        typer.Option(
            click_type=click.Choice(["tensorboard", "mlflow"]),
            help="Also show the figures of rounds in TensorBoard or MLflow.",
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for results (default: a new one in runs/).")
    ] = None,
    threshold: Threshold = None,
    colluders: Colluders = None,
    resume: Annotated[
        Path | None, typer.Option(help="Continue the run in this folder, on its original terms.")
    ] = None,
    port: Annotated[
        int | None, typer.Option(help="Port of the SuperLink (default: a free one).")
    ] = None,
    nodes: Annotated[
        str,
        typer.Option(
            click_type=click.Choice(["threads", "processes", "ray", "stock"]),
            help="How the clients run: threads, processes, Flower's simulation engine (ray) or "
            "stock Flower SuperNodes.",
        ),
    ] = "threads",
    processes: Annotated[
        bool, typer.Option("--processes", hidden=True, help="--nodes processes.")
    ] = False,
    stock_nodes: Annotated[
        bool, typer.Option("--stock-nodes", hidden=True, help="--nodes stock.")
    ] = False,
    ray: Annotated[bool, typer.Option("--ray", hidden=True, help="--nodes ray.")] = False,
    seed: Annotated[
        int | None, typer.Option(help="Seed all randomness. INSECURE: for tests only.")
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Train with a real local federation: a SuperLink, clients with ledgers, and a server."""
    from coinflower.cli.live_view import LiveView
    from coinflower.deploy.local.cluster import prepare
    from coinflower.deploy.local.local_run import collect_results, reopen, run_cluster
    from coinflower.deploy.local.nodes import NodeKind, require_ray
    from coinflower.deploy.local.plan import Plan
    from coinflower.deploy.trackers.following import tracked
    from coinflower.report.run import report_local_run
    from coinflower.server.settings import TrackerName, load_settings

    chosen = parse_mode(mode)
    if not chosen.is_private and not no_privacy and resume is None:
        raise UserError("Mode none protects nothing; add --no-privacy to run it anyway.")
    if not chosen.is_private and resume is None:
        _refuse_limits_without_privacy(sigma=sigma, epsilon=epsilon, delta=delta)
    older = {"processes": processes, "stock": stock_nodes, "ray": ray, nodes: nodes != "threads"}
    kind = NodeKind(_only([kind for kind, asked in older.items() if asked]))
    if kind is NodeKind.SIMULATED:
        require_ray()
    started = time.monotonic()
    if resume is not None:
        why = "continues with the terms, policies and ledgers that the run began with"
        refuse_beside(context, "--resume", allowed=_BESIDE_RESUME, why=why)
        cluster = reopen(resume)
    else:
        plan = Plan(
            clients=_CLIENTS if clients is None and partition != "files" else clients,
            data=data,
            download=download,
            how=partition,
            alpha=alpha,
            mode=chosen,
            p=chosen.usual_p if p is None else p,
            q=q,
            clip_norm=clip_norm,
            cap=cap,
            sigma=sigma,
            epsilon=_EPSILON if epsilon is None and sigma is None else epsilon,
            delta=_DELTA if delta is None else delta,
            rounds=rounds,
            rounds_per_invitation=(
                usual_rounds_per_invitation(rounds)
                if rounds_per_invite is None
                else rounds_per_invite
            ),
            **learning.fields(),
            device=device or Plan.device,
            update=stepping.update(),
            evaluate_every=evaluate_every,
            evaluation_epsilon=evaluation_epsilon,
            evaluation_metrics=tuple(cast(list[MetricName], evaluation_metric or [])),
            poll_seconds=poll_seconds,
            round_seconds=round_seconds,
            download_precision=download_precision,
            trackers=tuple(map(TrackerName, tracker or ())),
            insecure_seed=seed,
            threshold=threshold,
            colluders=colluders,
            waits_for_all=kind is NodeKind.SIMULATED,
        )
        cluster = prepare(plan, out)
    _announce(cluster.terms.mode, insecure=cluster.insecure)
    troubles: list[str] = []
    with stop_on_signals() as stop:
        try:
            tracking = tracked(load_settings(cluster.settings), troubles.append)
            with tracking, LiveView(cluster, console, quiet=as_json) as view:
                died = run_cluster(cluster, kind=kind, port=port, stop=stop, progress=view.update)
        finally:
            results = collect_results(cluster, started)
        interrupted = stop.is_set()
        results["died"] = died
        results["report"] = str(report_local_run(cluster))
    if as_json:
        print_json(results)
    else:
        _print_results(results)
    for trouble in troubles:
        warn(trouble)
    for client in died:
        warn(f"{client} died before the run was over.")
    if interrupted:
        warn(f"stopped early; continue with: coinflower run --resume {cluster.folder}")
        raise typer.Exit(130)


def _only(wanted: list[str]) -> str:
    """Return the one kind of nodes that was asked for, or the usual one."""
    if len(wanted) > 1:
        raise UserError(f"Choose one kind of --nodes, not {' and '.join(wanted)}.")
    return wanted[0] if wanted else "threads"


def _refuse_limits_without_privacy(**limits: float | None) -> None:
    """Refuse limits that mode none would not keep."""
    given = [f"--{name} {value:g}" for name, value in limits.items() if value is not None]
    if given:
        raise UserError(
            f"Mode none adds no noise and keeps no budget, so it cannot honour {', '.join(given)}; "
            "leave that out, or choose another mode."
        )


def _announce(mode: Mode, *, insecure: bool) -> None:
    if not mode.is_private:
        warn("NO PRIVACY: mode none protects nothing and charges nothing.")
    if insecure:
        warn("INSECURE: coins, samples and noise are seeded; nothing is protected.")


def _print_results(results: dict[str, Any]) -> None:
    from coinflower.learning.tasks.metrics import sentence

    budget = "–" if not results["private"] else None
    print_table(
        f"Clients after {results['rounds']} rounds (mode {results['mode']})",
        ["client", f"{results['unit']}s", "ε spent", "of budget", "rounds charged", "taken part"],
        [
            [
                row["client"],
                row["samples"],
                row["epsilon"] if results["private"] else "no privacy",
                budget or row["budget"],
                row["charged_rounds"],
                row["participated_rounds"],
            ]
            for row in results["clients"]
        ],
    )
    cap = "" if results["cap"] is None else f", cap = {results['cap']:g}"
    say(
        f"On the public test set: {sentence(results['metrics'])}   "
        f"σ = {number(results['sigma'])}{cap}, δ = {results['delta']:g}, "
        f"{results['seconds']:.0f} s"
    )
    if "evaluation" in results:
        _print_evaluation(results["evaluation"])
    if results["private"]:
        say(f"ε is for {Unit(results['unit']).facts.protected}.")
    if "notary" in results:
        _print_notary(results["notary"])
    if results["insecure"]:
        say("INSECURE: this run was seeded; it protects nothing.", style="red")
    if not results["private"]:
        say("NO PRIVACY: this run protects nothing.", style="red")
    say(f"Results, model, ledgers and policies: {results['out']}")
    say(f"Report: {results['report']}")


def _print_evaluation(evaluation: dict[str, Any]) -> None:
    from coinflower.learning.tasks.metrics import private_sentence

    found = private_sentence(evaluation["metrics"]) or "not measured"
    say(
        f"On clients' own records: {found} (two standard errors). {evaluation['times']} "
        f"evaluations cost ε = {rounded_up(evaluation['epsilon'])} on their own, at "
        f"σ = {number(evaluation['sigma'])}."
    )


def _print_notary(notary: dict[str, Any]) -> None:
    fewest = notary["fewest_clients"]
    over = "" if fewest is None else f", over {fewest} clients or more"
    say(
        f"The notary opened {notary['rounds_opened']} sums{over}; at least "
        f"{notary['threshold']} must answer, and up to {notary['colluders']} of them may collude."
    )
