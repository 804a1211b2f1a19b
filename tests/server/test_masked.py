"""A server in mode masked: what it learns from sums, from notaries, and from nobody else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from flwr.app import Error, Message
from scipy import stats

from coinflower.learning import Update
from coinflower.masking.sealing import public_bytes
from coinflower.masking.vouchers import VOUCHER_BYTES
from coinflower.protocol import messages
from coinflower.protocol.modes import Mode
from coinflower.protocol.objections import Objection
from coinflower.server.attendance import TooFewClientsError
from coinflower.server.masked.opening import NotaryError
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
from tests.support.participants import variance_p_value

Make = Callable[..., Any]
FOUR = (12, 12, 12, 12)


def opened(fed: Any, node: int = NOTARY_NODE) -> int:
    return sum(each.rounds for each in fed.grid.notaries[node]._record.opened())


def stepped(fed: Any) -> int:
    """In how many rounds the model moved."""
    kept = fed.checkpoints().load()
    return 0 if kept is None else kept.round


def moves(fed: Any, **options: Any) -> np.ndarray:
    """The step of every round."""
    path = [fed.initial()]
    fed.run(evaluate=lambda _, weights: path.append(weights), **options)
    return np.diff(np.stack(path), axis=0)


def test_the_model_learns_from_the_exact_sum_of_all_clients(federation: Make) -> None:
    changes = {"p": 1.0, "q": 1.0, "noise_multiplier": 1e-3, "rounds": 3}
    limits = {index: {"budget": {"epsilon": 1e9, "delta": 1e-5}} for index in range(4)}
    told = {}
    for mode in (Mode.MASKED, Mode.UNTRUSTED):
        fed = federation(mode, sizes=(12, 7, 20, 9), policy=limits, **changes)
        told[mode] = fed.run()
        fed.grid.owners.close()
        for path in fed.folder.glob("*"):
            if path.is_file():
                path.unlink()
        fed.state.rename(fed.folder / f"server-{mode}")
    start = fed.initial()
    lengths = [np.linalg.norm(told[mode] - start) for mode in told]
    apart = np.linalg.norm(told[Mode.MASKED] - told[Mode.UNTRUSTED])
    assert apart < 0.02 * min(lengths)


@pytest.mark.parametrize("colluders", [1, 2])
def test_the_sum_carries_the_noise_of_all_shares(federation: Make, colluders: int) -> None:
    fed = federation(
        Mode.MASKED,
        sizes=FOUR,
        colluders=colluders,
        rounds=2,
        q=1e-9,
        p=1.0,
        update=Update(learning_rate=1.0),
    )
    scale = 1e-9 * sum(FOUR)
    std = 1.5 * np.sqrt(4 / (4 - colluders)) / scale
    for step in moves(fed):
        assert variance_p_value(step, std) > 1e-7
        assert variance_p_value(step, std / np.sqrt(4)) < 1e-7
        assert variance_p_value(step, 1.2 * std) < 1e-7


def test_every_client_is_asked_in_every_round_and_the_notary_is_no_client(federation: Make) -> None:
    fed = federation(Mode.MASKED, sizes=FOUR, rounds=5)
    fed.run()
    assert opened(fed) == stepped(fed) == 5
    assert rounds_sent(fed, "gradient") == {node: [1, 2, 3, 4, 5] for node in fed.nodes}
    assert not fed.grid.sent("invite")
    assert {event.node for event in fed.grid.sent("open")} == {NOTARY_NODE}
    assert [report.available for report in fed.reports] == [4] * 5


def test_dropouts_above_the_threshold_cost_nothing(federation: Make) -> None:
    fed = federation(Mode.MASKED, sizes=FOUR, threshold=3, rounds=6)
    fed.grid.interfere = lambda message, deliver: (
        None
        if kind_of(message) == "gradient"
        and message.metadata.dst_node_id == 1000 + round_of(message) % 4
        else deliver()
    )
    fed.run(timeout=0.1)
    assert opened(fed) == stepped(fed) == 6
    assert {report.answered for report in fed.reports} <= {3, 4}


def test_below_the_threshold_a_round_is_void_charged_and_not_opened(federation: Make) -> None:
    fed = federation(Mode.MASKED, sizes=FOUR, threshold=4, rounds=4)
    fed.grid.interfere = lambda message, deliver: (
        None
        if kind_of(message) == "gradient"
        and round_of(message) == 2
        and message.metadata.dst_node_id == 1000
        else deliver()
    )
    fed.run(timeout=0.1)
    assert opened(fed) == 3
    assert [event.round for event in fed.grid.sent("open")] == [1, 3, 4]
    assert [len(fed.entries(node, "charge")) for node in fed.nodes] == [3, 4, 4, 4]


# Notaries that are away, or lie


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
    fed.run()
    assert (opened(fed), opened(fed, 9001)) == (4, 3)
    assert stepped(fed) == 4
    assert len({report.round for report in fed.reports}) == 4


# Clients that send garbage


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


# Servers that lie


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
