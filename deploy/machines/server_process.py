"""The ServerApp of ``coinflower server run``: the parameter server, and a log that is followed."""

from __future__ import annotations

from coinflower.deploy.core_dumps import forbid_core_dumps
from coinflower.deploy.machines.server_log import write_records
from coinflower.server import app as parameter_server

forbid_core_dumps()
write_records()

# Flower looks for a plain assignment.
app = parameter_server.app
