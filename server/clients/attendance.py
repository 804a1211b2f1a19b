"""Whether enough clients are there to play, and for how long to wait if they are not."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from coinflower.server.clients.roster import Roster

logger = logging.getLogger("coinflower.server")

_WAIT_SECONDS = 0.05
_GATHER_SECONDS = 30.0  # without anybody new


class TooFewClientsError(RuntimeError):
    """Not enough clients were there for too long; the message says how many and how long."""


class StoppedError(Exception):
    """The run was asked to end, and did so between two rounds."""


class Attendance:
    """Waits for clients, and ends a run that too few will ever join.

    Args:
        least_clients: Fewest available clients for a round.
        expected_clients: The first round waits until this many have answered, or no more come.
        patience_seconds: How long to wait for the least number.
        no_other_clients: Whether nobody but the expected clients will come, so that the run ends as
            soon as too many of them refuse.
        on_refusals: Called with a sentence whenever other clients refuse than before.
        asked_to_stop: Whether somebody wants the run to end instead of waiting on.

    Attributes:
        least: Fewest available clients for a round.
    """

    def __init__(
        self,
        *,
        least_clients: int = 1,
        expected_clients: int = 1,
        patience_seconds: float = 300.0,
        no_other_clients: bool = False,
        on_refusals: Callable[[str], None] = lambda _: None,
        asked_to_stop: Callable[[], bool] = lambda: False,
    ) -> None:
        self.least = least_clients
        self._expected = max(expected_clients, least_clients)
        self._patience = patience_seconds
        self._no_other_clients = no_other_clients
        self._on_refusals = on_refusals
        self._asked_to_stop = asked_to_stop
        self._refusals = ""
        self._short_since: float | None = None

    def require_at_least(self, clients: int) -> None:
        """Play no round with fewer clients than this."""
        self.least = max(self.least, clients)
        self._expected = max(self._expected, clients)

    def wait(self, roster: Roster, *, gather: bool = False) -> None:
        """Return once enough clients are there; ``gather`` waits while others still come.

        Raises:
            TooFewClientsError: The patience is over, or too few are left who could come.
            StoppedError: Somebody asked the run to end.
        """
        started = last_news = time.monotonic()
        most_heard = 0
        while True:
            if self._asked_to_stop():
                raise StoppedError
            roster.refresh()
            self._tell_refusals(roster)
            now = time.monotonic()
            out_of_patience = now - started > self._patience
            heard = len(roster.present) + len(roster.refusals)
            if heard > most_heard:
                most_heard, last_news = heard, now
            # A thousand clients need longer to enrol than ten, so it counts that others still come,
            # not how long it takes.
            silent = now - last_news > _GATHER_SECONDS
            gathered = heard >= self._expected or silent or out_of_patience or not gather
            if len(roster.present) >= self.least and gathered:
                return
            if out_of_patience:
                raise self._too_few(len(roster.present), roster)
            possible = self._expected - roster.refused_for_good
            if self._no_other_clients and heard >= self._expected and possible < self.least:
                raise TooFewClientsError(f"Too few can join this run: {roster.told_refusals()}")
            time.sleep(_WAIT_SECONDS)

    def suffices(self, available: int, round_: int, roster: Roster) -> bool:
        """Return whether enough clients were available in a round to make a step.

        Raises:
            TooFewClientsError: There were too few in all rounds for longer than the patience.
        """
        if available >= self.least:
            self._short_since = None
            return True
        logger.warning("Round %d had too few available clients; no step.", round_)
        now = time.monotonic()
        self._short_since = self._short_since or now
        if now - self._short_since > self._patience:
            raise self._too_few(available, roster)
        return False

    def _too_few(self, there: int, roster: Roster) -> TooFewClientsError:
        missing = roster.notaries.told_missing()
        if missing:
            return TooFewClientsError(
                f"{missing} It was waited for {self._patience:g} s, so the run stops."
            )
        why = roster.told_refusals()
        return TooFewClientsError(
            f"Only {there} of at least {self.least} clients were there for {self._patience:g} s, "
            "so the run stops." + (f" {why}" if why else "")
        )

    def _tell_refusals(self, roster: Roster) -> None:
        told = roster.told_refusals()
        if told != self._refusals:
            self._refusals = told
            self._on_refusals(told)
