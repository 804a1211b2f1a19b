"""One experiment of a server: its settings, and a file that says what is wanted of it."""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from pathlib import Path

from coinflower.accounting.errors import UserError
from coinflower.deploy.machines.status_file import SETTINGS
from coinflower.protocol.strict import decode, strict
from coinflower.server.checkpoint import CheckpointFolder, write_atomically
from coinflower.server.journal import read_status
from coinflower.server.settings import Settings, load_settings

ENTRY = "experiment.json"


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """One experiment of a server.

    Attributes:
        folder: Its own, with its settings.
        settings: As they were when it was submitted.
        number: Its place in the queue.
        submitted: When it was submitted.
        held: Whether the operator wants it stopped.
        error: Why it failed; empty if it did not.
        begun: Whether a round was ever played.
    """

    folder: Path
    settings: Settings
    number: int
    submitted: str
    held: bool = False
    error: str = ""
    begun: bool = False

    @property
    def name(self) -> str:
        """Name of the experiment in its terms, by which commands know it."""
        return self.settings.terms.experiment

    @property
    def is_finished(self) -> bool:
        """Whether all rounds were played."""
        try:
            return read_status(self.settings.state).get("state") == "finished"
        except UserError:  # damaged: whoever wants it continued is told
            return False

    @property
    def is_due(self) -> bool:
        """Whether it is to run, or to go on."""
        return not (self.held or self.error or self.is_finished)

    def require_state(self) -> None:
        """Refuse to begin anew what has begun: rounds that clients answered are answered no more.

        Raises:
            ValueError: The state that was there is gone.
        """
        state = self.settings.state
        if self.begun and not CheckpointFolder(state, self.settings.terms.hash).exists():
            raise UserError(
                f"Its state is gone from {state}; is a disk not mounted? Bring it back, then: "
                f"coinflower server resume {self.name}. Without it, submit the experiment under "
                "another name, because clients answer no round twice."
            )

    def may_run_beside(self, other: Experiment) -> bool:
        """Whether neither's rounds would show more about the other's coins than its own rounds do.

        Where only participants are asked, they are busy for a while, and late in the other
        experiment (docs/wire.md).
        """
        return not (
            _shows_in(self.settings, other.settings) or _shows_in(other.settings, self.settings)
        )


def _shows_in(settings: Settings, other: Settings) -> bool:
    """Whether coins that are secret would show in another experiment.

    On a fixed pace other clients must not notice who is busy. Without one they may, but whoever
    gets the other's model must not: there, an answer that comes late must not be left out.
    """
    mode = settings.terms.mode
    if mode.answers_always or not mode.hides_coins:
        return False
    leaves_out = other.round_seconds is not None or other.enough is not None
    return settings.round_seconds is not None or leaves_out


@strict
class _Entry:
    """What an experiment's file holds; its attributes are those of `Experiment`."""

    number: int
    submitted: str
    held: bool
    error: str
    begun: bool = False


def write(experiment: Experiment) -> Experiment:
    """Write what is wanted of an experiment beside its settings, and return it."""
    content = {
        "number": experiment.number,
        "submitted": experiment.submitted,
        "held": experiment.held,
        "error": experiment.error,
        "begun": experiment.begun,
    }
    write_atomically(experiment.folder / ENTRY, json.dumps(content).encode())
    return experiment


def read(path: Path) -> Experiment:
    """Return the experiment of an entry.

    Raises:
        ValueError: The entry or the settings are damaged.
    """
    entry = decode(_Entry, path.read_bytes(), f"The queue's file {path}")
    settings = path.with_name(SETTINGS)
    found = settings.stat()
    return Experiment(
        folder=path.parent,
        settings=_settings_in(settings, found.st_ino, found.st_mtime_ns),
        **vars(entry),
    )


@functools.lru_cache(maxsize=1 << 10)
def _settings_in(path: Path, _file: int, _changed: int) -> Settings:
    """Read settings; a server looks at all of its experiments every second."""
    return load_settings(path)
