"""What an operator asks a SuperLink (Flower's Control API): runs and registered nodes."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from flwr.cli.build import build_fab_from_disk
from flwr.proto.control_pb2 import (
    ListNodesRequest,
    ListRunsRequest,
    RegisterNodeRequest,
    StartRunRequest,
    StopRunRequest,
    StreamLogsRequest,
    UnregisterNodeRequest,
)
from flwr.proto.fab_pb2 import Fab
from flwr.proto.federation_config_pb2 import SimulationConfig
from flwr.proto.node_pb2 import NodeInfo
from flwr.supercore.control import ControlHttpClient

from coinflower.flower_internals.connections import make_client, trust

_TIMEOUT_SECONDS = 30.0


@dataclass(frozen=True, kw_only=True)
class RunStatus:
    """Where a run is.

    Attributes:
        state: ``pending``, ``starting``, ``running`` or ``finished``.
        outcome: Of a finished run: ``completed``, ``failed`` or ``stopped``; otherwise empty.
        details: What Flower says about the outcome.
    """

    state: str
    outcome: str
    details: str

    @property
    def finished(self) -> bool:
        """Whether the run is over, well or not."""
        return self.state == "finished"

    @property
    def completed(self) -> bool:
        """Whether the run is over and its ServerApp returned normally."""
        return self.outcome == "completed"


class Control:
    """A connection to the Control API. A call that fails raises what httpx raises.

    Args:
        address: ``host:port`` of the SuperLink.
        root_certificates: PEM of the authority to trust; None speaks plain HTTP.
    """

    def __init__(self, address: str, root_certificates: bytes | None) -> None:
        insecure = root_certificates is None
        self._client = make_client(
            ControlHttpClient,
            f"{'http' if insecure else 'https'}://{address}",
            verify=False if insecure else trust(root_certificates),
            timeout=_TIMEOUT_SECONDS,
        )

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def start_run(self, app: Path, simulated_nodes: int | None) -> int | None:
        """Submit a run of the app in a directory; return its id, or None if it was refused."""
        content = build_fab_from_disk(app)
        request = StartRunRequest(
            fab=Fab(hash_str=hashlib.sha256(content).hexdigest(), content=content)
        )
        if simulated_nodes is not None:
            simulation = SimulationConfig(num_supernodes=simulated_nodes)
            request.override_federation_config.CopyFrom(simulation)
        response = self._client.StartRun(request)
        return response.run_id if response.HasField("run_id") else None

    def run_status(self, run_id: int) -> RunStatus:
        """Return where a run is now."""
        status = self._client.ListRuns(ListRunsRequest(run_id=run_id)).run_dict[run_id].status
        return RunStatus(
            state=status.status, outcome=status.sub_status, details=status.details.strip()
        )

    def run_log(self, run_id: int) -> str:
        """Return what a finished run's ServerApp wrote."""
        stream = self._client.StreamLogs(StreamLogsRequest(run_id=run_id))
        return "".join(part.log_output for part in stream)

    def stop_run(self, run_id: int) -> None:
        """Stop a run; its ServerApp process ends within its next heartbeat."""
        self._client.StopRun(StopRunRequest(run_id=run_id))

    def nodes(self) -> list[NodeInfo]:
        """Return all nodes that the SuperLink has ever known."""
        return list(self._client.ListNodes(ListNodesRequest()).nodes_info)

    def register_node(self, public_key: bytes, name: str = "") -> int:
        """Let a node in and return its id."""
        request = RegisterNodeRequest(public_key=public_key, name=name)
        return self._client.RegisterNode(request).node_id

    def unregister_node(self, node_id: int) -> None:
        """Keep a node out for as long as the SuperLink lives."""
        self._client.UnregisterNode(UnregisterNodeRequest(node_id=node_id))
