"""The ServerApp of ``coinflower server run``: the parameter server, and a log that is followed."""

from __future__ import annotations

from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from coinflower.deploy.core_dumps import forbid_core_dumps
from coinflower.deploy.machines.server_log import FILE, write_records
from coinflower.server import app as parameter_server

forbid_core_dumps()

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run one experiment, and keep its log beside its settings."""
    settings = Path(str(context.run_config[parameter_server.SETTINGS_KEY]))
    write_records(settings.with_name(FILE))
    parameter_server.main(grid, context)
