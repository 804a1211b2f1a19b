"""The command that asks a federation for statistics of its tables."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from coinflower.accounting.rounding import rounded_up
from coinflower.cli.options.sources import Partition, Schema, UnitName
from coinflower.cli.output import JsonFlag, number, print_json, print_table
from coinflower.deploy.signals import stop_on_signals
from coinflower.deploy.terminal import say, warn
from coinflower.protocol.modes import PRIVATE_MODES, parse_mode
from coinflower.protocol.unit import Unit, parse_unit

_CLIENTS = 4


def statistics(
    data: Annotated[str, typer.Option(help="A .csv or .parquet file, or a folder of them.")],
    schema: Schema,
    mean: Annotated[
        list[str] | None, typer.Option(help="A column of numbers whose mean is asked for.")
    ] = None,
    histogram: Annotated[
        list[str] | None,
        typer.Option(help="A column whose values are counted; numbers also give quantiles."),
    ] = None,
    bins: Annotated[int, typer.Option(help="Bins that the range of a number is cut into.")] = 20,
    clients: Annotated[
        int | None, typer.Option(help="Number of clients (default: 4, or one for each file).")
    ] = None,
    partition: Partition = "equal",
    unit: UnitName = "record",
    mode: Annotated[str, typer.Option(help=f"{', '.join(PRIVATE_MODES)}.")] = "local-only",
    p: Annotated[
        float | None,
        typer.Option("-p", help="Participation probability p (default: 0.5; 1 in local-only)."),
    ] = None,
    q: Annotated[float, typer.Option("-q", help="Local sampling rate q.")] = 1.0,
    epsilon: Annotated[float, typer.Option(help="Privacy budget of each client.")] = 1.0,
    delta: Annotated[float, typer.Option(help="δ of the budget.")] = 1e-3,
    out: Annotated[
        Path | None, typer.Option(help="Folder for results (default: a new one in runs/).")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Seed all randomness. INSECURE: for tests only.")
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Ask clients for counts, means and quantiles of columns, with noise and for a price."""
    from coinflower.deploy.local.local_run import run_cluster
    from coinflower.deploy.local.local_statistics import prepare_statistics, statistics_results
    from coinflower.deploy.local.plan import Plan
    from coinflower.protocol.query import Query, QueryKind

    chosen = parse_mode(mode)
    plan = Plan(
        clients=_CLIENTS if clients is None and partition != "files" else clients,
        data=data,
        schema=schema,
        how=partition,
        unit=parse_unit(unit),
        mode=chosen,
        p=chosen.usual_p if p is None else p,
        q=q,
        epsilon=epsilon,
        delta=delta,
        rounds=1,
        rounds_per_invitation=1,
        insecure_seed=seed,
    )
    query = Query(
        kind=QueryKind.STATISTICS,
        means=tuple(mean or ()),
        histograms=tuple(histogram or ()),
        bins=bins,
    )
    cluster = prepare_statistics(plan, query, out)
    if cluster.insecure:
        warn("INSECURE: coins, samples and noise are seeded; nothing is protected.")
    with stop_on_signals() as stop:
        run_cluster(cluster, stop=stop, progress=lambda *_: None)
    results = statistics_results(cluster)
    if as_json:
        print_json(results)
        return
    for column, found in results["columns"].items():
        _print_column(column, found)
    say(
        f"ε = {rounded_up(results['epsilon'])} at δ = {results['delta']:g} for the client that "
        f"lost most, at σ = {number(results['sigma'])}. "
        f"It is for {Unit(results['unit']).facts.protected}."
    )
    say(f"Results, ledgers and policies: {results['out']}")


def _print_column(column: str, found: dict[str, Any]) -> None:
    """Print what is known of a column; ± is two standard errors."""
    rows: list[list[Any]] = []
    if "mean" in found:
        rows.append(["mean", _with_error(found["mean"])])
    for name, figure in found.get("counts", {}).items():
        rows.append([name, _with_error(figure)])
    histogram = found.get("histogram", {})
    for level, figure in histogram.get("quantiles", {}).items():
        told = "too much noise"
        if figure["value"] is not None:
            told = f"{figure['value']:.4g} ({figure['low']:.4g} to {figure['high']:.4g})"
        rows.append([f"{float(level):.0%} lie below", told])
    if "missing" in histogram:
        rows.append(["missing", _with_error(histogram["missing"])])
    print_table(column, ["", "± two standard errors"], rows)


def _with_error(figure: dict[str, float | None]) -> str:
    value, error = figure["value"], figure["standard_error"]
    if value is None or error is None:
        return "too much noise"
    return f"{value:.4g} ± {2 * error:.2g}"
