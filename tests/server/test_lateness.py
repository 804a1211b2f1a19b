"""One slow client among quick ones: rounds go on without it, and it stays in the run."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Error, Message

from coinflower.protocol.modes import Mode
from coinflower.server.lateness import Enough
from tests.support.memory_grid import (
    Deliver,
    Make,
    coins_of,
    kind_of,
    make_federation,
    round_of,
)

SLOW, OTHER = 1009, 1000
TEN = (12,) * 10
ENOUGH = Enough(share=0.9, grace_seconds=0.3)


def takes(seconds: Callable[[int, int], float]) -> Callable[[Message], float]:
    """How long answers to gradients are held, by client and round."""

    def hold(message: Message) -> float:
        if kind_of(message) != "gradient":
            return 0.0
        return seconds(message.metadata.dst_node_id, round_of(message))

    return hold


def always_slow(node: int, _: int) -> float:
    return 4.0 if node == SLOW else 0.2


def slow_in_round_2(node: int, round_: int) -> float:
    return 1.0 if (node, round_) == (SLOW, 2) else 0.2


def asked(fed: Any) -> dict[int, set[int]]:
    """Who was asked for a gradient in each round."""
    found: dict[int, set[int]] = {}
    for event in fed.grid.sent("gradient"):
        found.setdefault(event.round, set()).add(event.node)
    return found


@pytest.mark.parametrize("mode", [Mode.COVERED, Mode.UNTRUSTED])
def test_rounds_do_not_last_as_long_as_one_slow_client_of_ten(federation: Make, mode: Mode) -> None:
    fed = federation(mode, sizes=TEN, rounds=8)
    fed.grid.hold = takes(always_slow)
    fed.run(enough=ENOUGH)
    assert max(report.seconds for report in fed.reports) < 0.2 + 0.3 + 0.05
    assert all(report.answered >= 9 for report in fed.reports)


def test_without_the_rule_they_do(federation: Make) -> None:
    fed = federation(Mode.UNTRUSTED, sizes=TEN, rounds=3)
    fed.grid.hold = takes(always_slow)
    fed.run()
    assert min(report.seconds for report in fed.reports) >= 4.0
    assert {report.answered for report in fed.reports} == {10}


def test_who_answers_within_the_grace_counts(federation: Make) -> None:
    fed = federation(Mode.UNTRUSTED, sizes=TEN, rounds=3)
    fed.grid.hold = takes(lambda node, _: 0.4 if node == SLOW else 0.2)
    fed.run(enough=ENOUGH)
    assert {report.answered for report in fed.reports} == {10}


def test_who_is_late_once_stays_in_the_run(federation: Make) -> None:
    fed = federation(Mode.UNTRUSTED, sizes=TEN, rounds=12)
    fed.grid.hold = takes(slow_in_round_2)
    fed.run(enough=ENOUGH)
    assert [report.answered for report in fed.reports[:2]] == [10, 9]
    assert fed.reports[-1].answered == 10
    assert len(fed.grid.sent("enrol")) == 10  # nobody had to enrol again


def test_who_is_busy_is_not_asked_and_not_charged(federation: Make) -> None:
    """It would answer the next question late as well."""
    fed = federation(Mode.UNTRUSTED, sizes=TEN, rounds=12)
    fed.grid.hold = takes(slow_in_round_2)
    fed.run(enough=ENOUGH)
    without = [round_ for round_, nodes in asked(fed).items() if SLOW not in nodes]
    assert without[0] == 3
    assert without == list(range(3, 3 + len(without)))
    assert len(coins_of(fed, SLOW)) == 12 - len(without)


def test_a_late_answer_is_in_no_step(federation: Make) -> None:
    fed = federation(Mode.UNTRUSTED, sizes=TEN, rounds=6)
    fed.grid.hold = takes(slow_in_round_2)
    fed.run(enough=ENOUGH)
    assert all(report.answered <= report.participants for report in fed.reports)
    assert fed.reports[1].answered == 9
    assert all(report.dropped == 0 for report in fed.reports)


def test_who_never_answers_has_to_enrol_again(federation: Make) -> None:
    fed = federation(Mode.UNTRUSTED, sizes=TEN, rounds=12)

    def lose(message: Message, deliver: Deliver) -> Message | None:
        lost = (kind_of(message), message.metadata.dst_node_id, round_of(message)) == (
            ("gradient", SLOW, 2)
        )
        return None if lost else deliver()

    fed.grid.interfere = lose
    fed.grid.hold = takes(lambda *_: 0.2)
    fed.run(enough=ENOUGH, timeout=1.0)
    assert [event.node for event in fed.grid.sent("enrol")][10:] == [SLOW]
    assert fed.reports[-1].answered == 10


def test_who_is_left_out_does_not_depend_on_coins(tmp_path: Path) -> None:
    """Coins are fresh in every run, and nothing else is: all that the server does is the same."""
    schedules, coins = [], []
    for name in ("a", "b"):
        fed = make_federation(tmp_path / name, Mode.COVERED, sizes=TEN, rounds=12)
        slowness = random.Random(7)
        times = {(node, round_): slowness.random() for node in fed.nodes for round_ in range(13)}
        fed.grid.hold = takes(lambda node, round_, times=times: times[node, round_])
        fed.run(enough=Enough(share=0.6, grace_seconds=0.05))
        schedules.append([asked(fed), [(r.answered, round(r.seconds, 6)) for r in fed.reports]])
        coins.append({node: coins_of(fed, node) for node in fed.nodes})
    assert schedules[0] == schedules[1]
    assert coins[0] != coins[1]
    assert min(answered for answered, _ in schedules[0][1]) < 10


def test_a_wanted_share_has_always_answered(federation: Make) -> None:
    fed = federation(Mode.COVERED, sizes=TEN, rounds=25)
    slowness = random.Random(11)
    fed.grid.hold = takes(lambda *_: slowness.expovariate(2.0))
    fed.run(enough=Enough(share=0.7, grace_seconds=0.01), timeout=60.0)
    answered = [report.answered for report in fed.reports]
    assert min(answered) >= 7
    assert max(report.seconds for report in fed.reports) < 10


def test_a_round_never_ends_before_the_least_number_has_answered(federation: Make) -> None:
    fed = federation(Mode.UNTRUSTED, sizes=(12, 12, 12), rounds=6)
    fed.grid.hold = takes(lambda node, _: 2.0 if node == 1002 else 0.1)
    fed.run(enough=Enough(share=0.3, grace_seconds=0.1), least_clients=3)
    assert {report.answered for report in fed.reports} == {3}


def test_who_fails_has_not_answered(federation: Make) -> None:
    fed = federation(Mode.UNTRUSTED, sizes=TEN, rounds=1)

    def fail(message: Message, deliver: Deliver) -> Message:
        if (kind_of(message), message.metadata.dst_node_id) == ("gradient", OTHER):
            return Message(Error(8, "it failed"), reply_to=message)
        return deliver()

    fed.grid.interfere = fail
    fed.grid.hold = takes(always_slow)
    fed.run(enough=ENOUGH)
    assert fed.reports[0].answered == 9
    assert fed.reports[0].seconds >= 4.0


@pytest.mark.parametrize("mode", [mode for mode in Mode if not mode.answers_always])
def test_where_only_participants_are_asked_the_rule_is_refused(
    federation: Make, mode: Mode
) -> None:
    """Else a coin would decide whom a round waits for, and so whose sum is in the model."""
    fed = federation(mode)
    with pytest.raises(ValueError, match=f"enough_share = 0.9 does not go with mode {mode}"):
        fed.run(enough=ENOUGH)
    assert fed.grid.events == []
