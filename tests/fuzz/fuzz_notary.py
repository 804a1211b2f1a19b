"""A notary, from the bytes of a question to what it opens and to whom it vouches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from flwr.app import ConfigRecord, Context, RecordDict
from flwr.app.message import make_message
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents

from coinflower.masking.sealing import public_bytes
from coinflower.masking.tickets import Occasion, owner_name, write_ticket
from coinflower.masking.vouchers import NO_VOUCHER, REQUEST_BYTES, VOUCHER_BYTES, write_request
from coinflower.notary.app import make_app
from coinflower.protocol import messages
from coinflower.protocol.modes import Mode
from coinflower.protocol.objections import Objection
from tests.fuzz.fuzz_files import edited
from tests.fuzz.fuzz_wire import body_of, framed, metadata, object_id
from tests.support.builders import make_terms
from tests.support.notaries import make_notary

LENGTH, OWNERS, THRESHOLD = 5, 4, 3
TERMS = make_terms(Mode.MASKED, threshold=THRESHOLD, colluders=1, rounds=1_000_000)
KINDS = (f"query.{messages.OPEN}", f"query.{messages.VOUCH}", f"query.{messages.ENROL}")
_TOKEN = bytes(range(84))
_CONTEXT = Context(run_id=1, node_id=0, node_config={}, state=RecordDict(), run_config={})
_SENTENCES = frozenset(objection.value for objection in Objection)


class Notary:
    """The first byte chooses what the rest is: edits of tickets, requests, or a whole record."""

    def __init__(self, folder: Path) -> None:
        self._keys = [ec.generate_private_key(ec.SECP256R1()) for _ in range(OWNERS)]
        self._names = {owner_name(key.public_key()) for key in self._keys}
        self._notary = make_notary(folder / "notary", self._keys)
        self._record = self._notary._record
        self._app = make_app(self._notary)
        self._asker = public_bytes(X25519PrivateKey.generate())
        self._opened = 0
        self._next_round()
        request = write_request(min(self._names), bytes(16), self._asker)
        self.seeds = [
            bytes([0]),
            bytes([0, 0, 0, 40, 1, 0xFF]),
            bytes([0, 0, 2, 0, 0]),
            bytes([1]) + request + request,
            *(
                bytes([2 + kind]) + body_of(ConfigRecord(fields))
                for kind, fields in enumerate(
                    (self._open_fields(), {**self._asked(), messages.REQUESTS: request}, {})
                )
            ),
        ]

    def __call__(self, data: bytes) -> None:
        """Ask, and look at what the notary says and at what it has written down."""
        if not data:
            return
        choice, rest = data[0] % 5, data[1:]
        if choice == 0:
            self._open(edited(self._tickets, rest))
        elif choice == 1:
            self._vouch(rest)
        else:
            self._ask(KINDS[choice - 2], framed("ConfigRecord", [], rest))
        count = sum(each.rounds for each in self._record.opened())
        assert count == self._opened, "a round was opened that nobody was told of, or twice"

    def _asked(self) -> dict[str, Any]:
        return {messages.TERMS: TERMS.to_json(), messages.ASKER: self._asker}

    def _open_fields(self) -> dict[str, Any]:
        where = {messages.ROUND: self._round, messages.LENGTH: LENGTH}
        return {**self._asked(), **where, messages.TICKETS: self._tickets}

    def _next_round(self) -> None:
        self._round = self._opened + 1
        occasion = Occasion.of(TERMS, self._round)
        made = [write_ticket(occasion, key, _TOKEN)[0] for key in self._keys]
        self._size, self._tickets = len(made[0]), b"".join(made)

    def _open(self, tickets: bytes) -> None:
        record = ConfigRecord({**self._open_fields(), messages.TICKETS: tickets})
        answer = self._ask(KINDS[0], record.deflate())
        assert answer is not None
        if answer[messages.OPENED]:
            sound = {self._tickets_at(place) for place in range(OWNERS)}
            given = [tickets[at : at + self._size] for at in range(0, len(tickets), self._size)]
            assert set(given) <= sound, "a ticket was taken that no owner wrote"
            assert len(set(given)) == len(given) >= THRESHOLD, "too few owners"
            self._next_round()

    def _tickets_at(self, place: int) -> bytes:
        return self._tickets[place * self._size : (place + 1) * self._size]

    def _vouch(self, requests: bytes) -> None:
        record = ConfigRecord({**self._asked(), messages.REQUESTS: requests})
        answer = self._ask(KINDS[1], record.deflate())
        if answer is None:
            assert len(requests) % REQUEST_BYTES
            return
        vouchers: Any = answer[messages.VOUCHERS]
        for place, at in enumerate(range(0, len(requests), REQUEST_BYTES)):
            voucher = vouchers[place * VOUCHER_BYTES : (place + 1) * VOUCHER_BYTES]
            known = requests[at : at + 32] in self._names
            assert known or voucher == NO_VOUCHER, "it vouched for a stranger"

    def _ask(self, kind: str, record: bytes) -> dict[str, Any] | None:
        """Return the notary's answer; None if it gives none, as a node then tells an error."""
        name = object_id(record)
        try:
            ask: Any = inflate_object_from_contents(name, {name: record})
        except Exception:  # Flower's own reader, which fails before the notary is asked
            return None
        if not isinstance(ask, ConfigRecord):
            return None
        content = RecordDict({messages.ASK: ask})
        message = make_message(metadata=metadata(kind), content=content)
        try:
            reply = self._app(message, _CONTEXT)
        except Exception:  # whatever it is, a server hears of no more than that something failed
            return None
        answer = dict(reply.content.config_records[messages.ANSWER])
        if messages.OPENED in answer:
            if answer[messages.OPENED]:
                self._opened += 1
                assert ask[messages.TICKETS], "masks were told for no ticket"
            else:
                assert messages.MASKS not in answer
                assert answer[messages.REASON] in _SENTENCES
        return answer
