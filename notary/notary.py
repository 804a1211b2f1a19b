"""What a notary does: it vouches for what it has seen of ledgers, and opens each round once.

It is asked by servers that may lie. It believes only the terms, whose hash owners signed, its own
list of owners, and its own record. It never sees a gradient; nothing but the sum of the masks of at
least as many allowed owners as the threshold says ever leaves it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from coinflower.masking.answers import prove_answer
from coinflower.masking.masks import sum_of_masks
from coinflower.masking.sealing import public_bytes
from coinflower.masking.tickets import Occasion, Ticket, TicketError, split_tickets
from coinflower.masking.vouchers import NO_VOUCHER, REQUEST_BYTES, split_request, write_voucher
from coinflower.notary.record import Record
from coinflower.protocol.objections import Objection, ObjectionError
from coinflower.protocol.terms import Terms

Owners = Mapping[bytes, ec.EllipticCurvePublicKey]
"""The public keys of owners, by `coinflower.masking.tickets.owner_name`."""

MOST_CLIENTS = 1_000_000
MOST_NUMBERS = 100_000_000

logger = logging.getLogger("coinflower.notary")


class Notary:
    """One notary. Its questions are answered one at a time.

    Args:
        key: The private half of the key that owners' policies pin.
        record: What it has opened before.
        owners: Returns the owners that its operator allows now.
    """

    def __init__(self, key: X25519PrivateKey, record: Record, owners: Callable[[], Owners]) -> None:
        self._key = key
        self._record = record
        self._owners = owners
        self.name = public_bytes(key).hex()

    def vouch(self, terms: Terms, requests: bytes) -> bytes:
        """Return a voucher for each request, ``NO_VOUCHER`` where the owner is not allowed.

        Raises:
            ObjectionError: The terms do not name this notary, or the record cannot be read.
            ValueError: These are no requests.
        """
        self._require_named(terms)
        if len(requests) % REQUEST_BYTES:
            raise ValueError(f"requests must be {REQUEST_BYTES} bytes for each client")
        owners = self._owners()
        starts = range(0, len(requests), REQUEST_BYTES)
        return b"".join(
            self._voucher(terms, requests[at : at + REQUEST_BYTES], owners) for at in starts
        )

    def _voucher(self, terms: Terms, request: bytes, owners: Owners) -> bytes:
        owner, ledger, _ = split_request(request)
        if owner not in owners:
            logger.warning("Not vouched for: the owner's key %s is not allowed.", owner.hex())
            return NO_VOUCHER
        try:
            return write_voucher(request, terms.hash, self._record.token(owner, ledger), self._key)
        except ValueError as error:
            logger.warning("Not vouched for %s: %s", owner.hex(), error)
            return NO_VOUCHER

    def require_ready(self) -> None:
        """Refuse to be asked for anything with a record that cannot be written.

        Raises:
            ObjectionError: It cannot.
        """
        self._record.require_writable()

    def open(self, terms: Terms, round_: int, length: int, tickets: bytes) -> bytes:
        """Return the sum of the masks of a round's tickets, once for ever.

        Args:
            terms: What the owners agreed to.
            round_: Which round.
            length: How many numbers a mask has.
            tickets: Those of all clients in the sum, one after the other.

        Raises:
            ObjectionError: With what the server may be told. Nothing was opened.
            ValueError: The length makes no sense.
        """
        self._require_named(terms)
        if not 1 <= length <= MOST_NUMBERS:
            raise ValueError(f"length = {length} must lie in 1 to {MOST_NUMBERS}")
        if not 1 <= round_ <= terms.rounds:
            detail = f"round {round_} is not in 1 to {terms.rounds}"
            raise ObjectionError(Objection.ROUND, detail)
        assert terms.threshold is not None
        assert terms.ring_bits is not None
        occasion = Occasion.of(terms, round_)
        try:
            given = split_tickets(tickets, occasion, MOST_CLIENTS)
        except ValueError as error:
            raise ObjectionError(Objection.TICKETS, str(error)) from error
        seeds = self._seeds(occasion, given)
        if len(seeds) < terms.threshold:
            detail = f"{len(seeds)} owners are fewer than the threshold {terms.threshold}"
            raise ObjectionError(Objection.THRESHOLD, detail)
        masks = sum_of_masks(seeds, length, terms.ring_bits)
        # On disk before anything leaves.
        self._record.note_opening(
            terms=terms.hash,
            experiment=terms.experiment,
            round_=round_,
            seeds=seeds,
            tokens={ticket.owner: ticket.token for ticket in given},
        )
        logger.info("Opened round %d of %s for %d owners.", round_, terms.experiment, len(seeds))
        return masks.tobytes()

    def prove(self, terms: Terms, round_: int, asked: bytes, told: bytes, asker: bytes) -> bytes:
        """Return the proof, for the server with the fresh key ``asker``, of what it was told.

        Raises:
            ValueError: ``asker`` is no key.
        """
        return prove_answer(Occasion.of(terms, round_), asked, told, self._key, asker)

    def _seeds(self, occasion: Occasion, tickets: Sequence[Ticket]) -> list[bytes]:
        """Return the seeds of all tickets, each of another owner, or refuse all of them."""
        owners = self._owners()
        seeds: list[bytes] = []
        seen: set[bytes] = set()
        bad: dict[int, str] = {}
        for place, ticket in enumerate(tickets):
            try:
                if ticket.owner not in owners:
                    raise TicketError("its owner's key is not allowed")
                ticket.require_signature(occasion, owners[ticket.owner])
                seed = ticket.seed(occasion, self._key)
                if {ticket.owner, seed} & seen:
                    raise TicketError("its owner, or its seed, is another one's, too")
            except ValueError as error:
                bad[place] = f"the ticket of {ticket.owner.hex()[:16]}…: {error}"
            else:
                seeds.append(seed)
                seen |= {ticket.owner, seed}
        if bad:
            raise ObjectionError(Objection.TICKETS, "; ".join(bad.values()), list(bad))
        return seeds

    def _require_named(self, terms: Terms) -> None:
        if self.name not in terms.notaries:
            detail = f"the terms of {terms.experiment} do not name this notary, {self.name}"
            raise ObjectionError(Objection.TERMS, detail)
