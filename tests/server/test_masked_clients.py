"""A server in mode masked whose clients send garbage, or are not allowed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from flwr.app import Message

from coinflower.protocol import messages
from coinflower.protocol.modes import Mode
from coinflower.server.clients.attendance import TooFewClientsError
from tests.support.masked_rounds import FOUR, opened, stepped
from tests.support.memory_grid import (
    NOTARY_NODE,
    Deliver,
    kind_of,
    reply_with,
    round_of,
    rounds_sent,
)
from tests.support.notaries import make_notary, signing_keys

Make = Callable[..., Any]


@pytest.mark.parametrize(
    "spoil",
    [
        {"sum": b""},
        {"sum": bytes(17)},
        {"sum": "text"},
        {"ticket": b""},
        {"ticket": bytes(1000)},
        {"ticket": 7},
        {},
    ],
    ids=str,
)
def test_what_is_no_answer_is_dropped_and_the_run_goes_on(
    federation: Make, spoil: dict[str, Any]
) -> None:
    fed = federation(Mode.MASKED, sizes=FOUR, threshold=3, rounds=4)

    def interfere(message: Message, deliver: Deliver) -> Message | None:
        reply = deliver()
        if kind_of(message) == "gradient" and message.metadata.dst_node_id == 1000:
            whole = dict(reply.content.config_records[messages.ANSWER])
            return reply_with(message, **({**whole, **spoil} if spoil else {}))
        return reply

    fed.grid.interfere = interfere
    fed.run()
    assert opened(fed) == stepped(fed) == 4
    assert all(report.answered == 3 for report in fed.reports)


def test_a_client_with_a_false_ticket_voids_one_round_and_is_left_out(
    federation: Make, caplog: pytest.LogCaptureFixture
) -> None:
    fed = federation(Mode.MASKED, sizes=FOUR, threshold=3, rounds=5)

    def interfere(message: Message, deliver: Deliver) -> Message | None:
        reply = deliver()
        if kind_of(message) == "gradient" and message.metadata.dst_node_id == 1002:
            answer = reply.content.config_records[messages.ANSWER]
            ticket = answer[messages.TICKET]
            assert isinstance(ticket, bytes)
            answer[messages.TICKET] = ticket[:-1] + bytes([ticket[-1] ^ 1])
        return reply

    fed.grid.interfere = interfere
    fed.run()
    assert opened(fed) == 4
    assert rounds_sent(fed, "gradient")[1002] == [1]
    assert [report.available for report in fed.reports] == [4, 3, 3, 3, 3]
    assert "Client 1002 stays away: A notary refused this client's ticket." in caplog.text


def test_a_client_that_hands_in_the_ticket_of_another_opens_nothing_and_is_left_out(
    federation: Make,
) -> None:
    fed = federation(Mode.MASKED, sizes=FOUR, threshold=3, rounds=4)
    first: dict[int, Any] = {}

    def interfere(message: Message, deliver: Deliver) -> Message | None:
        reply = deliver()
        if kind_of(message) == "gradient" and message.metadata.dst_node_id in (1000, 1001):
            answer = reply.content.config_records[messages.ANSWER]
            ticket = first.setdefault(round_of(message), answer[messages.TICKET])
            answer[messages.TICKET] = ticket  # that of 1000, which is asked first
        return reply

    fed.grid.interfere = interfere
    fed.run()
    assert opened(fed) == 3
    assert rounds_sent(fed, "gradient")[1001] == [1]


def test_a_sum_that_is_far_too_long_spoils_the_model_and_nothing_else(federation: Make) -> None:
    fed = federation(Mode.MASKED, sizes=FOUR, rounds=3)

    def interfere(message: Message, deliver: Deliver) -> Message | None:
        reply = deliver()
        if kind_of(message) == "gradient" and message.metadata.dst_node_id == 1003:
            answer = reply.content.config_records[messages.ANSWER]
            numbers = np.frombuffer(bytes(answer[messages.SUM]), "<u4")  # type: ignore[arg-type]
            answer[messages.SUM] = (numbers + np.uint32(2**30)).tobytes()
        return reply

    fed.grid.interfere = interfere
    assert np.isfinite(fed.run()).all()
    assert opened(fed) == stepped(fed) == 3


def test_clients_that_declare_more_than_the_ring_holds_are_left_out(federation: Make) -> None:
    fed = federation(
        Mode.MASKED, sizes=(*FOUR, 12, 12), threshold=3, rounds=3, q=1.0, noise_multiplier=1.0
    )

    def interfere(message: Message, deliver: Deliver) -> Message | None:
        reply = deliver()
        if kind_of(message) == "enrol" and message.metadata.dst_node_id in (1000, 1002):
            reply.content.config_records[messages.ANSWER][messages.DECLARED_SIZE] = 9_000_000
        return reply

    fed.grid.interfere = interfere
    fed.run(expected_clients=4)
    assert opened(fed) == 3
    asked = rounds_sent(fed, "gradient")
    assert asked[1002] == []
    assert asked[1003] == asked[1005] == [1, 2, 3]


def test_a_client_that_the_notary_does_not_allow_stays_out_until_it_does(federation: Make) -> None:
    fed = federation(Mode.MASKED, sizes=FOUR, threshold=3, rounds=3)
    keys = signing_keys(fed.grid.policies.values())
    fed.grid.notaries[NOTARY_NODE] = make_notary(fed.folder / "notary", keys[:3])
    fed.run()
    assert opened(fed) == 3
    assert rounds_sent(fed, "gradient")[1003] == []
    assert not fed.entries(1003, "charge")


def test_too_few_allowed_clients_end_the_run_with_the_reason(federation: Make) -> None:
    fed = federation(Mode.MASKED, sizes=FOUR, threshold=3, rounds=3)
    keys = signing_keys(fed.grid.policies.values())
    fed.grid.notaries[NOTARY_NODE] = make_notary(fed.folder / "notary", keys[:2])
    with pytest.raises(TooFewClientsError, match="2 of 4 clients refuse: A notary does not allow"):
        fed.run(patience_seconds=0.5)
    assert not fed.grid.sent("gradient")
