"""A server in mode masked whose notaries are away, or lie."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from flwr.app import Error, Message

from coinflower.masking.sealing import public_bytes
from coinflower.masking.tickets import Occasion
from coinflower.protocol import messages
from coinflower.protocol.modes import Mode
from coinflower.server.clients.attendance import TooFewClientsError
from coinflower.server.masked.notaries import Asked, Notaries
from tests.support.masked_rounds import FOUR, opened, stepped
from tests.support.memory_grid import (
    NOTARY_NODE,
    Deliver,
    asked_of,
    kind_of,
    reply_with,
    round_of,
    rounds_sent,
)
from tests.support.notaries import NOTARY, make_notary, signing_keys

Make = Callable[..., Any]


def test_while_the_notary_is_down_one_round_is_void_and_then_the_run_waits(
    federation: Make, clock: Any
) -> None:
    fed = federation(Mode.MASKED, sizes=FOUR, rounds=5)
    down = {"since": 0.0}

    def interfere(message: Message, deliver: Deliver) -> Message | None:
        if message.metadata.dst_node_id != NOTARY_NODE:
            return deliver()
        if kind_of(message) == "open" and round_of(message) == 2 and not down["since"]:
            down["since"] = clock.monotonic()
        away = down["since"] and clock.monotonic() < down["since"] + 1.0
        return Message(Error(1, "away"), reply_to=message) if away else deliver()

    fed.grid.interfere = interfere
    fed.run(timeout=0.1)
    assert opened(fed) == 4
    assert rounds_sent(fed, "gradient")[1000] == [1, 2, 3, 4, 5]
    assert clock.monotonic() > down["since"] + 1.0


def test_a_notary_that_never_comes_back_ends_the_run_with_one_sentence(federation: Make) -> None:
    fed = federation(Mode.MASKED, sizes=FOUR, rounds=5)
    fed.grid.interfere = lambda message, deliver: (
        None if kind_of(message) == "open" and round_of(message) == 2 else deliver()
    )
    fed.grid.before_push = lambda message: (
        fed.grid.online.discard(NOTARY_NODE) if round_of(message) == 2 else None
    )
    with pytest.raises(TooFewClientsError, match=f"No node is the notary {NOTARY[:16]}….*stops"):
        fed.run(timeout=0.1, patience_seconds=0.5)
    assert len(fed.entries(1000, "charge")) == 2


def test_without_a_notary_no_client_is_asked_for_anything(federation: Make) -> None:
    fed = federation(Mode.MASKED, sizes=FOUR)
    fed.grid.online.discard(NOTARY_NODE)
    with pytest.raises(TooFewClientsError, match="No node is the notary"):
        fed.run(patience_seconds=0.5)
    assert not fed.grid.sent("gradient")


def test_a_notary_whose_record_cannot_be_written_is_none_and_nobody_is_charged(
    federation: Make,
) -> None:
    fed = federation(Mode.MASKED, sizes=FOUR)
    record = fed.folder / "notary" / "record.db"
    record.rename(record.with_name("away.db"))
    with pytest.raises(TooFewClientsError, match="No node is the notary"):
        fed.run(patience_seconds=0.5)
    assert not fed.grid.sent("vouch")
    assert not any(fed.entries(node, "charge") for node in fed.nodes)


def test_a_notary_that_is_killed_before_its_answer_leaves_costs_one_round(federation: Make) -> None:
    fed = federation(Mode.MASKED, sizes=FOUR, rounds=4)

    def interfere(message: Message, deliver: Deliver) -> Message | None:
        reply = deliver()
        lost = kind_of(message) == "open" and round_of(message) == 2
        return None if lost else reply

    fed.grid.interfere = interfere
    fed.run(timeout=0.1)
    assert [event.round for event in fed.grid.sent("open")] == [1, 2, 3, 4]
    assert (opened(fed), len(fed.reports)) == (4, 4)
    assert all(len(fed.entries(node, "charge")) == 4 for node in fed.nodes)


def test_a_node_that_only_says_it_is_the_notary_is_found_out(
    federation: Make, caplog: pytest.LogCaptureFixture
) -> None:
    fed = federation(Mode.MASKED, sizes=FOUR, rounds=4)
    liar = 8000
    fed.grid.notaries = {
        liar: make_notary(
            fed.folder / "liar",
            signing_keys(fed.grid.policies.values()),
            X25519PrivateKey.generate(),
        ),
        **fed.grid.notaries,
    }
    fed.grid.notaries[liar].name = NOTARY
    fed.grid.online.add(liar)
    fed.run()
    assert opened(fed) == stepped(fed) == 4
    assert "Node 8000 is not the notary that it says it is" in caplog.text


def test_a_notary_of_others_is_left_alone(federation: Make) -> None:
    fed = federation(Mode.TRUSTED)
    fed.grid.notaries = {NOTARY_NODE: make_notary(fed.folder / "notary", [])}
    fed.grid.online.add(NOTARY_NODE)
    fed.run()
    assert {event.kind for event in fed.grid.events if event.node == NOTARY_NODE} == {"enrol"}
    assert len(fed.grid.sent("enrol")) == 4
    assert [report.available for report in fed.reports] == [3] * 6


@pytest.mark.parametrize(
    "fields",
    [{}, {"opened": True}, {"opened": True, "masks": b"", "proof": b""}, {"opened": False}],
)
def test_a_senseless_answer_of_a_notary_voids_the_round(
    federation: Make, fields: dict[str, Any]
) -> None:
    fed = federation(Mode.MASKED, sizes=FOUR, rounds=3)
    fed.grid.interfere = lambda message, deliver: (
        reply_with(message, **fields)
        if kind_of(message) == "open" and round_of(message) == 2
        else deliver()
    )
    if "proof" in fields or fields.get("opened") is False:  # says something, and proves nothing
        with pytest.raises(TooFewClientsError, match="No node is the notary"):
            fed.run(timeout=0.1, patience_seconds=0.5)
        assert opened(fed) == 1
    else:
        fed.run(timeout=0.1)
        assert opened(fed) == 2


def test_several_notaries_are_all_needed(federation: Make) -> None:
    second = X25519PrivateKey.generate()
    names = sorted([NOTARY, public_bytes(second).hex()])
    limits = {index: {"notaries": names} for index in range(4)}
    fed = federation(Mode.MASKED, sizes=FOUR, rounds=4, policy=limits, notaries=tuple(names))
    fed.grid.notaries[9001] = make_notary(
        fed.folder / "second", signing_keys(fed.grid.policies.values()), second
    )
    fed.grid.online.add(9001)
    fed.grid.interfere = lambda message, deliver: (
        Message(Error(1, "away"), reply_to=message)
        if kind_of(message) == "open"
        and round_of(message) == 2
        and message.metadata.dst_node_id == 9001
        else deliver()
    )
    learnt = fed.run()
    assert (opened(fed), opened(fed, 9001)) == (4, 3)
    assert stepped(fed) == 4
    assert len({report.round for report in fed.reports}) == 4
    assert np.abs(learnt).max() < 1e3  # numbers under a mask are far larger


def test_a_notary_is_not_told_who_answered_first(federation: Make) -> None:
    fed = federation(Mode.MASKED, sizes=FOUR, rounds=6)
    came: dict[int, list[bytes]] = {}
    asked: dict[int, bytes] = {}

    def interfere(message: Message, deliver: Deliver) -> Message | None:
        reply = deliver()
        if kind_of(message) == "gradient":
            ticket = reply.content.config_records[messages.ANSWER][messages.TICKET]
            came.setdefault(round_of(message), []).append(bytes(ticket))  # type: ignore[arg-type]
        if kind_of(message) == "open":
            asked[round_of(message)] = asked_of(message)[messages.TICKETS]
        return reply

    fed.grid.interfere = interfere
    fed.run()
    assert len(asked) == opened(fed) == 6
    assert asked == {round_: b"".join(sorted(tickets)) for round_, tickets in came.items()}


@pytest.mark.parametrize("claim", ["zz", "", "é", "00" * 32, "00" * 31])
def test_a_claim_that_is_no_key_proves_nothing(federation: Make, claim: str) -> None:
    terms = federation(Mode.MASKED, sizes=FOUR).terms
    notaries = Notaries(terms)
    notaries.note(7, claim)
    asked = Asked(occasion=Occasion.of(terms, 1), content=b"tickets")
    assert not notaries.has_proved(7, asked, b"masks", bytes(32))
    assert notaries.node_of(NOTARY) is None
