"""Options that say where data comes from and who holds it, alike in several commands."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Schema = Annotated[
    Path | None,
    typer.Option(help="Schema of the tables in --data, a TOML file (coinflower data schema)."),
]
UnitName = Annotated[
    str,
    typer.Option("--unit", help="What ε protects: record, or person with all of its records."),
]
Download = Annotated[
    bool, typer.Option("--download", help="Fetch mnist, cifar10 and their like if missing.")
]
Partition = Annotated[
    str,
    typer.Option(help="How data is divided: equal, writer, dirichlet, or files: one client each."),
]
