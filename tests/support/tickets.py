"""Tickets of four owners that a notary allows, for one experiment."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from coinflower.accounting.ledger.echo import NAME_BYTES, TOKEN_BYTES
from coinflower.masking.tickets import Occasion, write_ticket
from coinflower.notary.notary import Notary
from coinflower.protocol.modes import Mode
from coinflower.protocol.objections import ObjectionError
from coinflower.protocol.terms import Terms
from tests.support.builders import make_terms

OWNERS = [ec.generate_private_key(ec.SECP256R1()) for _ in range(4)]
STRANGER = ec.generate_private_key(ec.SECP256R1())
TERMS = make_terms(Mode.MASKED, threshold=3, colluders=1)
LENGTH = 7


def token_of(owner: int, state: int) -> bytes:
    """Stands for an echo of an owner's ledger."""
    return bytes([owner]) * NAME_BYTES + bytes([state]) * (TOKEN_BYTES - NAME_BYTES)


def tickets_for(
    round_: int,
    owners: Sequence[ec.EllipticCurvePrivateKey] = OWNERS,
    terms: Terms = TERMS,
    state: int = 1,
) -> tuple[bytes, list[bytes]]:
    """Return tickets of these owners, and their seeds for the first notary."""
    occasion = Occasion.of(terms, round_)
    made = [write_ticket(occasion, key, token_of(at, state)) for at, key in enumerate(owners)]
    return b"".join(ticket for ticket, _ in made), [seeds[0] for _, seeds in made]


def objection(notary: Notary, round_: int, tickets: bytes, terms: Terms = TERMS) -> ObjectionError:
    """Return why a notary does not open a round; it must not."""
    with pytest.raises(ObjectionError) as caught:
        notary.open(terms, round_, LENGTH, tickets)
    return caught.value
