"""A data owner's node, from the bytes of a poll to the bytes of its reply."""

from __future__ import annotations

import sqlite3
import threading
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents

from coinflower.accounting.ledger.echo import NO_TOKEN
from coinflower.accounting.ledger.ledger import Ledger
from coinflower.accounting.ledger.rows import chained
from coinflower.client.app import app
from coinflower.client.node.link import (
    ForgottenError,
    Link,
    LostMessageError,
    RejectedError,
    UnreachableError,
)
from coinflower.client.node.polling_group import PollingGroup
from coinflower.client.node.resident import ResidentNode
from coinflower.masking.masks import lifted, numbers_from_bytes, sum_of_masks
from coinflower.masking.tickets import Occasion, Ticket
from coinflower.masking.vouchers import write_voucher
from coinflower.protocol import messages
from coinflower.protocol.messages import FAILURE_REASON, vector_from_bytes
from coinflower.protocol.modes import Mode
from coinflower.protocol.policy import Refusal
from coinflower.protocol.query import Query, QueryKind
from coinflower.protocol.terms import Terms
from tests.fuzz.fuzz_wire import Wire, body_of, framed, object_id
from tests.support.builders import make_owner, make_terms
from tests.support.notaries import KEY

SAMPLES, CLASSES = 12, 3
LENGTH = 4 * CLASSES + CLASSES
KINDS = ("query.enrol", "query.invite", "train.gradient", "query.other", "train")
MODES = tuple(mode for mode in Mode if mode.is_private)
QUERY = Query(kind=QueryKind.EVALUATION, metrics=("accuracy", "loss"), largest_loss=5.0)
QUERY_LENGTH = 4
DECLARED = (UnreachableError, ForgottenError, RejectedError, LostMessageError)


class Client:
    """The first byte chooses how deep the rest is put into a message, the second its kind."""

    def __init__(self, folder: Path) -> None:
        self._ledger = folder / "ward7.db"
        policy = _make_owner(folder / "ward7.toml")
        self._wire = Wire()
        self._link = Link(
            "127.0.0.1:1",
            insecure=True,
            root_certificates=None,
            private_key=None,
            heartbeat_interval=10.0,
            polling_group=PollingGroup(cache_bytes=0),
            stop=threading.Event(),
        )
        self._link._fleet._client._client = self._wire.client()
        self._node = ResidentNode(
            "127.0.0.1:1",
            app,
            stop=threading.Event(),
            node_config={"policy": str(policy)},
            insecure=True,
        )
        self._terms = [_terms(mode, query) for query in (None, QUERY) for mode in MODES]
        self._fresh = [0] * len(self._terms)
        self._sizes: dict[str, int] = {}
        self._rows = sqlite3.connect(self._ledger, isolation_level=None)
        for terms in self._terms:
            self._send("query.enrol", _question(terms))
            answer = self._reply()
            assert answer is not None
            assert answer[messages.ENROLLED], answer[messages.REASON]
        with Ledger.open(self._ledger, read_only=True) as ledger:
            verified = ledger.verify()
        self._entries, self._head, self._inputs = verified.entries, verified.head, 0
        self._added: list[str] = []
        self.seeds = self._make_seeds()

    def _make_seeds(self) -> list[bytes]:
        weights = np.linspace(-1, 1, LENGTH, dtype="<f4").tobytes()
        seeds = [bytes([0, which]) + weights for which in range(len(self._terms))]
        for terms in self._terms:
            for kind, fields in enumerate(({}, {"round": 1, "count": 2}, {"weights": weights})):
                record = ConfigRecord({messages.TERMS: terms.to_json(), "round": 2, **fields})
                seeds.append(bytes([1, kind]) + body_of(record))
        record = ConfigRecord({messages.TERMS: "{}"})
        seeds.append(bytes([2, 1]) + body_of(RecordDict({messages.ASK: record})))
        self._wire.offer("query.enrol", _question(self._terms[0]))
        seeds.append(bytes([3, 0]) + self._wire.arrival)
        return seeds

    def __call__(self, data: bytes) -> None:
        """Let a message arrive; check what leaves, and what the ledger says about it."""
        if len(data) < 2:
            return
        depth, kind, rest = data[0] % 4, KINDS[data[1] % len(KINDS)], data[2:]
        if depth == 0:
            self._gradient(data[1] % len(self._terms), rest)
            return
        if depth == 1:
            record = framed("ConfigRecord", [], rest)
            body = f'{{"{messages.ASK}": "{object_id(record)}"}}'.encode()
            self._send(kind, [framed("RecordDict", [object_id(record)], body), record])
            self._check(self._reply(), record)
            return
        if depth == 2:
            record = ConfigRecord({messages.TERMS: self._terms[0].to_json()}).deflate()
            self._send(kind, [framed("RecordDict", [object_id(record)], rest), record])
        else:
            self._wire.objects = {}
            self._poll(rest)
        self._check(self._reply())

    def _gradient(self, which: int, rest: bytes) -> None:
        """Ask for a round that was not asked for yet, with any weights at all."""
        terms = self._terms[which]
        self._fresh[which] += 1
        while self._coin(terms, self._fresh[which]) is not None:
            self._fresh[which] += 1
        weights = rest[: 4 * LENGTH].ljust(4 * LENGTH, b"\0")
        vouchers = self._vouchers(terms, rest)
        before = self._count()
        question = _question(terms, vouchers, round=self._fresh[which], weights=weights)
        self._send("train.gradient", question)
        answer = self._reply()
        self._check(answer, question[1])
        if vouchers == rest and terms.mode.masks_sums:
            assert answer is None, "a client believed vouchers that no notary made"
            assert self._count() == before, "a client charged without a voucher"
            return
        if answer is not None:
            assert len(answer[messages.SUM]) == _sum_bytes(terms), "a sum of another length left"
        if answer is not None and terms.mode.client_adds_noise and terms.query is None:
            # Noise of this size is longer than all samples together but once in 10¹¹ times. On the
            # few numbers of a query it is not.
            noisy = _unmasked(answer, terms, self._fresh[which])
            assert np.linalg.norm(noisy) > SAMPLES, "a sum left without its noise"
        if np.isfinite(np.frombuffer(weights, "<f4")).all():
            coin = self._coin(terms, self._fresh[which])
            assert coin is not None, "a usable model was not charged"
            assert (answer is not None) == (coin or terms.mode.answers_always)
        else:
            assert answer is None
            assert self._count() == before, "an unusable model was charged"

    def _vouchers(self, terms: Terms, rest: bytes) -> bytes:
        """Return what the notary says of the ledger; for every second input, the input itself."""
        if not terms.mode.masks_sums:
            return b""
        self._send("query.enrol", _question(terms))
        answer = self._reply()
        assert answer is not None
        self._follow_chain()
        if rest[:1] > b"\x7f":
            return rest
        return write_voucher(answer[messages.REQUEST], terms.hash, NO_TOKEN, KEY)

    def _send(self, kind: str, contents: list[bytes]) -> None:
        self._wire.offer(kind, contents)
        self._poll(self._wire.arrival)

    def _poll(self, arrival: bytes) -> None:
        self._wire.arrival, self._wire.sent, self._wire.tree = arrival, {}, None
        try:
            message = self._link.poll()
            if message is not None:
                self._node._handle(self._link, message)
        except DECLARED:
            return

    def _reply(self) -> dict[str, Any] | None:
        """Return the answer that left; None for silence and for the constant failure."""
        if self._wire.tree is None:
            return None
        root = self._wire.tree.object_id
        reply = inflate_object_from_contents(root, dict(self._wire.sent))
        assert isinstance(reply, Message)
        if reply.has_error():
            assert reply.error.reason == FAILURE_REASON
            return None
        assert list(reply.content) == [messages.ANSWER]
        answer = dict(reply.content.config_records[messages.ANSWER])
        size = sum(map(len, self._wire.sent.values())) - len(self._wire.sent[root])
        summed = len(answer.get(messages.SUM, b""))
        assert summed in {0, *map(_sum_bytes, self._terms)}, "a sum of another length left"
        kind = f"{sorted(answer)} {len(answer.get('coins', []))} {answer.get('reason')} {summed}"
        assert self._sizes.setdefault(kind, size) == size, "a reply's size tells something"
        return answer

    def _check(self, answer: dict[str, Any] | None, question: bytes | None = None) -> None:
        """Whatever left was charged before, and the ledger is sound.

        Args:
            answer: What left.
            question: The record that was asked, if it is known.
        """
        self._follow_chain()
        if answer is None:
            return
        if messages.ENROLLED in answer:
            reason = answer[messages.REASON]
            assert reason == "" or reason in {refusal.value for refusal in Refusal}
            assert answer[messages.DECLARED_SIZE] == (0 if reason else SAMPLES)
            return
        if messages.SUM in answer:
            assert self._added.count("answer") == 1, "an answer left that the ledger does not know"
            if messages.TICKET not in answer:  # under a mask there is no vector to be seen
                sent = answer[messages.SUM]
                assert np.linalg.norm(vector_from_bytes(sent, len(sent) // 4)) < 1e4
        else:
            assert all(isinstance(coin, bool) for coin in answer[messages.COINS])
        if question is not None:
            self._check_charged(answer, question)

    def _check_charged(self, answer: dict[str, Any], question: bytes) -> None:
        """The rounds that were asked for are charged, with the coins that were told."""
        asked: Any = inflate_object_from_contents(
            object_id(question), {object_id(question): question}
        )
        terms, first = Terms.from_json(str(asked[messages.TERMS])), asked[messages.ROUND]
        told = answer.get(messages.COINS)
        count = 1 if told is None else len(told)
        coins = [self._coin(terms, round_) for round_ in range(first, first + count)]
        assert None not in coins, "a round of which something left is not charged"
        assert told is None or told == coins, "other coins were told than those in the ledger"
        assert told is not None or coins[0] or terms.mode.answers_always

    def _follow_chain(self) -> None:
        """Check what was added since the last input; now and then, the whole file."""
        rows = self._rows.execute("SELECT * FROM entries WHERE seq > ?", (self._entries,))
        kind = [column[0] for column in rows.description].index("kind")
        self._added = []
        for row in rows.fetchall():
            self._added.append(row[kind])
            self._head = chained(self._head, row[:-1])
            self._entries += 1
            assert (row[0], row[-1]) == (self._entries, self._head), "the ledger is damaged"
        self._inputs += 1
        if self._inputs % 500 == 0:
            Ledger.open(self._ledger, read_only=True).close()

    def _count(self) -> int:
        return int(self._rows.execute("SELECT count(*) FROM entries").fetchone()[0])

    def _coin(self, terms: Terms, round_: int) -> bool | None:
        row = self._rows.execute(
            "SELECT coin FROM entries WHERE experiment = ? AND round = ? AND kind = 'charge'",
            (terms.ledger_key, round_),
        ).fetchone()
        return None if row is None else bool(row[0])


def _terms(mode: Mode, query: Query | None) -> Terms:
    return make_terms(
        mode,
        noise_multiplier=50.0,
        rounds=100_000,
        model="tests.fuzz.fuzz_wire:build_tiny_model",
        classes=CLASSES,
        query=query,
    )


def _sum_bytes(terms: Terms) -> int:
    """Return how long the sums of some terms are: no message may tell more by its size."""
    bits = 32 if terms.ring_bits is None else terms.ring_bits
    return (LENGTH if terms.query is None else QUERY_LENGTH) * bits // 8


def _question(terms: Terms, vouchers: bytes = b"", **fields: Any) -> list[bytes]:
    record = ConfigRecord({messages.TERMS: terms.to_json(), **fields})
    beside = ConfigRecord({messages.ECHO: NO_TOKEN, messages.VOUCHERS: vouchers})
    content = RecordDict({messages.ASK: record, messages.ECHO: beside})
    return [content.deflate(), record.deflate(), beside.deflate()]


def _unmasked(answer: dict[str, Any], terms: Terms, round_: int) -> Any:
    """Return the numbers of an answer, as a notary that conspires with the server reads them."""
    if messages.TICKET not in answer:
        return np.frombuffer(answer[messages.SUM], "<f4")
    assert terms.ring_bits is not None
    occasion = Occasion.of(terms, round_)
    seed = Ticket.from_bytes(answer[messages.TICKET], occasion).seed(occasion, KEY)
    numbers = numbers_from_bytes(answer[messages.SUM], LENGTH, terms.ring_bits)
    under = lifted(numbers - sum_of_masks([seed], LENGTH, terms.ring_bits))
    noisy = under * terms.noise_shares.cell
    assert np.linalg.norm(noisy) < 1e4, "the ticket does not fit the mask"
    return noisy


def _make_owner(path: Path) -> Path:
    return make_owner(
        path,
        SAMPLES,
        side=2,
        classes=CLASSES,
        modes=[str(mode) for mode in MODES],
        models=["tests.fuzz.fuzz_wire:build_tiny_model"],
        largest_q=0.5,
        least_noise_multiplier=50.0,
        queries=["evaluation"],
        budget={"epsilon": 200.0, "delta": 1e-5},
    )
