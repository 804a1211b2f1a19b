"""Tickets: what a client hands the server so that a notary can take its mask off a sum.

A ticket holds the seeds of the mask, one sealed to each notary, and an echo of the client's ledger
for the notaries to keep; the owner's key signs all of it. Seal and signature are bound to terms,
round and owner: a ticket is worth nothing for another round, or as another owner's. Tickets of one
experiment have one length.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import (
    decode_dss_signature,
    encode_dss_signature,
)
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from coinflower.accounting.ledger.echo import TOKEN_BYTES
from coinflower.masking.masks import SEED_BYTES
from coinflower.masking.sealing import public_bytes, seal, sealed_bytes, unseal
from coinflower.protocol.terms import Terms

OWNER_BYTES = 32
_HALF_BYTES = 48  # of a signature on P-384, the largest curve of a node's key
_SEALED_BYTES = sealed_bytes(SEED_BYTES)
_ROUND_BYTES = 8


class TicketError(ValueError):
    """A ticket is malformed, or not what its owner signed for this round."""


@dataclass(frozen=True, kw_only=True)
class Occasion:
    """What a ticket is for: one round of one experiment.

    Attributes:
        terms: Hash of the terms.
        round: The round.
        notaries: Public keys of the notaries, in the order of the terms.
    """

    terms: str
    round: int
    notaries: tuple[bytes, ...]

    @classmethod
    def of(cls, terms: Terms, round_: int) -> Occasion:
        """Return a round of an experiment in mode masked."""
        notaries = tuple(map(bytes.fromhex, terms.notaries))
        return cls(terms=terms.hash, round=round_, notaries=notaries)

    @property
    def ticket_bytes(self) -> int:
        """How long a ticket is."""
        return OWNER_BYTES + TOKEN_BYTES + len(self.notaries) * _SEALED_BYTES + 2 * _HALF_BYTES

    def bound_to(self, purpose: bytes, owner: bytes) -> bytes:
        """Return what seals and signatures for this occasion are bound to; its length is fixed."""
        round_ = self.round.to_bytes(_ROUND_BYTES, "big")
        return purpose + bytes.fromhex(self.terms) + round_ + owner


@dataclass(frozen=True, kw_only=True)
class Ticket:
    """A ticket as it travels.

    Attributes:
        owner: Name of the owner's key.
        token: Echo of the client's ledger, which only the client can read.
        seals: The seed for each notary, sealed to it.
        signature: Of all that, by the owner's key.
    """

    owner: bytes
    token: bytes
    seals: tuple[bytes, ...]
    signature: bytes

    def to_bytes(self) -> bytes:
        """Return what travels."""
        return self._signed + self.signature

    @classmethod
    def from_bytes(cls, content: object, occasion: Occasion) -> Ticket:
        """Return the ticket that was sent.

        Raises:
            TicketError: It is no ticket for this occasion.
        """
        if not isinstance(content, bytes) or len(content) != occasion.ticket_bytes:
            raise TicketError(f"a ticket must be {occasion.ticket_bytes} bytes")
        seals_at, signature_at = OWNER_BYTES + TOKEN_BYTES, len(content) - 2 * _HALF_BYTES
        return cls(
            owner=content[:OWNER_BYTES],
            token=content[OWNER_BYTES:seals_at],
            seals=tuple(
                content[at : at + _SEALED_BYTES]
                for at in range(seals_at, signature_at, _SEALED_BYTES)
            ),
            signature=content[signature_at:],
        )

    @property
    def _signed(self) -> bytes:
        return self.owner + self.token + b"".join(self.seals)

    def require_signature(self, occasion: Occasion, key: ec.EllipticCurvePublicKey) -> None:
        """Refuse a ticket that the owner of the key did not sign for this occasion.

        Raises:
            TicketError: It is not signed so.
        """
        halves = self.signature[:_HALF_BYTES], self.signature[_HALF_BYTES:]
        signature = encode_dss_signature(*(int.from_bytes(half, "big") for half in halves))
        try:
            key.verify(signature, _to_sign(occasion, self), ec.ECDSA(hashes.SHA256()))
        except InvalidSignature:
            raise TicketError("a ticket is not signed by its owner for this round") from None

    def seed(self, occasion: Occasion, key: X25519PrivateKey) -> bytes:
        """Return the seed that is sealed to the notary of this key.

        Raises:
            ValueError: None is.
        """
        notary = public_bytes(key)
        sealed = self.seals[occasion.notaries.index(notary)]
        seed = unseal(sealed, key, _to_seal(occasion, self.owner, notary))
        if len(seed) != SEED_BYTES:
            raise TicketError(f"a seed must be {SEED_BYTES} bytes")
        return seed


def write_ticket(
    occasion: Occasion, key: ec.EllipticCurvePrivateKey, token: bytes
) -> tuple[bytes, list[bytes]]:
    """Return a ticket with fresh seeds, one for each notary, and the seeds of the mask.

    Args:
        occasion: What it is for.
        key: The owner's.
        token: Echo of the client's ledger.
    """
    owner = owner_name(key.public_key())
    seeds = [fresh_seed() for _ in occasion.notaries]
    seals = tuple(
        seal(seed, notary, _to_seal(occasion, owner, notary))
        for seed, notary in zip(seeds, occasion.notaries, strict=True)
    )
    unsigned = Ticket(owner=owner, token=token, seals=seals, signature=b"")
    signature = key.sign(_to_sign(occasion, unsigned), ec.ECDSA(hashes.SHA256()))
    halves = (half.to_bytes(_HALF_BYTES, "big") for half in decode_dss_signature(signature))
    return unsigned.to_bytes() + b"".join(halves), seeds


def fresh_seed() -> bytes:
    """Return the seed of a mask that was never used before."""
    return os.urandom(SEED_BYTES)


def owner_name(key: ec.EllipticCurvePublicKey) -> bytes:
    """Return the name of an owner's key: its hash, the same for every way to write the key down."""
    return sha256(key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).digest()


def split_tickets(content: object, occasion: Occasion, most: int) -> Sequence[Ticket]:
    """Return the tickets that were sent together.

    Raises:
        TicketError: It is not tickets, or more than so many.
    """
    size = occasion.ticket_bytes
    if not isinstance(content, bytes) or len(content) % size or len(content) > most * size:
        raise TicketError(f"tickets must be at most {most:,} times {size} bytes")
    starts = range(0, len(content), size)
    return [Ticket.from_bytes(content[at : at + size], occasion) for at in starts]


def _to_sign(occasion: Occasion, ticket: Ticket) -> bytes:
    return occasion.bound_to(b"coinflower ticket", ticket.owner) + ticket._signed


def _to_seal(occasion: Occasion, owner: bytes, notary: bytes) -> bytes:
    return occasion.bound_to(b"coinflower seed", owner) + notary
