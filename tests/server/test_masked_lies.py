"""A server that lies in mode masked: nothing is opened that the threshold does not cover."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from flwr.app import Message
from scipy import stats

from coinflower.masking.vouchers import VOUCHER_BYTES
from coinflower.protocol import messages
from coinflower.protocol.modes import Mode
from coinflower.protocol.objections import Objection
from coinflower.server.clients.attendance import TooFewClientsError
from coinflower.server.masked.opening import NotaryError
from tests.support.masked_rounds import FOUR, opened
from tests.support.memory_grid import NOTARY_NODE, Deliver, asked_of, kind_of

Make = Callable[..., Any]


def test_a_server_that_asks_twice_or_swaps_rounds_is_told_nothing(federation: Make) -> None:
    fed = federation(Mode.MASKED, sizes=FOUR, threshold=3, rounds=3)
    asked: list[dict[str, Any]] = []
    fed.grid.before_push = lambda message: (
        asked.append(asked_of(message)) if kind_of(message) == "open" else None
    )
    fed.run()
    app = fed.grid
    size = len(asked[0][messages.TICKETS]) // 4

    def ask(**changes: Any) -> dict[str, Any]:
        from tests.support.participants import ask as message_of
        from tests.support.participants import question

        content = {**asked[1], **changes}
        terms = content.pop(messages.TERMS)
        del content[messages.SALT]
        message = message_of("query.open", question(terms, **content))
        message.metadata.dst_node_id = NOTARY_NODE
        answer = app._ask_notary(message).content.config_records[messages.ANSWER]
        return dict(answer)

    tickets = asked[1][messages.TICKETS]
    for change in (
        {},
        {messages.TICKETS: tickets[: 3 * size]},
        {messages.TICKETS: tickets[size:]},
        {messages.ROUND: 4},
        {messages.ROUND: 1, messages.TICKETS: asked[0][messages.TICKETS]},
    ):
        told = ask(**change)
        assert told[messages.OPENED] is False
        assert messages.MASKS not in told
        assert told[messages.REASON] in {Objection.ROUND.value, Objection.TICKETS.value}
    assert opened(fed) == 3


@pytest.mark.parametrize("lie", ["names one that sent nothing", "leaves one out"])
def test_a_sum_of_others_than_those_whose_tickets_are_opened_stays_masked(
    federation: Make, lie: str
) -> None:
    fed = federation(Mode.MASKED, sizes=FOUR, threshold=3, rounds=1)
    sums: list[Any] = []
    tickets: list[bytes] = []

    def interfere(message: Message, deliver: Deliver) -> Message | None:
        reply = deliver()
        if kind_of(message) == "gradient":
            answer = reply.content.config_records[messages.ANSWER]
            sums.append(np.frombuffer(bytes(answer[messages.SUM]), "<u4"))  # type: ignore[arg-type]
            tickets.append(bytes(answer[messages.TICKET]))  # type: ignore[arg-type]
            return None
        return reply

    fed.grid.interfere = interfere
    fed.run(timeout=0.1)
    named = tickets if lie.startswith("names") else tickets[:3]
    added = sums[:3] if lie.startswith("names") else sums
    notary = fed.grid.notaries[NOTARY_NODE]
    masks = np.frombuffer(notary.open(fed.terms, 1, len(sums[0]), b"".join(named)), "<u4")
    left = np.sum(added, axis=0, dtype=np.uint32) - masks
    # All of the ring is used alike: 16 boxes, false alarm 1e-6.
    boxes = np.bincount(left >> 28, minlength=16)
    assert stats.chisquare(boxes).pvalue > 1e-6
    whole = np.sum(sums, axis=0, dtype=np.uint32)
    if named == tickets:
        assert stats.chisquare(np.bincount((whole - masks) >> 28, minlength=16)).pvalue < 1e-6


def test_a_server_whose_state_is_older_than_the_notary_s_stops(federation: Make) -> None:
    fed = federation(Mode.MASKED, sizes=FOUR, rounds=4)
    keep = {path: path.read_bytes() for path in fed.folder.glob("*.db")}
    fed.run()
    fed.grid.owners.close()
    for path in (*fed.state.iterdir(),):
        path.unlink()
    for path, content in keep.items():  # as if the clients had never heard of it either
        path.write_bytes(content)
    with pytest.raises((NotaryError, TooFewClientsError)):
        fed.run(patience_seconds=0.5)
    assert opened(fed) == 4
    assert not any(fed.entries(node, "charge") for node in fed.nodes)


def test_a_server_that_forgets_cannot_hide_that_a_ledger_was_set_back(federation: Make) -> None:
    fed = federation(Mode.MASKED, sizes=FOUR, threshold=3, rounds=8)
    ledger = fed.folder / "client-0.db"

    class StopError(Exception):
        pass

    def stop(round_: int, _: np.ndarray) -> None:
        if round_ in (2, 4):
            raise StopError

    with pytest.raises(StopError):
        fed.run(evaluate=stop)
    fed.grid.owners.close()
    older = ledger.read_bytes()
    with pytest.raises(StopError):
        fed.run(evaluate=stop)
    fed.grid.owners.close()
    ledger.write_bytes(older)
    (fed.state / "echoes.json").unlink()
    fed.run()
    assert opened(fed) == 8
    assert len(fed.entries(1000, "charge")) == 2
    assert len(fed.entries(1001, "charge")) == 8


@pytest.mark.parametrize("lie", [b"", bytes(VOUCHER_BYTES), b"older"])
def test_a_voucher_that_the_server_makes_up_or_keeps_is_not_believed(
    federation: Make, lie: bytes
) -> None:
    fed = federation(Mode.MASKED, sizes=FOUR, threshold=3, rounds=3)
    kept: list[bytes] = []

    def interfere(message: Message, deliver: Deliver) -> Message | None:
        if kind_of(message) == "gradient" and message.metadata.dst_node_id == 1000:
            beside = message.content.config_records[messages.ECHO]
            kept.append(bytes(beside[messages.VOUCHERS]))  # type: ignore[arg-type]
            # An older one is another enrolment's.
            beside[messages.VOUCHERS] = kept[max(0, len(kept) - 2)] if lie == b"older" else lie
            if lie == b"older" and len(kept) == 1:
                beside[messages.VOUCHERS] = b""
        return deliver()

    fed.grid.interfere = interfere
    fed.run()
    assert opened(fed) == 3
    assert not fed.entries(1000, "charge")
    assert len(fed.entries(1001, "charge")) == 3
