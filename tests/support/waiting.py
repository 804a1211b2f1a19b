"""Time in tests: waiting for a state, however busy the machine, and time that only sleeps take."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

State = TypeVar("State")

# Nobody waits that long for what comes: only a failure takes it.
PATIENCE = 240.0


def wait_until(condition: Callable[[], State], alive: Callable[[], bool] = lambda: True) -> State:
    """Return the first true answer.

    Args:
        condition: What to ask, over and over.
        alive: Whether the answer can still come; if not, waiting ends.
    """
    deadline = time.monotonic() + PATIENCE
    while True:
        lives = alive()  # before the question: its last deed counts
        if answer := condition():
            return answer
        assert lives, "what was waited for can no longer come"
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


class VirtualTime:
    """A clock that goes on when somebody sleeps, and nothing else takes any time.

    Attributes:
        now: The moment.
        naps: The seconds of each sleep.
    """

    def __init__(self) -> None:
        self.now = 1000.0
        self.naps: list[float] = []

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.naps.append(seconds)
        self.now += seconds
