"""How the nodes of one process spare the SuperLink that they share."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import pytest

from coinflower.client.node import polling_group
from coinflower.client.node.polling_group import PollingGroup
from tests.support.waiting import PATIENCE, wait_until

LEAST = 10.0


@contextlib.contextmanager
def _members(group: PollingGroup, count: int) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for _ in range(count):
            stack.enter_context(group.membership())
        yield


class _Speakers:
    """Threads that each take a turn and keep it until they may end."""

    def __init__(self, group: PollingGroup, count: int) -> None:
        self._group = group
        self._may_end = threading.Semaphore(0)
        self.speaking = 0
        self.most = 0
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._speak, daemon=True) for _ in range(count)]
        for thread in self._threads:
            thread.start()

    def _speak(self) -> None:
        with self._group.turn():
            with self._lock:
                self.speaking += 1
                self.most = max(self.most, self.speaking)
            self._may_end.acquire(timeout=PATIENCE)
            with self._lock:
                self.speaking -= 1

    def end(self, expected: int) -> None:
        """Let one after the other end, as soon as as many speak as may."""
        left = len(self._threads)
        while left:
            wait_until(lambda: self.speaking == min(expected, left))  # noqa: B023
            self._may_end.release()
            left -= 1
            wait_until(lambda: sum(thread.is_alive() for thread in self._threads) == left)  # noqa: B023


@pytest.mark.parametrize(("members", "at_once"), [(1, 1), (99, 1), (250, 3), (1000, 4)])
def test_few_call_at_once_and_everybody_gets_a_turn(
    members: int, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(polling_group, "_TURN_PATIENCE_SECONDS", PATIENCE)
    group = PollingGroup()
    with _members(group, members):
        speakers = _Speakers(group, 8)
        speakers.end(at_once)
    assert speakers.most == at_once


def test_a_call_that_hangs_does_not_silence_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(polling_group, "_TURN_PATIENCE_SECONDS", 0.01)
    group = PollingGroup()
    with _members(group, 2), group.turn():
        speakers = _Speakers(group, 3)
        wait_until(lambda: speakers.speaking == 3)
        speakers.end(3)


def test_a_node_on_its_own_keeps_its_times() -> None:
    group = PollingGroup()
    with _members(group, 1):
        assert group.heartbeat_seconds(LEAST) == LEAST
        assert group.wait_seconds(LEAST) == LEAST


@pytest.mark.parametrize("members", [50, 200, 1000])
def test_idle_nodes_send_few_requests_together(members: int) -> None:
    group = PollingGroup()
    with _members(group, members):
        wait, promised = group.wait_seconds(LEAST), group.heartbeat_seconds(LEAST)
    assert members / wait + members / (0.6 * promised) < 30
    assert wait < 60  # longer than gateways wait for an answer
