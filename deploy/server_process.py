"""The ServerApp of ``coinflower server run``: the parameter server, and a log that is followed."""

from __future__ import annotations

from deploy.core_dumps import forbid_core_dumps
from deploy.server_log import write_records
from server import app as parameter_server

forbid_core_dumps()
write_records()

# Flower looks for a plain assignment.
app = parameter_server.app
