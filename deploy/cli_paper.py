"""The command that redraws the paper's figures."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from deploy.cli_output import JsonFlag, print_json, say


def paper(
    out: Annotated[Path, typer.Option("--out", help="Folder for PNG, SVG and CSV files.")],
    points: Annotated[
        Path | None,
        typer.Option("--points", help="The paper's own points (figures.json); a copy is built in."),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Draw the paper's figures and its table of σ, with what really holds beside them.

    Curves named `paper` are the paper as plotted: not an upper bound. Takes half a minute.
    """
    from experiments.paper_drawing import draw_all

    drawn = []
    for name in draw_all(out, points):
        drawn.append(name)
        if not as_json:
            say(f"{out / name}.png, .svg, .csv")
    if as_json:
        print_json({"out": str(out), "figures": drawn})
