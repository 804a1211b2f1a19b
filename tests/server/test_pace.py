"""Rounds on a clock: another client sees when it is asked, and learns nobody's coin from that."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from typing import Any

import pytest
from flwr.app import Error, Message

from coinflower.protocol.modes import Mode
from tests.support.memory_grid import (
    coins_of,
    kind_of,
    round_of,
)

Make = Callable[..., Any]

CURIOUS, QUICK, SLOW, DEAF = 1000, 1001, 1002, 1003
WORK = {CURIOUS: 0.0, QUICK: 0.25, SLOW: 0.5}


def seen_by_curious(fed: Any, **options: Any) -> dict[str, dict[int, float]]:
    """Run, and return when the curious client was asked, by kind of question and round."""
    seen: dict[str, dict[int, float]] = {}

    def watch(message: Message) -> None:
        if message.metadata.dst_node_id == CURIOUS:
            seen.setdefault(kind_of(message), {})[round_of(message)] = time.monotonic()

    fed.grid.before_push = watch
    fed.grid.hold = lambda message: (
        WORK[message.metadata.dst_node_id] if kind_of(message) == "gradient" else 0.0
    )
    fed.run(**options)
    return seen


def durations(asked: dict[int, float]) -> dict[int, float]:
    """How long each round lasted that the curious client took part in, as in the one after it."""
    return {
        round_: asked[round_ + 1] - begun for round_, begun in asked.items() if round_ + 1 in asked
    }


def test_without_a_clock_the_length_of_a_round_tells_who_takes_part(federation: Make) -> None:
    fed = federation(rounds=120, rounds_per_invitation=120)
    lasted = durations(seen_by_curious(fed)["gradient"])
    slow, quick = coins_of(fed, SLOW), coins_of(fed, QUICK)
    assert len(lasted) > 3  # by chance it is not, 2e-8
    for round_, seconds in lasted.items():
        assert (seconds > 0.45) is slow[round_]
        if not slow[round_]:
            assert (seconds > 0.2) is quick[round_]


@pytest.mark.parametrize("block", [1, 4, 60])
def test_on_a_clock_all_that_is_seen_happens_at_a_tick(federation: Make, block: int) -> None:
    fed = federation(rounds=60, rounds_per_invitation=block)
    seen = seen_by_curious(fed, round_seconds=1.0)
    models, invitations = seen["gradient"], seen["invite"]
    first = min(models.values()) - min(models)
    assert [asked - round_ for round_, asked in models.items()] == pytest.approx(
        [first] * len(models), abs=1e-6
    )
    ahead = {round_: asked for round_, asked in invitations.items() if round_ > 1}
    assert [asked - round_ + 1 for round_, asked in ahead.items()] == pytest.approx(
        [first] * len(ahead), abs=1e-6
    )
    assert sum(report.answered for report in fed.reports) == sum(
        sum(coins_of(fed, node).values()) for node in fed.nodes
    )


@pytest.mark.parametrize("mode", [Mode.TRUSTED, Mode.COVERED])
def test_on_a_clock_a_late_answer_is_dropped(federation: Make, mode: Mode) -> None:
    fed = federation(mode, rounds=20, rounds_per_invitation=5)
    seen_by_curious(fed, round_seconds=0.5)  # the slow one takes all of it
    others = 20 * 2 if mode is Mode.COVERED else 0
    for node in (CURIOUS, QUICK):
        others += sum(coins_of(fed, node).values()) if mode is Mode.TRUSTED else 0
    assert sum(report.answered for report in fed.reports) == others


def test_who_is_late_with_an_answer_is_still_asked_for_coins(federation: Make) -> None:
    fed = federation(rounds=20, rounds_per_invitation=5)
    seen_by_curious(fed, round_seconds=0.5)
    assert len(coins_of(fed, SLOW)) == 20
    assert len(fed.grid.sent("enrol")) == 3
    assert {report.available for report in fed.reports} == {3}


@pytest.mark.parametrize("timeout", [5.0, 0.6])
def test_on_a_clock_who_has_not_enrolled_is_asked_at_a_fixed_time_too(
    federation: Make, timeout: float
) -> None:
    """A client with a second key could keep silent there, and see when the server turns to it."""
    fed = federation(rounds=40, rounds_per_invitation=40, sizes=(12, 12, 12, 12))
    asked: list[float] = []

    def keep_silent(message: Message, deliver: Callable[[], Message]) -> Message:
        if message.metadata.dst_node_id != DEAF:
            return deliver()
        asked.append(time.monotonic())
        return Message(Error(8, "not now"), reply_to=message)

    fed.grid.interfere = keep_silent
    seen = seen_by_curious(fed, round_seconds=1.0, expected_clients=3, timeout=timeout)
    begun = min(seen["gradient"].values())
    slots = {round((moment - begun) % 1, 6) for moment in asked if moment > begun}
    assert len(asked) > 20
    assert slots == {0.8}


def failing(kind: str, node: int) -> Any:
    def fail(message: Message, deliver: Callable[[], Message]) -> Message:
        if (kind_of(message), message.metadata.dst_node_id) == (kind, node):
            return Message(Error(8, "it failed"), reply_to=message)
        return deliver()

    return fail


@pytest.mark.parametrize("round_seconds", [None, 1.0])
def test_the_size_of_a_step_does_not_show_that_a_participant_failed(
    federation: Make, round_seconds: float | None
) -> None:
    """Only who takes part can fail, and noise tells everybody what a step was divided by."""
    fed = federation(rounds=40, rounds_per_invitation=40)
    fed.grid.interfere = failing("gradient", SLOW)
    fed.run(round_seconds=round_seconds)
    assert any(coins_of(fed, SLOW).values())
    assert sum(report.dropped for report in fed.reports) > 0
    assert {report.available for report in fed.reports} == {3}


def test_on_a_clock_who_fails_is_still_asked_for_coins(federation: Make) -> None:
    fed = federation(rounds=20, rounds_per_invitation=2)
    fed.grid.interfere = failing("gradient", SLOW)
    seen_by_curious(fed, round_seconds=1.0)
    assert len(coins_of(fed, SLOW)) == 20
    assert len(fed.grid.sent("enrol")) == 3
    assert {report.available for report in fed.reports} == {3}


def test_on_a_clock_a_question_ends_when_its_answers_do(federation: Make) -> None:
    """Who fetched it later would be too late for the next invitation as well."""
    fed = federation(Mode.LOCAL_ONLY, rounds=3)
    lives: set[float] = set()

    def note(message: Message) -> None:
        if kind_of(message) == "gradient":
            lives.add(message.metadata.ttl)

    fed.grid.before_push = note
    fed.run(round_seconds=1.0)
    assert lives == {0.8}


def test_a_server_that_is_not_ready_leaves_out_whole_slots(
    federation: Make, caplog: pytest.LogCaptureFixture
) -> None:
    fed = federation(rounds=10, rounds_per_invitation=10, p=1.0)
    models = seen_by_curious(
        fed,
        round_seconds=1.0,
        evaluate=lambda round_, _: time.sleep(2.1 if round_ == 5 else 0.0),
    )["gradient"]
    gaps = [after - before for before, after in itertools.pairwise(models.values())]
    assert gaps == pytest.approx([1, 1, 1, 1, 3, 1, 1, 1, 1], abs=1e-6)
    assert "skips 2: choose a longer round_seconds" in caplog.text


def test_on_a_clock_the_life_of_a_question_begins_on_the_tick(
    federation: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Made before, it might be over when the server had to skip a slot."""
    fed = federation(Mode.LOCAL_ONLY, rounds=3)
    ages: list[float] = []

    def note(message: Message) -> None:
        if kind_of(message) == "gradient":
            ages.append(time.monotonic() - message.metadata.created_at)

    fed.grid.before_push = note
    monkeypatch.setattr(time, "time", time.monotonic)
    fed.run(round_seconds=1.0)
    assert ages == [0.0] * 9
