"""Trackers that follow the server's journal.

They run outside of the server's process, each in a thread of its own: one that is slow, full or
cannot be reached neither stops nor delays a round.
"""

from __future__ import annotations

import contextlib
import importlib.util
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Protocol

from coinflower.accounting.errors import UserError
from coinflower.deploy.trackers.figures import figures_of
from coinflower.protocol.foreign import printable
from coinflower.server.journal import MetricsReader, read_status
from coinflower.server.settings import Settings, TrackerName

_LOOK_SECONDS = 1.0
_AGAIN_SECONDS = 30.0
_LAST_SECONDS = 15.0
_MOST_CHARACTERS = 300


class Tracker(Protocol):
    """Where figures go. Whatever it raises costs a warning, and it is tried again later."""

    def write(self, round_: int, figures: Mapping[str, float]) -> None:
        """Take the figures of a round; the same ones may come twice."""

    def close(self, state: str) -> None:
        """Take note that the run is over, and of the state in which it ended."""


def require_trackers(names: Iterable[TrackerName]) -> None:
    """Refuse trackers whose packages are not installed.

    Raises:
        ValueError: Naming the package.
    """
    for name in names:
        if importlib.util.find_spec(name) is None:
            raise UserError(
                f"The tracker {name} needs the package of that name; install it with "
                f"pip install 'coinflower[{name}]'."
            )


@contextlib.contextmanager
def tracked(settings: Settings, complain: Callable[[str], None]) -> Iterator[None]:
    """Tell the trackers of the settings about every round that is played while the block lasts.

    Args:
        settings: Settings of the run.
        complain: Given a sentence, once for each tracker that fails.

    Raises:
        ValueError: The package of a tracker is not installed.
    """
    require_trackers(settings.trackers)
    stop = threading.Event()
    followers = [_Follower(name, settings, stop, complain) for name in settings.trackers]
    for follower in followers:
        follower.start()
    try:
        yield
    finally:
        stop.set()
        deadline = time.monotonic() + _LAST_SECONDS
        for follower in followers:
            follower.join(max(0.0, deadline - time.monotonic()))
            if follower.is_alive():
                follower.complain("it takes too long")


class _Follower(threading.Thread):
    """Feeds one tracker; a daemon, so that nothing waits for a tracker that hangs."""

    def __init__(
        self,
        kind: TrackerName,
        settings: Settings,
        stop: threading.Event,
        complain: Callable[[str], None],
    ) -> None:
        super().__init__(name=f"tracker-{kind}", daemon=True)
        self._kind = kind
        self._settings = settings
        self._stop_asked = stop
        self._complain = complain
        self._complained = False
        self._tracker: Tracker | None = None
        self._untold: list[dict[str, Any]] = []
        self._journal = MetricsReader(settings.state)
        self._journal.read_new()  # rounds of an earlier start were told then

    def run(self) -> None:
        pause, last = 0.0, False
        while not last:
            last = self._stop_asked.wait(pause)
            self._untold += self._journal.read_new()
            try:
                self._tell(last=last)
                pause = _LOOK_SECONDS
            except Exception as error:  # whatever it is, the run goes on
                self.complain(f"{type(error).__name__}: {error}")
                self._tracker = None  # another one may fare better
                pause = _AGAIN_SECONDS

    def complain(self, why: str) -> None:
        """Say once that this tracker lacks rounds."""
        if not self._complained:
            self._complained = True
            short = printable(" ".join(why.split()), _MOST_CHARACTERS)
            self._complain(
                f"The tracker {self._kind} does not take the figures ({short}); the run goes on, "
                "and its metrics.jsonl has them."
            )

    def _tell(self, *, last: bool) -> None:
        if self._tracker is None and self._untold:
            self._tracker = _open(self._kind, self._settings)
        if self._tracker is None:
            return
        while self._untold:
            row = self._untold[0]
            self._tracker.write(row["round"], figures_of(row, self._settings.terms.mode))
            del self._untold[0]
        if last:
            self._tracker.close(read_status(self._settings.state).get("state", ""))


def _open(kind: TrackerName, settings: Settings) -> Tracker:
    """Return a tracker; its package is imported in its own thread, because that takes seconds."""
    if kind is TrackerName.MLFLOW:
        from coinflower.deploy.trackers.mlflow import MlflowTracker

        return MlflowTracker(settings)
    from coinflower.deploy.trackers.tensorboard import TensorBoardTracker

    return TensorBoardTracker(settings)
