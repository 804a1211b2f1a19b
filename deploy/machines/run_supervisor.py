"""Following a run on a SuperLink: who may join, how far it is, whether all of it is alive."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path

from coinflower.deploy.errors import DeploymentError
from coinflower.deploy.flower.run_app import write_app
from coinflower.deploy.flower.superlink import Superlink
from coinflower.deploy.gateway.process import Gateway
from coinflower.deploy.machines.node_registry import FOLDER, NodeAdmission, Registry
from coinflower.deploy.machines.server_log import FILE as RECORDS
from coinflower.deploy.machines.server_log import Relay
from coinflower.deploy.machines.status_file import SETTINGS, StatusFile
from coinflower.deploy.runs import failure, require_alive
from coinflower.learning.tasks.metrics import brief
from coinflower.server.journal import MetricsReader, ask_to_stop, metrics_of, read_status
from coinflower.server.settings import Settings

logger = logging.getLogger("coinflower.server")

# Nobody waits for a look, and each costs the SuperLink two requests.
_LOOK_SECONDS = 1.0
_DRAIN_LOOK_SECONDS = 0.25
_STUCK_SECONDS = 20.0


class RunSupervisor:
    """Starts a run and follows it and all that it needs.

    Args:
        settings: Settings of the run.
        folder: The server's folder.
        superlink: A running SuperLink.
        door: The gateway before it, if there is one.
        address: Where nodes reach it.
        stay: Whether nodes stay welcome once the run is complete.
        write_report: Writes the report of a complete run and returns its file.
    """

    def __init__(
        self,
        settings: Settings,
        folder: Path,
        superlink: Superlink,
        door: Gateway | None,
        address: str,
        *,
        stay: bool,
        write_report: Callable[[Settings], Path],
    ) -> None:
        self._settings = settings
        self._superlink = superlink
        self._door = door
        self._stay = stay
        self._write_report = write_report
        self._admission: NodeAdmission | None = None
        if superlink.authenticates_nodes:
            self._admission = NodeAdmission(superlink, Registry(folder / FOLDER))
        self._metrics = MetricsReader(settings.state)
        self._metrics.read_new()  # rounds of an earlier start were told then
        self._looked_at = time.monotonic()
        self._relay = Relay(folder / RECORDS)
        self.status_file = StatusFile(folder, address)
        app = write_app(
            folder / "app",
            serverapp="coinflower.deploy.machines.server_process:app",
            clientapp="coinflower.client.app:app",
            config={"settings": str(folder / SETTINGS)},
        )
        self._look()
        self._run_id = superlink.start_run(app)
        logger.info("Serving at %s; waiting for clients.", address)

    def is_well(self) -> bool:
        """Return whether the SuperLink, the gateway and the run are alive."""
        return (
            self._superlink.alive()
            and (self._door is None or self._door.alive())
            and time.monotonic() - self._looked_at < _STUCK_SECONDS
        )

    def follow(self, stop: threading.Event, drain_seconds: float) -> str | None:
        """Follow the run until it is over, or has stopped because it was told to.

        Returns:
            How it ended, in a sentence. None if it stopped between two rounds because a node that
            had been revoked is allowed again, for which the SuperLink must restart.

        Raises:
            DeploymentError: The run failed, or a part of the server ended.
        """
        complete = False
        while not stop.wait(_LOOK_SECONDS):
            status = self._superlink.status(self._run_id)
            self._look()
            if status.completed and not complete:
                complete = True
                if not self._stay:
                    break
                logger.info("%s Nodes may stay until the server is stopped.", self._complete())
            if status.finished and not complete:
                raise failure(
                    read_status(self._settings.state), status.details, self._superlink.log_file
                )
            self._require_alive()
            if self._shuts_out():
                self._drain(self._settings.reply_seconds + drain_seconds, stop)
                if not stop.is_set():
                    return None
        if not complete:
            self._drain(drain_seconds, threading.Event())
        if complete or read_status(self._settings.state).get("state") == "finished":
            return self._complete()
        self._metrics.read_new()
        rounds = self._metrics.rows
        last = rounds[-1]["round"] if rounds else 0
        return (
            f"Stopped after round {last} of {self._settings.terms.rounds}; continue with --resume."
        )

    def _complete(self) -> str:
        told = f"The run is complete: {self._settings.state}."
        try:
            return f"{told} Report: {self._write_report(self._settings)}"
        except OSError as error:
            return f"{told} Its report could not be written ({error.strerror})."

    def _shuts_out(self) -> bool:
        names = [] if self._admission is None else self._admission.shut_out
        if names:
            logger.warning(
                "%s may join again; the SuperLink restarts after this round, because it "
                "never takes a key back.",
                ", ".join(names),
            )
        return bool(names)

    def _drain(self, seconds: float, hurry: threading.Event) -> None:
        """End the run between two rounds; in mid-round after so many seconds, or in a hurry."""
        state = self._settings.state
        if read_status(state).get("state") == "running":
            logger.info("Stopping after this round, or in %g s.", seconds)
            ask_to_stop(state)
            deadline = time.monotonic() + seconds
            while time.monotonic() < deadline and not hurry.wait(_DRAIN_LOOK_SECONDS):
                if self._superlink.status(self._run_id).finished:
                    break
                self._look()
        if not self._superlink.status(self._run_id).finished:
            self._superlink.stop_run(self._run_id)
        self._tell()

    def _look(self) -> None:
        nodes = {} if self._admission is None else self._admission.apply()
        online = sum(nodes.values()) if nodes else len(self._superlink.online_nodes())
        self.status_file.note_nodes(nodes, online)
        self._tell()
        self._looked_at = time.monotonic()

    def _tell(self) -> None:
        self._relay.tell()
        for row in self._metrics.read_new():
            metrics = metrics_of(row)
            logger.info(
                "Round %d of %d: %d of %d available clients %s, %d answered, %.1f s%s",
                row["round"],
                self._settings.terms.rounds,
                row["participants"],
                row["available"],
                "were asked" if self._settings.terms.mode.answers_always else "took part",
                row["answered"],
                row["seconds"],
                f", {brief(metrics)}" if metrics else "",
            )

    def _require_alive(self) -> None:
        if self._door is not None and not self._door.alive():
            raise DeploymentError(self._door.last_log_lines())
        require_alive(read_status(self._settings.state), again="--resume.")
