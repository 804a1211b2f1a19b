"""How long the first round waits for clients that still come."""

from __future__ import annotations

import time
from typing import cast

import pytest

from coinflower.server.clients.attendance import Attendance, TooFewClientsError
from coinflower.server.clients.roster import Roster


class _Arriving:
    """A roster on which one client enrols at each of these moments."""

    refused_for_good = 0

    def __init__(self, *moments: float) -> None:
        self._began = time.monotonic()
        self._moments = moments
        self.present: dict[int, int] = {}
        self.refusals: dict[int, str] = {}

    def refresh(self) -> None:
        """See who has come meanwhile."""
        passed = time.monotonic() - self._began
        self.present = {i: 12 for i, moment in enumerate(self._moments) if moment <= passed}

    def told_refusals(self) -> str:
        """Return that nobody refused."""
        return ""


def _gathered(attendance: Attendance, *moments: float) -> int:
    arriving = _Arriving(*moments)
    attendance.wait(cast(Roster, arriving), gather=True)
    return len(arriving.present)


def test_the_first_round_waits_as_long_as_clients_still_come() -> None:
    # Enrolling them takes 100 s, far more than the silence after which nobody is waited for.
    moments = [float(i) for i in range(100)]
    assert _gathered(Attendance(expected_clients=100), *moments) == 100


def test_clients_that_stay_away_are_not_waited_for() -> None:
    assert _gathered(Attendance(expected_clients=3), 0.0, 20.0, 200.0) == 2


def test_clients_that_come_one_by_one_for_ever_do_not_end_a_run_that_has_enough() -> None:
    moments = [10.0 * i for i in range(100)]
    attendance = Attendance(least_clients=2, expected_clients=100, patience_seconds=60.0)
    assert _gathered(attendance, *moments) == 7


def test_too_few_after_all_patience_end_the_run() -> None:
    class _Nobody(_Arriving):
        class notaries:  # noqa: N801
            @staticmethod
            def told_missing() -> str:
                return ""

    attendance = Attendance(least_clients=2, expected_clients=3, patience_seconds=60.0)
    with pytest.raises(TooFewClientsError, match="Only 1 of at least 2 clients"):
        attendance.wait(cast(Roster, _Nobody(0.0)), gather=True)
