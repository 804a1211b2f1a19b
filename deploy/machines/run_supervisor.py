"""What a server does all day: who may join, which experiments run, whether all of it is alive."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from pathlib import Path

from coinflower.accounting.errors import UserError
from coinflower.deploy.errors import DeploymentError
from coinflower.deploy.flower.superlink import Superlink
from coinflower.deploy.gateway.config import largest_body
from coinflower.deploy.gateway.process import Gateway
from coinflower.deploy.machines.experiment import Experiment
from coinflower.deploy.machines.experiment_run import (
    ExperimentRun,
    RunInterruptedError,
    WriteReport,
    log_of,
    told_complete,
)
from coinflower.deploy.machines.node_registry import FOLDER, NodeAdmission, Registry
from coinflower.deploy.machines.queue import ExperimentQueue
from coinflower.deploy.machines.status_file import StatusFile
from coinflower.deploy.runs import RunFailedError
from coinflower.server.journal import read_metrics
from coinflower.server.settings import Settings
from coinflower.server.sole_use import is_in_use

logger = logging.getLogger("coinflower.server")

# Nobody waits for a look, and each costs the SuperLink two requests.
_LOOK_SECONDS = 1.0
_DRAIN_LOOK_SECONDS = 0.25
_STUCK_SECONDS = 20.0


class RunSupervisor:
    """Runs the experiments of a queue and follows them and all that they need.

    Args:
        folder: The server's folder, with its queue.
        superlink: A running SuperLink.
        door: The gateway before it, if there is one.
        address: Where nodes reach it.
        stay: Whether the server goes on when nothing is left in the queue.
        side_by_side: How many experiments may run at a time.
        main: Name of the experiment that the server was started with, if any; its failure is the
            server's, once nothing else is at work.
        write_report: Writes the report of a complete run and returns its file.
        passes: Bytes of the largest message that a gateway elsewhere lets pass; None if the gateway
            is this server's own, or there is none.
    """

    def __init__(
        self,
        folder: Path,
        superlink: Superlink,
        door: Gateway | None,
        address: str,
        *,
        stay: bool,
        side_by_side: int,
        main: str | None,
        write_report: WriteReport,
        passes: int | None = None,
    ) -> None:
        self._queue = ExperimentQueue(folder)
        self._known = self._queue.all()
        self._superlink = superlink
        self._door = door
        self._stay = stay
        self._side_by_side = side_by_side
        self._main = main
        self._write_report = write_report
        self._passes = passes
        self._admission: NodeAdmission | None = None
        if superlink.authenticates_nodes:
            self._admission = NodeAdmission(superlink, Registry(folder / FOLDER))
        self._runs: list[ExperimentRun] = []
        self._failures: dict[str, RunFailedError] = {}
        self._told_in_use: set[str] = set()
        self._told_unreadable = ""
        self._looked_at = time.monotonic()
        self.status_file = StatusFile(folder, address)
        self._look()
        logger.info("Serving at %s; waiting for clients.", address)

    def is_well(self) -> bool:
        """Return whether the SuperLink, the gateway and this supervisor are alive."""
        return (
            self._superlink.alive()
            and (self._door is None or self._door.alive())
            and time.monotonic() - self._looked_at < _STUCK_SECONDS
        )

    def follow(self, stop: threading.Event, drain_seconds: float) -> str | None:
        """Run what is in the queue until nothing is left, or until told to stop.

        Returns:
            How it ended, in a sentence. None if all experiments stopped between two rounds because
            a node that had been revoked is allowed again, for which the SuperLink must restart.

        Raises:
            DeploymentError: The run that the server was started with failed, or a part of the
                server ended.
        """
        self._begin_due()
        while not stop.wait(_LOOK_SECONDS):
            self._look()
            self._require_door()
            for run in list(self._runs):
                self._follow_run(run, drain_seconds)
            if self._shuts_out():
                longest = max((_round_limit(run.experiment) for run in self._runs), default=0.0)
                self._drain(longest + drain_seconds, stop)
                if not stop.is_set():
                    return None
                break
            self._begin_due()
            if self._is_done():
                break
        self._drain(drain_seconds, threading.Event())
        return self._ending()

    def _is_done(self) -> bool:
        """Return whether nothing runs or waits, and nothing is to be waited for."""
        if self._runs or any(one.is_due for one in self._known):
            return False
        return not self._stay or self._main in self._failures

    def _begin_due(self) -> None:
        """Begin what is next in the queue, as far as there is room."""
        for experiment in self._experiments():
            running = [run.experiment for run in self._runs]
            if not experiment.is_due or experiment.name in [one.name for one in running]:
                continue
            if len(running) >= self._side_by_side:
                return
            if not all(experiment.may_run_beside(one) for one in running):
                return  # it is next, and those behind it do not overtake
            if is_in_use(experiment.settings.state):
                self._tell_in_use(experiment)  # its process of before is about to end
                return
            self._begin(experiment)

    def _tell_in_use(self, experiment: Experiment) -> None:
        if experiment.name not in self._told_in_use:
            self._told_in_use.add(experiment.name)
            state = experiment.settings.state
            log_of(experiment.name).warning("Waits until no other process is at work in %s.", state)

    def _begin(self, experiment: Experiment) -> None:
        self._told_in_use.discard(experiment.name)
        try:
            experiment.require_state()
            self._open_door(largest_body(experiment.settings.terms), experiment.name)
            self._runs.append(ExperimentRun(experiment, self._superlink))
        except UserError as error:  # state, model or tracker are gone since it was submitted
            self._note_failure(experiment.name, RunFailedError(str(error)))
            return
        log_of(experiment.name).info("Begins after round %d.", self._runs[-1].last_round)
        self._look()

    def _open_door(self, body: int, name: str) -> None:
        """Let messages of that size pass; one that a gateway elsewhere stops is charged in vain."""
        if self._door is not None:
            self._door.let_pass(body)
        elif self._passes is not None and body > self._passes:
            raise UserError(
                f"Its messages have up to {body:,} bytes, and the gateway, which is not this "
                f"server's own, was set up for {self._passes:,}. Set it up again, together with "
                "this server (docker compose down, then docker compose up; on Kubernetes, restart "
                f"the pod); then: coinflower server resume {name}"
            )

    def _follow_run(self, run: ExperimentRun, drain_seconds: float) -> None:
        wanted = {one.name: one for one in self._experiments()}.get(run.experiment.name)
        if wanted is None or wanted.held:
            run.ask_to_stop(_round_limit(run.experiment) + drain_seconds)
        try:
            over = run.is_over()
            if run.last_round and not (wanted is None or wanted.begun):
                with contextlib.suppress(OSError, UserError):  # in vain now, and tried again
                    self._queue.note_begun(wanted.name)
            if not over:
                return
        except RunInterruptedError as error:
            if run.progressed:
                log_of(run.experiment.name).warning("Its process ended; it goes on with the next.")
            else:  # or it might be started and killed for ever
                self._note_failure(run.experiment.name, error)
        except RunFailedError as error:
            self._note_failure(run.experiment.name, error)
        except UserError as error:  # a file of its own is damaged
            run.cut_short()
            self._note_failure(run.experiment.name, RunFailedError(str(error)))
        self._runs.remove(run)
        run.close()
        self._tell_end(run.experiment, run.last_round)

    def _tell_end(self, experiment: Experiment, last_round: int) -> None:
        log = log_of(experiment.name)
        if experiment.is_finished:
            stays = " Nodes may stay until the server is stopped." if self._stay else ""
            log.info("%s%s", told_complete(experiment.settings, self._write_report), stays)
        elif experiment.name not in self._failures:
            log.info("Stopped after round %d of %d.", last_round, experiment.settings.terms.rounds)

    def _note_failure(self, name: str, error: RunFailedError) -> None:
        log_of(name).error("Failed: %s", error)
        self._failures[name] = error
        self._queue.note_failure(name, str(error))

    def _experiments(self) -> list[Experiment]:
        """Return the queue; one that somebody damaged must not end what runs."""
        try:
            self._known = self._queue.all()
            self._told_unreadable = ""
        except (OSError, ValueError) as error:
            self._tell_unreadable(str(error))
        for one in self._known:
            if one.is_due:
                self._failures.pop(one.name, None)  # was released
        return self._known

    def _tell_unreadable(self, why: str) -> None:
        if why != self._told_unreadable:
            logger.error("The queue cannot be read, so nothing in it begins or stops: %s", why)
            self._told_unreadable = why

    def _ending(self) -> str:
        if self._main is None:
            return "Stopped; what was at work goes on when the server starts again."
        if self._main in self._failures:
            raise self._failures[self._main]
        (main,) = [one for one in self._experiments() if one.name == self._main]
        if main.is_finished:
            return told_complete(main.settings, self._write_report)
        again = f"coinflower server resume {main.name}" if main.held else "--resume"
        last, rounds = _last_round(main.settings), main.settings.terms.rounds
        return f"Stopped after round {last} of {rounds}; continue with {again}."

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
        """End all runs between two rounds; in mid-round after so many seconds, or in a hurry."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            busy = [run for run in self._runs if run.in_round]
            for run in busy:
                run.ask_to_stop(seconds)
            if not busy or hurry.wait(_DRAIN_LOOK_SECONDS):
                break
            self._look()
        for run in self._runs:
            run.cut_short()
            run.close()
        self._runs.clear()

    def _look(self) -> None:
        nodes = {} if self._admission is None else self._admission.apply()
        online = sum(nodes.values()) if nodes else len(self._superlink.online_nodes())
        self.status_file.note(nodes, online, [run.experiment.name for run in self._runs])
        self._looked_at = time.monotonic()

    def _require_door(self) -> None:
        if self._door is not None and not self._door.alive():
            raise DeploymentError(self._door.last_log_lines())


def _round_limit(experiment: Experiment) -> float:
    """Return how long a round may take, about."""
    return experiment.settings.reply_seconds + (experiment.settings.round_seconds or 0.0)


def _last_round(settings: Settings) -> int:
    rows = read_metrics(settings.state)
    return rows[-1]["round"] if rows else 0
