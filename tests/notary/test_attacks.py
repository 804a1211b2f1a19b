"""Servers and owners that want more of a notary than one sum over enough honest owners a round."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from scipy import stats

from coinflower.masking import tickets as masking_tickets
from coinflower.masking.masks import add_masks, numbers_from_bytes, sum_of_masks, zeros
from coinflower.masking.sealing import public_bytes
from coinflower.masking.tickets import Occasion, owner_name, write_ticket
from coinflower.notary.notary import Notary
from coinflower.protocol.objections import Objection
from coinflower.protocol.terms import Terms
from tests.support.notaries import NOTARY, make_notary
from tests.support.tickets import LENGTH, OWNERS, STRANGER, TERMS, objection, tickets_for, token_of

SECOND = X25519PrivateKey.generate()


@pytest.fixture
def notary(tmp_path: Path) -> Notary:
    return make_notary(tmp_path, OWNERS)


def opened(notary: Notary, round_: int, tickets: bytes, terms: Terms = TERMS) -> np.ndarray:
    return numbers_from_bytes(notary.open(terms, round_, LENGTH, tickets), LENGTH, 32)


@pytest.mark.parametrize(
    "change",
    [
        {"threshold": 2},
        {"colluders": 2},
        {"ring_bits": 64},
        {"notaries": (NOTARY, public_bytes(SECOND).hex())},
        {"noise_multiplier": TERMS.noise_multiplier / 2},
        {"clip_norm": TERMS.clip_norm * 2},
        {"rounds": TERMS.rounds + 1},
        {"experiment": "another"},
    ],
    ids=", ".join,
)
def test_terms_that_the_owners_did_not_sign_open_nothing_and_use_nothing_up(
    notary: Notary, change: dict[str, Any]
) -> None:
    tickets, seeds = tickets_for(1)
    found = objection(notary, 1, tickets, replace(TERMS, **change))
    assert found.objection is Objection.TICKETS
    assert np.array_equal(opened(notary, 1, tickets), sum_of_masks(seeds, LENGTH, 32))


@pytest.mark.parametrize("first", [OWNERS, OWNERS[:3], OWNERS[1:]], ids=["all", "three", "others"])
def test_no_two_sets_of_one_round_are_ever_opened(notary: Notary, first: list[Any]) -> None:
    tickets, _ = tickets_for(1)
    size = len(tickets) // 4
    by_owner = {key: tickets[at * size :][:size] for at, key in enumerate(OWNERS)}
    opened(notary, 1, b"".join(by_owner[key] for key in first))
    for second in (OWNERS, OWNERS[:3], OWNERS[1:], OWNERS[::-1]):
        asked = b"".join(by_owner[key] for key in second)
        assert objection(notary, 1, asked).objection is Objection.ROUND


def test_experiments_side_by_side_have_masks_of_their_own(notary: Notary) -> None:
    beside = replace(TERMS, experiment="beside")
    (ours, seeds), (theirs, others) = tickets_for(1), tickets_for(1, terms=beside)
    assert not set(seeds) & set(others)
    size = len(ours) // 4
    for asked, terms in (
        (theirs, TERMS),
        (ours, beside),
        (ours[: 3 * size] + theirs[-size:], TERMS),
    ):
        assert objection(notary, 1, asked, terms).objection is Objection.TICKETS
    assert np.array_equal(opened(notary, 1, ours[: 3 * size]), sum_of_masks(seeds[:3], LENGTH, 32))
    whole = opened(notary, 1, theirs, beside)
    assert np.array_equal(whole, sum_of_masks(others, LENGTH, 32))


def test_notaries_that_are_told_of_different_clients_unmask_nothing(
    notary: Notary, tmp_path: Path
) -> None:
    second = make_notary(tmp_path / "second", OWNERS, SECOND)
    terms = replace(TERMS, notaries=(notary.name, second.name))
    made = [write_ticket(Occasion.of(terms, 1), key, token_of(0, 1)) for key in OWNERS]
    length = 5000
    sums = [zeros(length, 32) for _ in made]
    for numbers, (_, seeds) in zip(sums, made, strict=True):
        add_masks(numbers, seeds)
    masks = [
        numbers_from_bytes(
            who.open(terms, 1, length, b"".join(t for t, _ in made[:count])), length, 32
        )
        for who, count in ((notary, 4), (second, 3))
    ]
    for count in (3, 4):
        left = np.sum(sums[:count], axis=0, dtype=np.uint32) - masks[0] - masks[1]
        # All of the ring is used alike: 16 boxes, false alarm 1e-6.
        assert stats.chisquare(np.bincount(left >> 28, minlength=16)).pvalue > 1e-6


def test_a_seed_that_is_sealed_to_another_key_is_refused_by_name(notary: Notary) -> None:
    occasion = Occasion.of(TERMS, 1)
    elsewhere = replace(occasion, notaries=(public_bytes(SECOND),))
    wrong, _ = write_ticket(elsewhere, OWNERS[1], token_of(1, 1))
    tickets, _ = tickets_for(1)
    size = len(tickets) // 4
    found = objection(notary, 1, tickets[:size] + wrong + tickets[2 * size :])
    assert (found.objection, found.bad) == (Objection.TICKETS, [1])


def test_a_server_cannot_write_a_ticket_in_the_name_of_an_owner(
    notary: Notary, monkeypatch: pytest.MonkeyPatch
) -> None:
    victim = owner_name(OWNERS[3].public_key())
    with monkeypatch.context() as patch:  # anybody can seal a seed to a notary
        patch.setattr(masking_tickets, "owner_name", lambda _: victim)
        forged, _ = write_ticket(Occasion.of(TERMS, 1), STRANGER, token_of(3, 1))
    tickets, _ = tickets_for(1, OWNERS[:3])
    found = objection(notary, 1, tickets + forged)
    assert (found.objection, found.bad) == (Objection.TICKETS, [3])
