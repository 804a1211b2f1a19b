"""One experiment of a server, while a SuperLink runs it."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable
from pathlib import Path

from coinflower.accounting.errors import UserError
from coinflower.deploy.flower.run_app import write_app
from coinflower.deploy.flower.superlink import Superlink
from coinflower.deploy.machines.experiment import Experiment
from coinflower.deploy.machines.server_log import FILE as RECORDS
from coinflower.deploy.machines.server_log import Relay
from coinflower.deploy.machines.status_file import SETTINGS
from coinflower.deploy.runs import RunFailedError, failure, require_alive
from coinflower.deploy.trackers.following import tracked
from coinflower.learning.tasks.metrics import brief
from coinflower.server.journal import STATUS, MetricsReader, ask_to_stop, metrics_of, read_status
from coinflower.server.settings import Settings

WriteReport = Callable[[Settings], Path]
"""Writes the report of a complete run and returns its file."""

_FAILED = ("failed", "defective")


class RunInterruptedError(RunFailedError):
    """The process of a run ended without a word, as if it was killed."""


class ExperimentRun:
    """Starts an experiment, or lets it go on, and follows it.

    Args:
        experiment: The experiment.
        superlink: A running SuperLink.
    """

    def __init__(self, experiment: Experiment, superlink: Superlink) -> None:
        self.experiment = experiment
        self._superlink = superlink
        self._settings = experiment.settings
        self._log = log_of(experiment.name)
        self._relay = Relay(experiment.folder / RECORDS, experiment.name)
        self._metrics = MetricsReader(self._settings.state)
        self._metrics.read_new()  # rounds of an earlier start were told then
        self._began_after = self.last_round
        self._give_up_at: float | None = None
        (self._settings.state / STATUS).unlink(missing_ok=True)  # speaks of the process before
        app = write_app(
            experiment.folder / "app",
            serverapp="coinflower.deploy.machines.server_process:app",
            clientapp="coinflower.client.app:app",
            config={"settings": str(experiment.folder / SETTINGS)},
        )
        self._run_id = superlink.start_run(app)
        self._trackers = contextlib.ExitStack()
        self._trackers.enter_context(tracked(self._settings, self._log.warning))

    @property
    def last_round(self) -> int:
        """The last round that was played; 0 if none was."""
        return self._metrics.rows[-1]["round"] if self._metrics.rows else 0

    @property
    def progressed(self) -> bool:
        """Whether a round was played since this start."""
        return self.last_round > self._began_after

    @property
    def in_round(self) -> bool:
        """Whether a round may be in hand; before the first one, clients are only enrolled."""
        return read_status(self._settings.state).get("state") == "running"

    def is_over(self) -> bool:
        """Tell what happened since the last look, and return whether the run ended.

        Raises:
            RunFailedError: It failed.
            RunInterruptedError: Its process ended without a word.
        """
        status = self._superlink.status(self._run_id)
        self.tell()
        said, asked = read_status(self._settings.state), self._give_up_at is not None
        if status.finished:
            if not status.completed and (not asked or said.get("state") in _FAILED):
                raise failure(said, status.details, self._superlink.log_file)
            return True
        try:
            require_alive(said, again="--resume.")
        except RunFailedError as error:
            self.cut_short()
            if asked:
                return True
            raise RunInterruptedError(str(error)) from error
        return False

    def ask_to_stop(self, seconds: float) -> None:
        """Ask the run to end between two rounds; in mid-round if it takes longer than this.

        To be repeated until the run is over: one that is just starting forgets the first time.
        """
        now = time.monotonic()
        if self._give_up_at is None:
            self._log.info("Stopping after this round, or in %g s.", seconds)
            self._give_up_at = now + seconds
        ask_to_stop(self._settings.state)
        if now > self._give_up_at:
            self.cut_short()

    def cut_short(self) -> None:
        """End the run, even in the middle of a round: that round stays used up."""
        self._give_up_at = self._give_up_at or time.monotonic()
        if not self._superlink.status(self._run_id).finished:
            self._superlink.stop_run(self._run_id)

    def close(self) -> None:
        """Tell the rest, and let the trackers go; the run must be over."""
        with self._trackers, contextlib.suppress(UserError):  # what is damaged was told
            self.tell()

    def tell(self) -> None:
        """Log what the parameter server logged, and the rounds since the last time."""
        self._relay.tell()
        for row in self._metrics.read_new():
            metrics = metrics_of(row)
            self._log.info(
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


def log_of(experiment: str) -> logging.LoggerAdapter[logging.Logger]:
    """Return the log of an experiment: its records bear its name."""
    return logging.LoggerAdapter(logging.getLogger("coinflower.server"), {"experiment": experiment})


def told_complete(settings: Settings, write_report: WriteReport) -> str:
    """Write the report of a complete run, and return what is to be said."""
    told = f"The run is complete: {settings.state}."
    try:
        return f"{told} Report: {write_report(settings)}"
    except OSError as error:
        return f"{told} Its report could not be written ({error.strerror})."
