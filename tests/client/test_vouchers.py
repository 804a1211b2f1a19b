"""A client in mode masked is silent until every notary has vouched for its ledger."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from coinflower.accounting.ledger.echo import NO_TOKEN
from coinflower.client.participant import UnansweredError
from coinflower.masking.sealing import public_bytes
from coinflower.masking.tickets import Occasion, Ticket
from coinflower.masking.vouchers import (
    NO_VOUCHER,
    split_request,
    write_request,
    write_voucher,
)
from coinflower.protocol.policy import Refusal
from coinflower.protocol.terms import Terms
from tests.support.notaries import KEY
from tests.support.participants import enrolled, masked, refused, vouched

Make = Callable[..., Terms]


def test_nothing_is_charged_before_every_notary_has_vouched(
    owner: Any, make_terms: Make, weights: bytes
) -> None:
    terms = masked(make_terms)
    participant = enrolled(owner.open(), terms)
    with pytest.raises(UnansweredError, match="enrol first"):
        participant.masked_sum(terms, 1, weights, NO_VOUCHER)
    older = vouched(participant, terms)
    request = participant.request(terms)
    for vouchers in (None, b"", 7, NO_VOUCHER, older, write_voucher(request, "ab" * 32, b"", KEY)):
        with pytest.raises(UnansweredError):
            participant.masked_sum(terms, 1, weights, vouchers)
    assert not owner.entries("charge")
    voucher = write_voucher(request, terms.hash, NO_TOKEN, KEY)
    with pytest.raises(UnansweredError, match="are missing"):
        participant.masked_sum(terms, 1, weights, voucher + voucher)
    participant.masked_sum(terms, 1, weights, voucher)
    participant.masked_sum(terms, 2, weights, None)  # once vouched for is enough
    participant.request(terms)
    with pytest.raises(UnansweredError):  # once for each enrolment
        participant.masked_sum(terms, 3, weights, voucher)


def test_a_voucher_for_somebody_else_or_by_somebody_else_is_not_believed(
    owner: Any, make_terms: Make, weights: bytes
) -> None:
    terms = masked(make_terms)
    participant = enrolled(owner.open(), terms)
    request = participant.request(terms)
    _, ledger, challenge = split_request(request)
    stranger = X25519PrivateKey.generate()
    for asked, key in (
        (write_request(b"o" * 32, ledger, challenge), KEY),
        (write_request(request[:32], b"l" * 16, challenge), KEY),
        (write_request(request[:32], ledger, public_bytes(stranger)), KEY),
        (request, stranger),
    ):
        with pytest.raises(UnansweredError, match="not said by this notary"):
            participant.masked_sum(
                terms, 1, weights, write_voucher(asked, terms.hash, NO_TOKEN, key)
            )
    assert not owner.entries("charge")


def test_a_ledger_that_lacks_what_a_notary_has_seen_stops(
    owner: Any, make_terms: Make, weights: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    terms = masked(make_terms)
    participant = enrolled(owner.open(), terms)
    older = owner.ledger.read_bytes()
    _, ticket = participant.masked_sum(terms, 1, weights, vouched(participant, terms))
    token = Ticket.from_bytes(ticket, Occasion.of(terms, 1)).token
    participant.ledger.close()
    owner.ledger.write_bytes(older)
    again = enrolled(owner.open(), terms)
    voucher = vouched(again, terms, token)
    assert refused(lambda: again.masked_sum(terms, 2, weights, voucher)) is Refusal.SET_BACK
    assert "that a notary has seen" in caplog.text
    assert refused(lambda: again.enrol(terms)) is Refusal.SET_BACK
    assert not owner.entries("charge")


def test_the_ticket_carries_an_echo_of_what_was_just_charged(
    owner: Any, make_terms: Make, weights: bytes
) -> None:
    terms = masked(make_terms)
    participant = enrolled(owner.open(), terms)
    request = participant.request(terms)
    voucher = write_voucher(request, terms.hash, NO_TOKEN, KEY)
    _, ticket = participant.masked_sum(terms, 1, weights, voucher)
    token = Ticket.from_bytes(ticket, Occasion.of(terms, 1)).token
    participant.heed(token)
    assert token[:16] == split_request(request)[1]
