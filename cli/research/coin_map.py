"""The command that maps when a coin pays."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.progress import Progress

from coinflower.cli.output import JsonFlag, print_json
from coinflower.cli.research.paper import parse_counts, parse_numbers
from coinflower.deploy.terminal import console, say


def coin_map(
    out: Annotated[Path, typer.Option("--out", help="Folder for the map: PNG and CSV.")],
    rate: Annotated[float, typer.Option(help="Share of all records in a round, p·q.")] = 0.01,
    epsilon: Annotated[float, typer.Option(help="Privacy loss ε of all rounds.")] = 1.0,
    delta: Annotated[float, typer.Option(help="δ, strictly between 0 and 1.")] = 1e-5,
    rounds: Annotated[str, typer.Option(help="Numbers of rounds, comma-separated.")] = (
        "100,1000,10000"
    ),
    caps: Annotated[
        str, typer.Option(help="Caps in clip norms, comma-separated; inf for none.")
    ] = "inf,4,2,1",
    points: Annotated[int, typer.Option(help="Values along an axis.")] = 13,
    as_json: JsonFlag = False,
) -> None:
    """Draw when a coin pays: noise with p < 1 against p = 1 at the same batch, as a map."""
    from coinflower.experiments.studies.coin_map import CoinMap, Point, survey, write_map

    asked = CoinMap(
        rate=rate,
        epsilon=epsilon,
        delta=delta,
        rounds=parse_counts("rounds", rounds),
        caps=parse_numbers("caps", caps),
        points=points,
    )
    found: list[Point] = []
    with Progress(console=console, disable=as_json) as bar:
        task = bar.add_task("panels", total=None)
        for panels, part in survey(asked):
            found += part
            bar.update(task, advance=1, total=panels)
    paths = write_map(asked, found, out)
    if as_json:
        rows = [vars(point) for point in found]
        print_json({"files": [str(path) for path in paths], "points": rows})
    else:
        say(f"Written: {', '.join(str(path) for path in paths)}")
