"""The experiments of a server, as files in its folder: commands write them, a server reads them.

Each has a folder of its own with the settings as they were when it was submitted, and an entry that
says what is wanted of it. Nothing else tells a server what to run, so that it goes on after a crash
where it was, and commands need neither a port nor a running server.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from coinflower.accounting.errors import UserError
from coinflower.deploy.gateway.config import largest_body
from coinflower.deploy.machines.experiment import ENTRY, Experiment, read, write
from coinflower.deploy.machines.status_file import SETTINGS, is_server_folder
from coinflower.server.settings import Settings, load_settings, save_settings

_FOLDER = "experiments"
_LOCK = ".lock"


class ExperimentQueue:
    """The experiments of one server; safe to use from several processes.

    Args:
        folder: The server's folder.
    """

    def __init__(self, folder: Path) -> None:
        self._server = folder
        self._folder = folder.absolute() / _FOLDER

    def all(self) -> list[Experiment]:
        """Return all experiments in the order of submission.

        Raises:
            ValueError: The settings of one are damaged.
        """
        entries = [entry for entry in self._folder.glob(f"*/{ENTRY}") if entry.is_file()]
        return sorted(map(read, entries), key=lambda one: one.number)

    def get(self, name: str) -> Experiment:
        """Return an experiment.

        Raises:
            ValueError: There is none of that name.
        """
        found = {one.name: one for one in self.all()}
        if name not in found:
            known = f"there are {', '.join(found)}." if found else "it has none."
            raise UserError(f"The server of {self._server} has no experiment {name!r}; {known}")
        return found[name]

    def load(self, path: Path) -> Settings:
        """Read settings that are to be submitted; without ``state``, the queue has one for them.

        Raises:
            ValueError: They cannot be used.
        """
        from coinflower.learning.data.named import NAMES

        settings = load_settings(path.absolute(), states=self._folder)
        if settings.test_data is None:
            return settings
        test_data = Path(settings.test_data).expanduser()
        if settings.test_data not in NAMES and test_data.exists():
            # Paths of data start where the command is typed, not where the server is at work.
            settings = replace(settings, test_data=str(test_data.absolute()))
        return settings

    def submit(self, path: Path) -> Experiment:
        """Add an experiment to the queue; later changes of the file change nothing.

        Raises:
            ValueError: There is no server, the settings cannot be used, or are there already.
        """
        self._require_own_folder()
        settings = self.load(path)
        self._require_new(settings)  # before a model is built
        _require_ready(settings, self._folder)
        with self._locked():
            self._require_new(settings)
            return self._add(settings)

    def enter(self, settings: Settings) -> Experiment:
        """Add an experiment that a server is started with, or renew the settings it is there with.

        What a server is started with may change as long as the terms stay the same.

        Raises:
            ValueError: Another experiment has its name or its state.
        """
        with self._locked():
            known = [one for one in self.all() if one.settings.terms.hash == settings.terms.hash]
            self._require_new(settings, besides=known)
            if not known:
                return self._add(settings)
            save_settings(replace(settings, resume=True), known[0].folder / SETTINGS)
            return write(replace(known[0], error=""))

    def hold(self, name: str) -> Experiment:
        """Want an experiment stopped.

        Raises:
            ValueError: There is no such experiment, or it is complete.
        """
        return self._change(name, lambda one: replace(one, held=True))

    def release(self, name: str) -> Experiment:
        """Want an experiment to go on after a stop or a failure.

        Raises:
            ValueError: There is no such experiment, or it is complete.
        """
        return self._change(name, lambda one: replace(one, held=False, error=""))

    def note_begun(self, name: str) -> None:
        """Note that a round was played, so that the experiment never begins anew."""
        with self._locked():
            write(replace(self.get(name), begun=True))

    def note_failure(self, name: str, error: str) -> None:
        """Note why an experiment failed; it waits until it is released."""
        with self._locked():
            write(replace(self.get(name), error=error))

    def _change(self, name: str, change: Callable[[Experiment], Experiment]) -> Experiment:
        self._require_own_folder()
        with self._locked():
            found = self.get(name)
            if found.is_finished:
                raise UserError(f"Experiment {name} is complete: {found.settings.state}.")
            return write(change(found))

    def _add(self, settings: Settings) -> Experiment:
        made = Experiment(
            folder=self._folder / settings.terms.experiment,
            settings=replace(settings, resume=True),
            number=1 + max((one.number for one in self.all()), default=0),
            submitted=datetime.now(UTC).isoformat(timespec="seconds"),
        )
        made.folder.mkdir(parents=True, exist_ok=True)
        save_settings(made.settings, made.folder / SETTINGS)
        return write(made)

    def _require_new(self, settings: Settings, besides: list[Experiment] | None = None) -> None:
        """Refuse what clients, commands or files would take for an experiment that is there."""
        terms, state = settings.terms, settings.state.resolve()
        if self._is_the_servers(state, terms.experiment):
            raise UserError(
                f"state = {settings.state} is a folder of the server's own; choose another, or "
                "leave it out."
            )
        for other in self.all():
            if besides and other.folder == besides[0].folder:
                continue
            if other.settings.terms.hash == terms.hash:
                raise UserError(
                    f"Experiment {other.name} has the same terms, and clients' ledgers would take "
                    "this for the same experiment: they answer no round twice. To continue it: "
                    f"coinflower server resume {other.name}. To run it once more, change "
                    "'experiment' in [terms]; clients pay for it again."
                )
            if other.name == terms.experiment:
                raise UserError(
                    f"Another experiment is named {other.name}, with other terms: change "
                    "'experiment' in [terms]."
                )
            if other.settings.state.resolve() == state:
                raise UserError(
                    f"Experiment {other.name} has the same state = {settings.state}; choose "
                    "another, or leave it out."
                )

    def _is_the_servers(self, state: Path, name: str) -> bool:
        """Return whether a server would wait for ever to have a state to itself, or mix it up."""
        if state == self._server.resolve():
            return True
        queue = self._folder.resolve()
        return state.is_relative_to(queue) and state != queue / name / "state"

    def _require_own_folder(self) -> None:
        if not is_server_folder(self._server):
            raise UserError(
                f"No server was ever started in {self._server}; name the folder given to "
                "coinflower server run --folder."
            )
        owner = self._server.stat().st_uid
        if owner != os.geteuid():
            raise UserError(
                f"{self._server} belongs to user {owner}, and what another user writes there the "
                "server cannot read: run this as that user (sudo -u, runuser)."
            )

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        self._folder.mkdir(parents=True, exist_ok=True)
        with (self._folder / _LOCK).open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


def largest_body_of(settings: Settings, folder: Path) -> int:
    """Return how large messages a gateway of its own must let pass.

    Args:
        settings: What the server is started with.
        folder: The server's folder, with what was submitted to it so far.

    Raises:
        ValueError: The model of ``settings`` is unknown, or the queue is damaged.
    """
    largest = largest_body(settings.terms)
    for one in ExperimentQueue(folder).all():
        with contextlib.suppress(UserError):  # a model that is gone fails when its turn comes
            largest = max(largest, 0 if one.is_finished else largest_body(one.settings.terms))
    return largest


def _require_ready(settings: Settings, states: Path) -> None:
    """Refuse what a server could not run, before it is in the queue."""
    from coinflower.deploy.trackers.following import require_trackers
    from coinflower.server.app import require_ready

    require_trackers(settings.trackers)
    if settings.state.parent.parent == states:
        with tempfile.TemporaryDirectory() as nothing:
            require_ready(replace(settings, state=Path(nothing)))
    else:
        require_ready(settings)
