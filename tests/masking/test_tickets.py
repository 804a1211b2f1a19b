"""A ticket is worth something for one round, of one experiment, as one owner's."""

from __future__ import annotations

from dataclasses import replace

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from coinflower.accounting.ledger.echo import NO_TOKEN, TOKEN_BYTES
from coinflower.masking.sealing import public_bytes
from coinflower.masking.tickets import (
    Occasion,
    Ticket,
    TicketError,
    owner_name,
    split_tickets,
    write_ticket,
)
from coinflower.masking.vouchers import read_voucher, write_request, write_voucher

NOTARIES = [X25519PrivateKey.generate() for _ in range(2)]
OCCASION = Occasion(terms="ab" * 32, round=3, notaries=tuple(map(public_bytes, NOTARIES)))
OWNER = ec.generate_private_key(ec.SECP384R1())
TOKEN = b"t" * TOKEN_BYTES


def written(occasion: Occasion = OCCASION, key: ec.EllipticCurvePrivateKey = OWNER) -> Ticket:
    return Ticket.from_bytes(write_ticket(occasion, key, TOKEN)[0], occasion)


@pytest.mark.parametrize("curve", [ec.SECP256R1(), ec.SECP384R1()])
def test_each_notary_reads_its_own_seed_and_the_echo_comes_along(curve: ec.EllipticCurve) -> None:
    key = ec.generate_private_key(curve)
    content, seeds = write_ticket(OCCASION, key, TOKEN)
    ticket = Ticket.from_bytes(content, OCCASION)
    assert len(content) == OCCASION.ticket_bytes
    assert ticket.to_bytes() == content
    assert ticket.owner == owner_name(key.public_key())
    assert ticket.token == TOKEN
    ticket.require_signature(OCCASION, key.public_key())
    assert [ticket.seed(OCCASION, notary) for notary in NOTARIES] == seeds
    assert len(set(seeds)) == 2


def test_tickets_have_one_length_and_nothing_in_common() -> None:
    tickets = [write_ticket(OCCASION, OWNER, NO_TOKEN) for _ in range(20)]
    assert {len(content) for content, _ in tickets} == {OCCASION.ticket_bytes}
    assert len({seed for _, seeds in tickets for seed in seeds}) == 40


OTHERS = [replace(OCCASION, round=4), replace(OCCASION, terms="cd" * 32)]


@pytest.mark.parametrize("other", OTHERS)
def test_a_ticket_is_worth_nothing_on_another_occasion(other: Occasion) -> None:
    ticket = written()
    with pytest.raises(TicketError):
        ticket.require_signature(other, OWNER.public_key())
    with pytest.raises(ValueError, match="not sealed to this key for this purpose"):
        ticket.seed(other, NOTARIES[0])


def test_a_seal_is_worth_nothing_in_the_ticket_of_another_owner() -> None:
    thief = ec.generate_private_key(ec.SECP384R1())
    stolen = replace(written(key=thief), seals=written().seals)
    with pytest.raises(TicketError):
        stolen.require_signature(OCCASION, thief.public_key())
    with pytest.raises(ValueError, match="not sealed to this key for this purpose"):
        stolen.seed(OCCASION, NOTARIES[0])


@given(st.data())
def test_a_changed_ticket_is_noticed(data: st.DataObject) -> None:
    content = bytearray(written().to_bytes())
    place = data.draw(st.integers(0, len(content) - 1))
    content[place] ^= data.draw(st.integers(1, 255))
    with pytest.raises(TicketError):
        Ticket.from_bytes(bytes(content), OCCASION).require_signature(OCCASION, OWNER.public_key())


@pytest.mark.parametrize("content", [None, 7, "text", b"", bytes(OCCASION.ticket_bytes + 1)])
def test_what_is_no_ticket_is_refused(content: object) -> None:
    with pytest.raises(TicketError):
        Ticket.from_bytes(content, OCCASION)
    if content != b"":
        with pytest.raises(TicketError):
            split_tickets(content, OCCASION, 5)


def test_tickets_travel_together_up_to_a_limit() -> None:
    content = b"".join(write_ticket(OCCASION, OWNER, TOKEN)[0] for _ in range(3))
    assert len(split_tickets(content, OCCASION, 3)) == 3
    with pytest.raises(TicketError, match="at most 2 times"):
        split_tickets(content, OCCASION, 2)


def test_a_voucher_is_for_one_request_and_cannot_be_changed() -> None:
    challenge = X25519PrivateKey.generate()
    request = write_request(b"o" * 32, b"l" * 16, public_bytes(challenge))
    voucher = write_voucher(request, OCCASION.terms, TOKEN, NOTARIES[0])
    first, second = OCCASION.notaries
    assert read_voucher(voucher, request, OCCASION.terms, challenge, first) == TOKEN
    older = write_request(b"o" * 32, b"l" * 16, public_bytes(X25519PrivateKey.generate()))
    for told, asked, terms, notary in (
        (NO_TOKEN + voucher[TOKEN_BYTES:], request, OCCASION.terms, first),
        (voucher, older, OCCASION.terms, first),
        (voucher, request, "cd" * 32, first),
        (voucher, request, OCCASION.terms, second),
        (write_voucher(older, OCCASION.terms, TOKEN, NOTARIES[0]), request, OCCASION.terms, first),
    ):
        with pytest.raises(ValueError, match="not said by this notary"):
            read_voucher(told, asked, terms, challenge, notary)
