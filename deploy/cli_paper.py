"""The command that redraws the paper's figures."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.progress import track

from deploy.cli_output import console


def paper(
    out: Annotated[Path, typer.Option("--out", help="Folder for PNG, SVG and CSV files.")],
    points: Annotated[
        Path | None,
        typer.Option("--points", help="The paper's own points (figures.json); a copy is built in."),
    ] = None,
) -> None:
    """Draw the paper's figures and its table of σ, with what really holds beside them.

    Curves named `paper` are the paper as plotted: not an upper bound.
    """
    from experiments.paper_figures import FIGURES, draw_all

    drawn = draw_all(out, points)
    for name in track(drawn, description="Drawing", total=len(FIGURES) + 1, console=console):
        console.print(f"{out / name}.png", highlight=False)
