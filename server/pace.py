"""When rounds begin: as soon as possible, or on a clock that nobody's coin can move."""

from __future__ import annotations

import logging
import math
import time

logger = logging.getLogger("coinflower.server")

_ANSWERING = 0.8
"""The part of a slot in which answers count; the rest is for the step and the next messages."""


class Pace:
    """The clock of a run.

    Other clients see when they are asked. If a round took as long as its slowest participant, they
    would see who takes part. With a fixed pace rounds begin on a clock and a late answer is
    dropped. The server does its work before a tick, so that on the tick it only sends.

    Args:
        seconds: From the beginning of a round to that of the next; None begins a round as soon as
            the one before is over.
        reply_seconds: The longest that clients may take to answer.
    """

    def __init__(self, seconds: float | None, reply_seconds: float) -> None:
        self._seconds = seconds
        self._reply_seconds = reply_seconds
        self._began: float | None = None

    @property
    def fixed(self) -> bool:
        """Whether rounds begin on a clock."""
        return self._seconds is not None

    @property
    def reply_seconds(self) -> float:
        """How long a question of a round lives.

        On a clock, a question that is fetched when its answer no longer counts would only keep its
        client from the next invitation.
        """
        seconds = math.inf if self._seconds is None else _ANSWERING * self._seconds
        return min(self._reply_seconds, seconds)

    def await_tick(self) -> None:
        """Return when the next round is to begin; the first tick is now."""
        now = time.monotonic()
        if self._seconds is None or self._began is None:
            self._began = now
            return
        slots = max(1, math.ceil((now - self._began) / self._seconds))
        if slots > 1:
            logger.warning(
                "The server was not ready for the next round within %g s, and skips %d: "
                "choose a longer round_seconds.",
                self._seconds,
                slots - 1,
            )
        self._began += slots * self._seconds
        time.sleep(max(0.0, self._began - time.monotonic()))

    def answer_seconds(self) -> float:
        """How much longer this round's answers count."""
        if self._seconds is None or self._began is None:
            return self._reply_seconds
        return min(self._reply_seconds, self._left(_ANSWERING * self._seconds))

    def await_end_of_answers(self) -> None:
        """Return when no answer counts any more, also if all have come; without a clock, at once.

        What comes next takes its time, and others may see when it begins or whether it is done by
        the next tick: new clients, for example, are asked to enrol.
        """
        if self._seconds is not None:
            time.sleep(self._left(_ANSWERING * self._seconds))

    def coin_seconds(self) -> float:
        """How much longer coins for the next round count."""
        if self._seconds is None or self._began is None:
            return self._reply_seconds
        return min(self._reply_seconds, self._left((1 + _ANSWERING) / 2 * self._seconds))

    def _left(self, seconds: float) -> float:
        assert self._began is not None
        return max(0.0, self._began + seconds - time.monotonic())
