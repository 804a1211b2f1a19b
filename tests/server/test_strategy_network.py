"""Runs with a bad network, and clients that refuse, fail or come late."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from flwr.app import Error, Message

from coinflower.protocol.modes import Mode
from coinflower.protocol.policy import Refusal
from coinflower.server.clients.attendance import TooFewClientsError
from tests.support.memory_grid import (
    EVERYTHING,
    Deliver,
    Make,
    central_descent,
    kind_of,
    reply_with,
    round_of,
)

# A bad network


def lose(kind: str, nodes: set[int], rounds: set[int]) -> Callable[..., Message | None]:
    def interfere(message: Message, deliver: Deliver) -> Message | None:
        lost = (
            kind_of(message) == kind
            and message.metadata.dst_node_id in nodes
            and round_of(message) in rounds
        )
        return None if lost else deliver()

    return interfere


@pytest.mark.parametrize("mode", [Mode.UNTRUSTED, Mode.LOCAL_ONLY])
def test_a_client_that_does_not_answer_is_left_out_and_comes_back(
    federation: Make, mode: Mode, caplog: pytest.LogCaptureFixture
) -> None:
    fed = federation(mode, rounds=40)
    fed.grid.interfere = lose("gradient", {1001}, {2})
    fed.run(timeout=0.2)
    assert [report.round for report in fed.reports] == list(range(1, 41))
    assert [report.answered for report in fed.reports[:2]] == [3, 2]
    assert fed.reports[-1].answered == 3
    assert "Client 1001 gave no usable answer" in caplog.text


def test_an_answer_that_is_late_is_not_waited_for(federation: Make) -> None:
    fed = federation(Mode.LOCAL_ONLY, rounds=2)
    fed.grid.hold = lambda message: (
        30.0 if (kind_of(message), message.metadata.dst_node_id) == ("gradient", 1002) else 0.0
    )
    fed.run(timeout=0.2)
    assert fed.reports[0].answered == 2
    assert max(report.seconds for report in fed.reports) < 2


def test_an_invitation_that_is_not_answered_costs_its_client_the_block_only(
    federation: Make,
) -> None:
    fed = federation(rounds=6, rounds_per_invitation=2)
    fed.grid.interfere = lose("invite", {1000}, {3})
    fed.run(timeout=0.2)
    available = [report.available for report in fed.reports]
    assert available[:2] == [3, 3]
    assert available[2:4] == [2, 2]


def test_a_client_that_goes_offline_does_not_stop_the_run_and_may_return(federation: Make) -> None:
    fed = federation(Mode.UNTRUSTED, rounds=9)

    def come_and_go(round_: int, _: np.ndarray) -> None:
        if round_ == 3:
            fed.grid.online.discard(1002)
        if round_ == 6:
            fed.grid.online.add(1002)

    fed.run(evaluate=come_and_go)
    assert [report.answered for report in fed.reports] == [3, 3, 3, 2, 2, 2, 3, 3, 3]


def test_a_client_that_joins_later_takes_part_from_then_on(federation: Make) -> None:
    fed = federation(Mode.UNTRUSTED, rounds=8)
    fed.grid.online.discard(1002)

    def join(round_: int, _: np.ndarray) -> None:
        if round_ == 4:
            fed.grid.online.add(1002)

    fed.run(evaluate=join, expected_clients=2)
    answered = [report.answered for report in fed.reports]
    assert answered[:4] == [2, 2, 2, 2]
    assert answered[-1] == 3


CORRUPT: dict[str, dict[str, Any]] = {
    "short": {"sum": bytes(4 * 2409)},
    "doubles": {"sum": bytes(8 * 2410)},
    "nan": {"sum": np.full(2410, np.nan, "<f4").tobytes()},
    "infinite": {"sum": np.full(2410, np.inf, "<f4").tobytes()},
    "another type": {"sum": "hello"},
    "missing": {"other": 1},
}


@pytest.mark.parametrize("fields", CORRUPT.values(), ids=CORRUPT)
def test_a_corrupt_reply_is_dropped_and_its_client_named(
    federation: Make, fields: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    fed = federation(Mode.NONE, **EVERYTHING, sizes=(12, 12), rounds=1)

    def corrupt(message: Message, deliver: Deliver) -> Message:
        if (kind_of(message), message.metadata.dst_node_id) == ("gradient", 1001):
            return reply_with(message, **fields)
        return deliver()

    fed.grid.interfere = corrupt
    weights = fed.run()
    assert (fed.reports[0].answered, fed.reports[0].dropped) == (1, 1)
    assert "Dropped what client 1001 sent" in caplog.text
    del fed.grid.policies[1001]
    np.testing.assert_allclose(weights, central_descent(fed, 1, 24), atol=1e-5)


def test_replies_that_come_twice_count_once(federation: Make) -> None:
    fed = federation(Mode.NONE, **EVERYTHING, rounds=3)
    fed.grid.copies = 2
    np.testing.assert_allclose(fed.run(), central_descent(fed, 3, 36), atol=1e-5)


def test_a_client_that_dies_in_mid_round_does_not_stop_it(federation: Make) -> None:
    fed = federation(Mode.UNTRUSTED, rounds=3)

    def die(message: Message, deliver: Deliver) -> Message:
        if (kind_of(message), message.metadata.dst_node_id) == ("gradient", 1000):
            return Message(Error(8, "the process died"), reply_to=message)
        return deliver()

    fed.grid.interfere = die
    fed.run()
    assert [report.answered for report in fed.reports] == [2, 2, 2]


# Who is in


def test_a_client_that_refuses_stays_out_and_the_run_goes_on(
    federation: Make, caplog: pytest.LogCaptureFixture
) -> None:
    fed = federation(policy={1: {"least_noise_multiplier": 9.0}})
    fed.run()
    assert {report.available for report in fed.reports} == {2}
    assert Counter(event.node for event in fed.grid.sent("enrol"))[1001] == 1
    assert {event.node for event in fed.grid.sent("invite")} == {1000, 1002}
    assert fed.entries(1001, "charge") == []
    assert f"Client 1001 stays away: {Refusal.NOISE.value}" in caplog.text


def test_an_answer_to_enrolment_that_makes_no_sense_leaves_the_client_out(
    federation: Make,
) -> None:
    fed = federation(Mode.NONE, **EVERYTHING, sizes=(12, 12, 12, 12), rounds=2)
    junk: dict[int, dict[str, Any]] = {
        1000: {"enrolled": True, "declared-size": True, "reason": ""},
        1001: {"enrolled": True, "declared-size": -5, "reason": "x" * 10_000},
        1002: {"enrolled": 1},
    }

    def spoil(message: Message, deliver: Deliver) -> Message:
        node = message.metadata.dst_node_id
        if kind_of(message) == "enrol" and node in junk:
            return reply_with(message, **junk[node])
        return deliver()

    fed.grid.interfere = spoil
    fed.run(expected_clients=3)
    assert {report.available for report in fed.reports} == {1}


def test_too_few_clients_stop_the_run_with_a_sentence(federation: Make) -> None:
    fed = federation(policy={i: {"modes": ["quiet"]} for i in range(3)})
    with pytest.raises(TooFewClientsError) as caught:
        fed.run(patience_seconds=0.2)
    assert str(caught.value) == (
        "Only 0 of at least 1 clients were there for 0.2 s, so the run stops. "
        f"3 of 3 clients refuse: {Refusal.MODE.value}"
    )


def test_a_lying_clients_reason_is_quoted_in_log_and_error(
    federation: Make, caplog: pytest.LogCaptureFixture
) -> None:
    fed = federation()
    lie = f"no\n2026-01-01 00:00:00,000 INFO Round 7 done\x1b[2J\x9b31m{'x' * 9000}"

    def refuse(message: Message, deliver: Deliver) -> Message:
        return reply_with(message, enrolled=False, **{"declared-size": 0, "reason": lie})

    fed.grid.interfere = refuse
    with pytest.raises(TooFewClientsError) as caught:
        fed.run(patience_seconds=0.2)
    for text in (str(caught.value), *caplog.messages):
        assert text.isprintable()
        assert len(text) < 1000
    assert "stays away: 'no\\n2026-01-01" in caplog.text


def test_fewer_than_the_least_number_stop_the_run(federation: Make) -> None:
    fed = federation()
    with pytest.raises(TooFewClientsError, match="Only 3 of at least 4 clients"):
        fed.run(least_clients=4, patience_seconds=0.2)
    assert fed.grid.sent("invite") == []


@pytest.mark.parametrize("mode", [Mode.UNTRUSTED, Mode.TRUSTED])
def test_clients_that_enrol_but_always_fail_stop_the_run_too(federation: Make, mode: Mode) -> None:
    fed = federation(mode, rounds=1000)

    def fail(message: Message, deliver: Deliver) -> Message:
        if kind_of(message) == "enrol":
            return deliver()
        return Message(Error(2, "failed"), reply_to=message)

    fed.grid.interfere = fail
    with pytest.raises(TooFewClientsError, match="Only 0 of at least 1"):
        fed.run(patience_seconds=0.4)
    assert len(fed.reports) < 50


def test_a_round_that_too_few_answered_makes_no_step(
    federation: Make, caplog: pytest.LogCaptureFixture
) -> None:
    fed = federation(Mode.UNTRUSTED, rounds=2)
    fed.grid.interfere = lose("gradient", {1000, 1001}, {1, 2})
    models: list[np.ndarray] = []
    fed.run(timeout=0.2, least_clients=2, evaluate=lambda _, weights: models.append(weights))
    assert np.array_equal(models[0], fed.initial())
    assert "Round 1 had too few available clients; no step." in caplog.text
