"""A server on a machine of its own: SuperLink, gateway, the run, and what others see of them."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from deploy.errors import DeploymentError
from deploy.gateway_process import Gateway, find_nginx, gateway, listen_address
from deploy.health import HealthServer
from deploy.keys import (
    CA_CERTIFICATE,
    SERVER_CERTIFICATE,
    SERVER_KEY,
    SOON,
    require_server_files,
)
from deploy.local_run import RunFailedError, is_alive
from deploy.prometheus import metrics_server
from deploy.registry import FOLDER, Doorkeeper, Registry
from deploy.run_app import write_app
from deploy.standing import SETTINGS, Board
from deploy.superlink import LOOPBACK, Superlink, TlsFiles
from server.journal import STATUS, ask_to_stop, read_metrics, read_status
from server.settings import Settings, load_settings, save_settings

logger = logging.getLogger("coinflower.server")

_LOOK_SECONDS = 0.5
_STUCK_SECONDS = 20.0


@dataclass(frozen=True, kw_only=True)
class ServerPlan:
    """What `coinflower server run` is asked for.

    Attributes:
        settings: Settings of the run.
        folder: For the SuperLink's files, logs and the keys of nodes that may join.
        keys: Folder with the server's certificate; None is plain HTTP on loopback.
        listen: ``host:port`` of the gateway; None has none.
        host: Interface of the SuperLink.
        port: Port of the SuperLink.
        resume: Go on from the checkpoint.
        health_port: Local port of the gRPC health protocol; None has none.
        metrics_host: Interface of the metrics.
        metrics_port: Their port; None has none.
        drain_seconds: How long a round may go on when the server is told to stop.
    """

    settings: Path
    folder: Path
    keys: Path | None = None
    listen: str | None = None
    host: str = LOOPBACK
    port: int = 8000
    resume: bool = False
    health_port: int | None = None
    metrics_host: str = LOOPBACK
    metrics_port: int | None = None
    drain_seconds: float = 10.0

    def __post_init__(self) -> None:
        """Check what can be checked without starting anything."""
        if self.keys is None and (self.listen is not None or self.host != LOOPBACK):
            raise ValueError(
                "Without --keys the server speaks plain HTTP, on this machine's loopback only."
            )
        if self.listen is not None:
            listen_address(self.listen)
            find_nginx()


def serve(plan: ServerPlan, stop: threading.Event) -> str:
    """Serve until the run is over or ``stop`` is set; returns how it ended, in a sentence.

    Raises:
        ValueError: Settings or keys cannot be used.
        DeploymentError: A part could not be started or ended, or the run failed.
    """
    settings = load_settings(plan.settings)
    settings = replace(settings, resume=True) if plan.resume else settings
    tls = None if plan.keys is None else _tls_files(plan.keys)
    folder = plan.folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    save_settings(settings, folder / SETTINGS)
    (settings.state / STATUS).unlink(missing_ok=True)  # speaks of the process before
    with _superlink(plan, folder, tls) as (superlink, door, address):
        watch = _Watch(settings, folder, superlink, door, address)
        metrics = metrics_server(settings, folder, host=plan.metrics_host, port=plan.metrics_port)
        with metrics, HealthServer(plan.health_port, watch.is_well):
            try:
                return watch.follow(stop, plan.drain_seconds)
            except DeploymentError as error:
                watch.board.note_error(str(error))
                raise


def _tls_files(keys: Path) -> TlsFiles:
    item = require_server_files(keys)
    assert item.expires is not None
    left = item.expires - datetime.now(UTC)
    if left < SOON:
        logger.warning(
            "The server's certificate expires in %d days; renew it: coinflower keys server %s",
            left.days,
            keys,
        )
    return TlsFiles(
        ca=keys / CA_CERTIFICATE, certificate=keys / SERVER_CERTIFICATE, key=keys / SERVER_KEY
    )


@contextlib.contextmanager
def _superlink(
    plan: ServerPlan, folder: Path, tls: TlsFiles | None
) -> Iterator[tuple[Superlink, Gateway | None, str]]:
    """Run the SuperLink, and the gateway before it if there is to be one."""
    started = Superlink(
        folder, port=plan.port, host=plan.host, tls=tls, authenticate_nodes=tls is not None
    )
    with started as superlink:
        if plan.listen is None or tls is None:
            yield superlink, None, superlink.address
            return
        with gateway(folder, listen=plan.listen, tls=tls, upstream=superlink.address) as door:
            yield superlink, door, plan.listen


class _Watch:
    """Follows a run and all that it needs."""

    def __init__(
        self,
        settings: Settings,
        folder: Path,
        superlink: Superlink,
        door: Gateway | None,
        address: str,
    ) -> None:
        self._settings = settings
        self._superlink = superlink
        self._door = door
        self._doorkeeper: Doorkeeper | None = None
        if superlink.authenticates_nodes:
            self._doorkeeper = Doorkeeper(superlink, Registry(folder / FOLDER))
        self._seen = len(read_metrics(settings.state))
        self._looked_at = time.monotonic()
        self.board = Board(folder, address)
        app = write_app(
            folder / "app",
            serverapp="server.app:app",
            clientapp="client.app:app",
            config={"settings": str(folder / SETTINGS)},
        )
        self._look()
        self._run_id = superlink.start_run(app)
        logger.info("Serving at %s; waiting for clients.", address)

    def is_well(self) -> bool:
        """Whether the SuperLink, the gateway and the run are alive."""
        return (
            self._superlink.alive()
            and (self._door is None or self._door.alive())
            and time.monotonic() - self._looked_at < _STUCK_SECONDS
        )

    def follow(self, stop: threading.Event, drain_seconds: float) -> str:
        """Return when the run is over, or was told to stop and has."""
        while not stop.is_set():
            status = self._superlink.wait(self._run_id, timeout=_LOOK_SECONDS, stop=stop)
            self._look()
            if status.completed:
                return f"The run is complete: {self._settings.state}"
            if status.finished:
                raise self._failure(status.details)
            self._require_alive()
        return self._drain(drain_seconds)

    def _drain(self, seconds: float) -> str:
        state = self._settings.state
        if read_status(state).get("state") == "running":
            logger.info("Stopping after this round, or in %g s.", seconds)
            ask_to_stop(state)
            self._superlink.wait(self._run_id, timeout=seconds)
        if not self._superlink.status(self._run_id).finished:
            self._superlink.stop_run(self._run_id)
        self._tell_rounds()
        rounds = read_metrics(state)
        last = rounds[-1]["round"] if rounds else 0
        return f"Stopped after round {last} of {self._settings.terms.rounds}; go on with --resume."

    def _look(self) -> None:
        nodes = {} if self._doorkeeper is None else self._doorkeeper.apply()
        online = sum(nodes.values()) if nodes else len(self._superlink.online_nodes())
        self.board.note_nodes(nodes, online)
        self._tell_rounds()
        self._looked_at = time.monotonic()

    def _tell_rounds(self) -> None:
        rounds = read_metrics(self._settings.state)
        for row in rounds[self._seen :]:
            accuracy = row["accuracy"]
            logger.info(
                "Round %d of %d: %d of %d available clients took part, %d answered, %.1f s%s",
                row["round"],
                self._settings.terms.rounds,
                row["participants"],
                row["available"],
                row["answered"],
                row["seconds"],
                "" if accuracy is None else f", accuracy {accuracy:.1%}",
            )
        self._seen = len(rounds)

    def _require_alive(self) -> None:
        if self._door is not None and not self._door.alive():
            raise DeploymentError(self._door.obituary())
        state = read_status(self._settings.state)
        if state.get("state") in ("waiting", "running") and not is_alive(state["pid"]):
            # Flower would notice only after a minute without heartbeat.
            raise RunFailedError("The server's process ended in mid-run; go on with --resume.")

    def _failure(self, details: str) -> RunFailedError:
        told = read_status(self._settings.state).get("message")
        return RunFailedError(told or details or f"See {self._superlink.log_file}.")
