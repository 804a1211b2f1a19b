"""Options that several programs on separate machines have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

DEFAULT_FOLDER = Path("superlink")
# Of what a client or a server writes, nothing is for others on its machine.
FOR_THE_OWNER_ONLY = 0o077

Folder = Annotated[
    Path, typer.Option(help="The server's folder, for logs, files and allowed keys.")
]
HealthPort = Annotated[
    int | None, typer.Option(help="Port of the gRPC health service (default: off).")
]
HealthHost = Annotated[str, typer.Option(help="Interface of the health service.")]
DrainSeconds = Annotated[
    float, typer.Option(help="Seconds to finish current work after a request to stop.")
]
