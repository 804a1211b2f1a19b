"""A notary opens sums over enough owners that it was told to allow, once, and nothing else."""

from __future__ import annotations

import itertools
import sqlite3
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from coinflower.accounting.ledger.echo import NAME_BYTES, NO_TOKEN
from coinflower.masking import tickets as masking_tickets
from coinflower.masking.masks import numbers_from_bytes, sum_of_masks
from coinflower.masking.sealing import public_bytes
from coinflower.masking.tickets import owner_name
from coinflower.masking.vouchers import (
    NO_VOUCHER,
    REQUEST_BYTES,
    VOUCHER_BYTES,
    read_voucher,
    write_request,
)
from coinflower.notary.notary import MOST_NUMBERS, Notary
from coinflower.notary.record import Record
from coinflower.protocol.modes import Mode
from coinflower.protocol.objections import Objection, ObjectionError
from tests.support.builders import make_terms
from tests.support.notaries import KEY, NOTARY, make_notary
from tests.support.tickets import LENGTH, OWNERS, STRANGER, TERMS, objection, tickets_for, token_of


@pytest.fixture
def notary(tmp_path: Path) -> Notary:
    return make_notary(tmp_path, OWNERS)


def test_it_returns_the_sum_of_the_masks(notary: Notary) -> None:
    tickets, seeds = tickets_for(1)
    opened = numbers_from_bytes(notary.open(TERMS, 1, LENGTH, tickets), LENGTH, 32)
    assert np.array_equal(opened, sum_of_masks(seeds, LENGTH, 32))


def test_a_round_is_opened_once_for_ever_for_whomever(notary: Notary, tmp_path: Path) -> None:
    tickets, _ = tickets_for(1)
    notary.open(TERMS, 1, LENGTH, tickets)
    fewer = tickets_for(1, OWNERS[:3])[0]
    again = make_notary(tmp_path, OWNERS)  # after a restart
    for asked, who in itertools.product((tickets, fewer), (notary, again)):
        assert objection(who, 1, asked).objection is Objection.ROUND


def test_an_earlier_round_is_not_opened_after_a_later_one(notary: Notary) -> None:
    notary.open(TERMS, 5, LENGTH, tickets_for(5)[0])
    assert objection(notary, 4, tickets_for(4)[0]).objection is Objection.ROUND
    notary.open(TERMS, 6, LENGTH, tickets_for(6)[0])


@pytest.mark.parametrize("round_", [0, -1, TERMS.rounds + 1, 2**70])
def test_a_round_outside_of_the_experiment_is_not_opened(notary: Notary, round_: int) -> None:
    assert objection(notary, round_, b"").objection is Objection.ROUND


def test_fewer_owners_than_the_threshold_are_not_opened(notary: Notary) -> None:
    for owners in (OWNERS[:2], OWNERS[:1], []):
        found = objection(notary, 1, tickets_for(1, owners)[0])
        assert found.objection is Objection.THRESHOLD
    notary.open(TERMS, 1, LENGTH, tickets_for(1, OWNERS[:3])[0])


def test_a_server_that_fills_the_round_with_nodes_of_its_own_gains_nothing(notary: Notary) -> None:
    own = [ec.generate_private_key(ec.SECP256R1()) for _ in range(5)]
    found = objection(notary, 1, tickets_for(1, [OWNERS[0], *own])[0])
    assert found.objection is Objection.TICKETS
    assert found.bad == [1, 2, 3, 4, 5]


def test_one_owner_counts_once(notary: Notary) -> None:
    found = objection(notary, 1, tickets_for(1, [OWNERS[0], OWNERS[1], OWNERS[0], OWNERS[0]])[0])
    assert found.objection is Objection.TICKETS
    assert found.bad == [2, 3]


def test_tickets_of_other_rounds_or_terms_are_named_and_nothing_is_opened(notary: Notary) -> None:
    other = replace(TERMS, threshold=2)
    for foreign in (tickets_for(2)[0], tickets_for(1, terms=other)[0]):
        size = len(foreign) // 4
        mixed = tickets_for(1)[0][: 3 * size] + foreign[3 * size :]
        found = objection(notary, 1, mixed)
        assert found.objection is Objection.TICKETS
        assert found.bad == [3]
    notary.open(TERMS, 1, LENGTH, tickets_for(1)[0])


def test_terms_with_a_lower_threshold_than_the_owners_signed_open_nothing(notary: Notary) -> None:
    weaker = replace(TERMS, threshold=2)
    found = objection(notary, 1, tickets_for(1, OWNERS[:2])[0], weaker)
    assert found.objection is Objection.TICKETS


def test_a_seed_that_was_used_before_is_refused(
    notary: Notary, monkeypatch: pytest.MonkeyPatch
) -> None:
    draws = iter([*(bytes([n]) * 32 for n in range(4)), *(bytes([n + 3]) * 32 for n in range(4))])
    monkeypatch.setattr(masking_tickets.os, "urandom", lambda _: next(draws))
    notary.open(TERMS, 1, LENGTH, tickets_for(1)[0])
    found = objection(notary, 2, tickets_for(2)[0])
    assert found.objection is Objection.TICKETS
    assert found.bad == [0]


def test_two_owners_with_one_seed_are_refused(
    notary: Notary, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(masking_tickets.os, "urandom", bytes)
    assert objection(notary, 1, tickets_for(1)[0]).bad == [1, 2, 3]


@pytest.mark.parametrize("tickets", [b"x", bytes(1000), tickets_for(1)[0][:-1]])
def test_what_is_no_tickets_is_refused(notary: Notary, tickets: bytes) -> None:
    assert objection(notary, 1, tickets).objection is Objection.TICKETS


@pytest.mark.parametrize("length", [0, -1, MOST_NUMBERS + 1])
def test_a_senseless_length_opens_nothing(notary: Notary, length: int) -> None:
    tickets = tickets_for(1)[0]
    with pytest.raises(ValueError, match="length"):
        notary.open(TERMS, 1, length, tickets)
    notary.open(TERMS, 1, LENGTH, tickets)


def test_terms_that_name_another_notary_are_refused(notary: Notary) -> None:
    other = replace(TERMS, notaries=("b" * 64,))
    assert objection(notary, 1, tickets_for(1, terms=other)[0], other).objection is Objection.TERMS
    assert objection(notary, 1, b"", make_terms(Mode.TRUSTED)).objection is Objection.TERMS
    with pytest.raises(ObjectionError):
        notary.vouch(other, b"")


def test_an_owner_that_is_not_allowed_any_more_does_not_count(tmp_path: Path) -> None:
    allowed = {owner_name(key.public_key()): key.public_key() for key in OWNERS}
    Record.create(tmp_path / "record.db", NOTARY)
    notary = Notary(KEY, Record.open(tmp_path / "record.db", NOTARY), lambda: allowed)
    notary.open(TERMS, 1, LENGTH, tickets_for(1)[0])
    del allowed[owner_name(OWNERS[2].public_key())]
    assert objection(notary, 2, tickets_for(2)[0]).bad == [2]


def test_what_is_opened_is_on_disk_first(notary: Notary, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    tickets = tickets_for(1)[0]
    with monkeypatch.context() as patch:
        patch.setattr("coinflower.notary.record._now", full)
        assert objection(notary, 1, tickets).objection is Objection.RECORD
        with pytest.raises(ObjectionError):
            notary.require_ready()
    notary.require_ready()
    notary.open(TERMS, 1, LENGTH, tickets)


# Witnesses


def vouched(notary: Notary, owner: int, key: ec.EllipticCurvePrivateKey) -> bytes:
    challenge = X25519PrivateKey.generate()
    request = write_request(
        owner_name(key.public_key()), token_of(owner, 0)[:NAME_BYTES], public_bytes(challenge)
    )
    voucher = notary.vouch(TERMS, request)
    if voucher == NO_VOUCHER:
        return NO_VOUCHER
    return read_voucher(voucher, request, TERMS.hash, challenge, bytes.fromhex(NOTARY))


def test_it_remembers_the_last_echo_of_each_opened_ticket(notary: Notary, tmp_path: Path) -> None:
    assert vouched(notary, 0, OWNERS[0]) == NO_TOKEN
    notary.open(TERMS, 1, LENGTH, tickets_for(1, state=1)[0])
    notary.open(TERMS, 2, LENGTH, tickets_for(2, OWNERS[:3], state=2)[0])
    again = make_notary(tmp_path, OWNERS)
    for who in (notary, again):
        assert vouched(who, 0, OWNERS[0]) == token_of(0, 2)
        assert vouched(who, 3, OWNERS[3]) == token_of(3, 1)
        assert vouched(who, 9, OWNERS[0]) == NO_TOKEN  # another ledger of the same owner


def test_what_is_not_opened_leaves_no_echo(notary: Notary) -> None:
    objection(notary, 1, tickets_for(1, [*OWNERS[:3], STRANGER])[0])
    assert vouched(notary, 0, OWNERS[0]) == NO_TOKEN


def test_it_vouches_for_nobody_whom_it_does_not_allow(notary: Notary) -> None:
    assert vouched(notary, 0, STRANGER) == NO_VOUCHER
    no_key = write_request(owner_name(OWNERS[0].public_key()), bytes(NAME_BYTES), bytes(32))
    assert notary.vouch(TERMS, no_key + no_key) == 2 * NO_VOUCHER
    assert len(NO_VOUCHER) == VOUCHER_BYTES


def test_senseless_requests_are_refused(notary: Notary) -> None:
    with pytest.raises(ValueError, match=f"requests must be {REQUEST_BYTES} bytes"):
        notary.vouch(TERMS, bytes(REQUEST_BYTES + 1))
