"""Options of mode masked, shared by the commands that train."""

from __future__ import annotations

from typing import Annotated

import typer

Threshold = Annotated[
    int | None,
    typer.Option(
        help="Fewest clients of a sum that is opened, in mode masked (default: all but a fifth)."
    ),
]
Colluders = Annotated[
    int | None,
    typer.Option(help="How many of them may collude with the server (default: a tenth of all)."),
]
