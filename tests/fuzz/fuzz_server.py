"""The parameter server, from the bytes of clients' replies to the sum of a round."""

from __future__ import annotations

import contextlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.app.message import make_message
from flwr.common.serde import message_to_proto
from flwr.proto.message_pb2 import ObjectTree, PullObjectResponse
from flwr.supercore.task_identity import TaskIdentity

from coinflower.flower_internals import runtime
from coinflower.learning import make_task
from coinflower.learning.queries.evaluation import Evaluation
from coinflower.masking.answers import prove_answer
from coinflower.masking.sealing import public_bytes
from coinflower.masking.tickets import Occasion
from coinflower.masking.vouchers import VOUCHER_BYTES, write_request
from coinflower.protocol import messages
from coinflower.protocol.modes import Mode
from coinflower.protocol.objections import ObjectionError
from coinflower.protocol.query import Query, QueryKind
from coinflower.protocol.terms import Terms
from coinflower.server.aggregation import RunningSum
from coinflower.server.clients.invitations import _Block
from coinflower.server.clients.roster import Roster
from coinflower.server.grid import PromptGrid
from coinflower.server.masked.masked_sum import MaskedSum
from coinflower.server.masked.notaries import Asked, Notaries
from coinflower.server.masked.opening import Opening
from coinflower.server.masked.vouching import Vouching, _Sent
from tests.fuzz.fuzz_wire import body_of, framed, metadata, object_id, stored, tree_of
from tests.support.builders import exchange_in_process, make_http_grid, make_terms
from tests.support.notaries import KEY, NOTARY

LENGTH, SIZE = 15, 12
EVIL, HONEST = 7, 8
TERMS = make_terms(rounds_per_invitation=2)
# As long as real ones: a client cannot guess what another was asked.
ASKED = [object_id(b"first"), object_id(b"second")]
KINDS = ("enrol", "invite", "gradient", "masked", "opened", "vouched", "evaluated")
QUERY = Query(kind=QueryKind.EVALUATION, metrics=("accuracy", "loss"), largest_loss=5.0)
EVALUATED = make_terms(query=QUERY)
EVALUATION = Evaluation(QUERY, make_task("classification", {}, outputs=3))
MASKED = make_terms(Mode.MASKED)
OCCASION = Occasion.of(MASKED, 1)


class Server:
    """Of two clients one is honest; the other's reply is the input.

    The first byte chooses how deep the rest is put into the reply, the second what was asked.
    """

    def __init__(self, folder: Path) -> None:
        del folder
        runtime.pull_object = lambda superlink, _, request, *__: superlink.pull_object(request)
        runtime.exchange = exchange_in_process
        for name in ("_task_id", "_run_id", "_node_id"):
            setattr(TaskIdentity, name, 1)
        vector = np.linspace(-1, 1, LENGTH, dtype="<f4")
        self._honest = [
            {messages.ENROLLED: True, messages.DECLARED_SIZE: SIZE, messages.REASON: ""},
            {messages.COINS: [True, False]},
            {messages.SUM: vector.tobytes()},
        ]
        self._asked = Asked(occasion=OCCASION, content=b"tickets")
        masks = bytes(range(4 * LENGTH))
        self._request = write_request(bytes(32), bytes(16), public_bytes(KEY))
        self._requested = Asked(occasion=Occasion.of(MASKED, 0), content=2 * self._request)
        vouchers = 2 * (bytes(84) + b"a proof that its client would read")[:VOUCHER_BYTES]
        self._honest += [
            {messages.SUM: masks, messages.TICKET: bytes(OCCASION.ticket_bytes)},
            {messages.OPENED: True, messages.MASKS: masks, **_proved(self._asked, masks)},
            {messages.VOUCHERS: vouchers, **_proved(self._requested, vouchers)},
        ]
        self._figures = vector[: EVALUATION.length]
        self._honest.append({messages.SUM: self._figures.tobytes()})
        self._vector = vector
        self.seeds = []
        for kind, fields in enumerate(self._honest):
            record = ConfigRecord(fields)
            content = RecordDict({messages.ANSWER: record})
            message = make_message(metadata=_reply_metadata(ASKED[0]), content=content)
            self.seeds += [
                bytes([0, kind]) + body_of(record),
                bytes([1, kind]) + body_of(content),
                bytes([2, kind]) + message.deflate().partition(b"\x00")[2],
                bytes([3, kind]) + message.deflate(),
            ]
        self.seeds.append(bytes([4, 2]) + vector.tobytes())
        self.seeds.append(bytes([4, KINDS.index("evaluated")]) + self._figures.tobytes())

    def __call__(self, data: bytes) -> None:
        """Let both answer, the dishonest one first; the honest one must count all the same."""
        if len(data) < 2:
            return
        kind = data[1] % len(KINDS)
        superlink = _Runtime()
        length = EVALUATION.length if KINDS[kind] == "evaluated" else LENGTH
        superlink.add(ASKED[0], _dishonest(data[0] % 5, data[2:], length))
        honest = RecordDict({messages.ANSWER: ConfigRecord(self._honest[kind])})
        superlink.add(
            ASKED[1], _objects(make_message(metadata=_reply_metadata(ASKED[1]), content=honest))
        )
        grid = PromptGrid(make_http_grid(superlink), poll_interval=0.0, batch=2)
        asked = [
            Message(RecordDict(), dst_node_id=node, message_type="query.x", ttl=60.0)
            for node in (EVIL, HONEST)
        ]
        pending = grid.push(asked)
        replies = list(pending.poll())
        assert len(replies) <= 2
        getattr(self, f"_{KINDS[kind]}")(grid, replies)

    def _enrol(self, grid: PromptGrid, replies: list[Message]) -> None:
        roster = Roster(grid, TERMS, 60.0)
        roster._online = {EVIL, HONEST}
        for reply in replies:
            roster._note(reply)
        assert roster.present[HONEST] == SIZE
        assert all(type(size) is int and size > 0 for size in roster.present.values())
        assert all(isinstance(reason, str) for reason in roster.refusals.values())

    def _invite(self, grid: PromptGrid, replies: list[Message]) -> None:
        block = _Block(first=1, count=2, pending=grid.push([]))
        for reply in replies:
            block.note(reply)
        assert block.coins[HONEST] == [True, False]
        for coins in block.coins.values():
            assert [type(coin) for coin in coins] == [bool, bool]

    def _gradient(self, grid: PromptGrid, replies: list[Message]) -> None:
        del grid
        _summed(TERMS, replies, self._vector)

    def _evaluated(self, grid: PromptGrid, replies: list[Message]) -> None:
        """Whatever was added, the figures are numbers, or there are none."""
        del grid
        total = _summed(EVALUATED, replies, self._figures)
        for figure in EVALUATION.read(total, clip_norm=1.0, noise_std=0.5).values():
            assert (figure.value is None) == (figure.standard_error is None)
            assert np.isfinite([figure.value or 0.0, figure.standard_error or 0.0]).all()

    def _masked(self, grid: PromptGrid, replies: list[Message]) -> None:
        del grid
        total = MaskedSum(MASKED, LENGTH, {EVIL: SIZE, HONEST: SIZE})
        for reply in replies:
            total.add(reply)
        assert HONEST in total.answered
        assert set(total.tickets) == set(total.answered)
        assert {len(ticket) for ticket in total.tickets.values()} == {OCCASION.ticket_bytes}

    def _opened(self, grid: PromptGrid, replies: list[Message]) -> None:
        """Of two that say they are the notary, only what it proved itself is believed."""
        notaries = _claimed()
        opening = Opening(grid, MASKED, notaries, 60.0, lambda _: None)
        believed = set()
        for reply in replies:
            with contextlib.suppress(ObjectionError):
                believed.add(opening._masks_in(reply, self._asked, LENGTH).tobytes())
        assert believed == {self._honest[4][messages.MASKS]}

    def _vouched(self, grid: PromptGrid, replies: list[Message]) -> None:
        vouching = Vouching(grid, MASKED, _claimed(), 60.0)
        for node in (EVIL, HONEST):
            vouching.request(node, self._request)
        sent = _Sent(
            **vars(self._requested),
            notary=NOTARY,
            node=HONEST,
            requests={EVIL: self._request, HONEST: self._request},
            pending=SimpleNamespace(poll=lambda: replies),  # type: ignore[arg-type]
        )
        assert vouching._take(sent) == []
        told = self._honest[5][messages.VOUCHERS]
        assert isinstance(told, bytes)
        for node, part in ((EVIL, told[:VOUCHER_BYTES]), (HONEST, told[VOUCHER_BYTES:])):
            assert vouching.vouchers(node) == part


def _summed(terms: Terms, replies: list[Message], honest: Any) -> Any:
    total = RunningSum(terms, len(honest), {EVIL: SIZE, HONEST: SIZE})
    for reply in replies:
        total.add(reply)
    assert HONEST in total.answered
    assert np.isfinite(total.total).all()
    # Nobody can add more than all of its samples could.
    assert np.linalg.norm(total.total - honest) <= SIZE * 1.01
    if EVIL not in total.answered:
        assert np.allclose(total.total, honest, atol=1e-9)
    return total.total


def _claimed() -> Notaries:
    notaries = Notaries(MASKED)
    for node in (EVIL, HONEST):
        notaries.note(node, NOTARY)
    return notaries


def _proved(asked: Asked, told: bytes) -> dict[str, Any]:
    asker = public_bytes(asked.asker)
    return {messages.PROOF: prove_answer(asked.occasion, asked.content, told, KEY, asker)}


class _Runtime:
    """The SuperLink's Runtime API, as a ServerApp sees it."""

    def __init__(self) -> None:
        self._replies: dict[str, tuple[Any, ObjectTree]] = {}
        self._objects: dict[str, bytes] = {}

    def add(self, asked: str, reply: tuple[list[str], dict[str, bytes]]) -> None:
        path, objects = reply
        self._objects |= objects
        head = make_message(metadata=_reply_metadata(asked, path[0]), content=RecordDict())
        self._replies[asked] = message_to_proto(head), tree_of(*path)

    def PullMessages(self, request: Any) -> Any:  # noqa: N802 - Flower's name
        found = [self._replies.pop(name) for name in request.message_ids if name in self._replies]
        return SimpleNamespace(
            messages_list=[head for head, _ in found],
            message_object_trees=[tree for _, tree in found],
        )

    def PushMessages(self, request: Any) -> Any:  # noqa: N802
        names = ASKED[: len(request.messages_list)]
        return SimpleNamespace(message_ids=names, objects_to_push=[], session_id="")

    def pull_object(self, request: Any) -> tuple[PullObjectResponse, bytes]:
        there = request.object_id in self._objects
        response = PullObjectResponse(object_found=there, object_available=there)
        return response, self._objects.get(request.object_id, b"")

    def ConfirmMessageReceived(self, request: Any) -> None:  # noqa: N802
        del request


def _reply_metadata(asked: str, name: str = "") -> Any:
    return metadata(
        "query.x", message_id=name, src_node_id=EVIL, dst_node_id=1, reply_to_message_id=asked
    )


def _objects(message: Message) -> tuple[list[str], dict[str, bytes]]:
    record = message.content.config_records[messages.ANSWER]
    path = [message.object_id, message.content.object_id, record.object_id]
    return path, {**stored(message.content), path[0]: message.deflate()}


def _dishonest(depth: int, rest: bytes, length: int) -> tuple[list[str], dict[str, bytes]]:
    """Return the objects of a reply in which one object is as the input says."""
    if depth == 4:
        vector = rest[: 4 * length].ljust(4 * length, b"\0")
        record = ConfigRecord({messages.SUM: vector}).deflate()
    elif depth == 0:
        record = framed("ConfigRecord", [], rest)
    else:
        record = ConfigRecord({messages.SUM: bytes(4 * length)}).deflate()
    body = f'{{"{messages.ANSWER}": "{object_id(record)}"}}'.encode()
    content = framed("RecordDict", [object_id(record)], rest if depth == 1 else body)
    sound = make_message(metadata=_reply_metadata(ASKED[0]), content=RecordDict())
    head = framed("Message", [object_id(content)], body_of(sound))
    if depth == 2:
        head = framed("Message", [object_id(content)], rest)
    if depth == 3:
        head = rest
    parts = {object_id(part): part for part in (head, content, record)}
    return list(parts), parts
