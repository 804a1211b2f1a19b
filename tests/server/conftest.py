"""Federations in this process, and surroundings in which nobody waits at all."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import coinflower.server.clients.attendance
import coinflower.server.clients.roster
from coinflower.flower_internals.messages import as_task
from tests.support.memory_grid import Federation, make_federation
from tests.support.waiting import VirtualTime


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> VirtualTime:
    """The time of the test, which a busy machine does not change."""
    virtual = VirtualTime()
    monkeypatch.setattr(time, "monotonic", virtual.monotonic)
    monkeypatch.setattr(time, "sleep", virtual.sleep)
    return virtual


@pytest.fixture(autouse=True)
def _surroundings(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(coinflower.server.clients.roster, "_LOOK_SECONDS", 0.0)
    monkeypatch.setattr(coinflower.server.clients.roster, "_ASK_AGAIN_SECONDS", 0.05)
    monkeypatch.setattr(coinflower.server.clients.attendance, "_WAIT_SECONDS", 0.005)
    with as_task():
        yield


@pytest.fixture
def federation(tmp_path: Path) -> Callable[..., Federation]:
    """Return a function that makes a federation in the test's own folder."""
    return functools.partial(make_federation, tmp_path)
