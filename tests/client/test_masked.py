"""A client in mode masked: its share of the noise, its mask, and what it refuses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from coinflower.accounting.ledger.echo import NO_TOKEN
from coinflower.client.participant import UnansweredError
from coinflower.masking.masks import lifted, numbers_from_bytes, sum_of_masks
from coinflower.masking.tickets import Occasion, Ticket, write_ticket
from coinflower.masking.vouchers import (
    write_voucher,
)
from coinflower.protocol import messages
from coinflower.protocol.modes import Mode
from coinflower.protocol.policy import Refusal
from coinflower.protocol.terms import Terms
from tests.support.notaries import KEY, NOTARY
from tests.support.participants import (
    LENGTH,
    Recorder,
    answer_of,
    call,
    enrolled,
    exact_sum,
    fails,
    masked,
    owners,
    question,
    refused,
    variance_p_value,
    vouched,
)

Make = Callable[..., Terms]
OTHER_NOTARY = "b" * 64


def opened(terms: Terms, round_: int, sent: tuple[bytes, bytes]) -> np.ndarray:
    """What a notary that conspires with the server would read."""
    assert terms.ring_bits is not None
    occasion = Occasion.of(terms, round_)
    seed = Ticket.from_bytes(sent[1], occasion).seed(occasion, KEY)
    numbers = numbers_from_bytes(sent[0], LENGTH, terms.ring_bits).copy()
    numbers -= sum_of_masks([seed], LENGTH, terms.ring_bits)
    return lifted(numbers) * terms.noise_shares.cell


@pytest.mark.parametrize("bits", [32, 64])
@pytest.mark.parametrize("coin", [True, False])
def test_under_the_mask_is_the_sum_with_a_share_of_the_noise(
    owner: Any, make_terms: Make, weights: bytes, coin: bool, bits: int
) -> None:
    terms = masked(make_terms, q=1.0, ring_bits=bits)
    recorder = Recorder()
    participant = enrolled(owner.open_with(coin, randomness=recorder), terms)
    sent = participant.masked_sum(terms, 1, weights, vouched(participant, terms))
    under = opened(terms, 1, sent) - coin * exact_sum(owner, weights)
    share = 1.5 / 2  # σ = 1.5, and h = 4
    for std, holds in ((share, True), (1.5, False), (share * 1.2, False)):
        assert (variance_p_value(under.astype(np.float32), std) > 1e-6) is holds
    assert [call for call in recorder.calls if call[0] == "noise"] == [
        ("noise", LENGTH, terms.noise_shares.share_std)
    ]


def test_both_coins_do_the_same_work_and_look_alike(
    owner: Any, make_terms: Make, weights: bytes
) -> None:
    terms = masked(make_terms)
    recorder = Recorder()
    participant = enrolled(owner.open_with(True, False, randomness=recorder), terms)
    voucher = vouched(participant, terms)
    works, sizes = [], []
    for round_ in (1, 2, 3, 4):
        numbers, ticket = participant.masked_sum(terms, round_, weights, voucher)
        works.append([call[0] for call in recorder.calls])
        recorder.calls.clear()
        sizes.append((len(numbers), len(ticket)))
    assert works == [["sample", "noise"]] * 4
    assert set(sizes) == {(4 * LENGTH, Occasion.of(terms, 1).ticket_bytes)}
    assert {entry.coin for entry in owner.entries("charge")} == {True, False}


def test_no_two_rounds_share_a_mask(owner: Any, make_terms: Make, weights: bytes) -> None:
    terms = masked(make_terms)
    participant = enrolled(owner.open(), terms)
    voucher = vouched(participant, terms)
    seeds = set()
    for round_ in range(1, 9):
        _, ticket = participant.masked_sum(terms, round_, weights, voucher)
        occasion = Occasion.of(terms, round_)
        seeds.add(Ticket.from_bytes(ticket, occasion).seed(occasion, KEY))
    assert len(seeds) == 8


def test_experiments_side_by_side_share_neither_masks_nor_tickets(
    owner: Any, make_terms: Make, weights: bytes
) -> None:
    first, second = masked(make_terms), masked(make_terms, experiment="beside")
    participant = owner.open()
    sent = []
    for terms in (first, second):
        enrolled(participant, terms)
        sent.append(participant.masked_sum(terms, 1, weights, vouched(participant, terms)))
    read = [opened(terms, 1, answer) for terms, answer in zip((first, second), sent, strict=True)]
    assert not np.array_equal(*read)
    for terms, answer in ((first, sent[1]), (second, sent[0])):
        with pytest.raises(ValueError, match="not sealed to this key for this purpose"):
            opened(terms, 1, answer)
    assert len(owner.entries("charge")) == 2


def test_the_charge_is_on_disk_and_the_round_used_up_before_there_is_a_mask(
    owner: Any, make_terms: Make, weights: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    terms = masked(make_terms)
    participant = enrolled(owner.open(), terms)
    voucher = vouched(participant, terms)
    seen: list[tuple[int, int]] = []

    def watched(*asked: Any) -> Any:
        seen.append((len(owner.entries("charge")), len(owner.entries("answer"))))
        return write_ticket(*asked)

    monkeypatch.setattr("coinflower.client.masked.write_ticket", watched)
    for round_ in (1, 2):
        participant.masked_sum(terms, round_, weights, voucher)
    assert seen == [(1, 1), (2, 2)]


@pytest.mark.parametrize(
    "step",
    [
        "gradient_sums.capped_sum",
        "masked.noisy_counts",
        "masked.write_ticket",
        "masked.add_masks",
    ],
)
def test_a_round_is_never_answered_under_a_second_mask(
    owner: Any, make_terms: Make, weights: bytes, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    terms = masked(make_terms)
    participant = enrolled(owner.open(), terms)
    voucher = vouched(participant, terms)

    def broken(*_: object) -> None:
        raise OSError("the machine stops here")

    with monkeypatch.context() as patch:
        patch.setattr(f"coinflower.client.{step}", broken)
        with pytest.raises(OSError, match="stops here"):
            participant.masked_sum(terms, 1, weights, voucher)
    participant.ledger.close()
    again = enrolled(owner.open(), terms)
    with pytest.raises(UnansweredError, match="round 1 was answered before"):
        again.masked_sum(terms, 1, weights, vouched(again, terms))
    assert len(owner.entries("charge")) == len(owner.entries("answer")) == 1


def test_nothing_leaves_without_a_mask(owner: Any, make_terms: Make, weights: bytes) -> None:
    terms = masked(make_terms)
    participant = enrolled(owner.open(), terms)
    with pytest.raises(UnansweredError, match="no sum without a mask"):
        participant.gradient_sum(terms, 1, weights)
    with pytest.raises(UnansweredError, match="reveals no coins"):
        participant.flip(terms, [1])
    bare = make_terms(Mode.UNTRUSTED)
    with pytest.raises(UnansweredError, match="knows no masks"):
        enrolled(participant, bare).masked_sum(bare, 1, weights, b"")
    assert not owner.entries("charge")


# Refusals


@pytest.mark.parametrize(
    ("limit", "changes", "refusal"),
    [
        ({"notaries": None}, {}, Refusal.NOTARY),
        ({"signing_key": None}, {}, Refusal.NOTARY),
        ({"notaries": [OTHER_NOTARY]}, {}, Refusal.NOTARY),
        ({"notaries": [NOTARY, OTHER_NOTARY]}, {}, Refusal.NOTARY),
        ({}, {"notaries": (NOTARY, OTHER_NOTARY)}, Refusal.NOTARY),
        ({"notaries": ["0" * 64]}, {"notaries": ("0" * 64,)}, Refusal.NOTARY),
        ({"least_threshold": 6}, {}, Refusal.COLLUSION),
        ({"least_colluders": 2}, {}, Refusal.COLLUSION),
        ({"least_noise_multiplier": 1.6}, {}, Refusal.NOISE),
    ],
)
def test_terms_that_the_owner_does_not_trust_are_refused(
    owner: Any,
    make_terms: Make,
    limit: dict[str, Any],
    changes: dict[str, Any],
    refusal: Refusal,
    weights: bytes,
) -> None:
    owner.change(**limit)
    terms = masked(make_terms, **changes)
    participant = owner.open()
    assert refused(lambda: participant.enrol(terms)) is refusal
    assert not owner.entries()


def test_a_ring_that_cannot_hold_the_sums_is_refused(owner: Any, make_terms: Make) -> None:
    small = masked(make_terms, threshold=1_000_000, noise_multiplier=1.5, q=1.0)
    assert refused(lambda: owner.open().enrol(small)) is Refusal.RING
    enrolled(owner.open(), replace(small, ring_bits=64))


def test_a_damaged_key_is_an_error_at_the_start(owner: Any) -> None:
    owner.policy.with_suffix(".key").write_text("no key")
    with pytest.raises(ValueError, match="is not an unprotected private key"):
        owner.open()


# Messages


def test_the_app_answers_with_masked_numbers_and_a_ticket(
    owner: Any, make_terms: Make, weights: bytes
) -> None:
    terms = masked(make_terms)
    told = answer_of(call(owner, "query.enrol", question(terms)))
    asked = question(terms, round=1, weights=weights)
    fails(owner, "train.gradient", asked)
    voucher = write_voucher(told[messages.REQUEST], terms.hash, NO_TOKEN, KEY)
    asked[messages.ECHO] = type(asked[messages.ASK])(  # a record beside the question
        {messages.ECHO: NO_TOKEN, messages.VOUCHERS: voucher}
    )
    sent = answer_of(call(owner, "train.gradient", asked))
    assert set(sent) == {messages.SUM, messages.TICKET}
    assert len(sent[messages.SUM]) == 4 * LENGTH
    fails(owner, "train.gradient", asked)


def test_only_mode_masked_asks_anything_of_notaries(owner: Any, make_terms: Make) -> None:
    told = answer_of(call(owner, "query.enrol", question(make_terms(Mode.UNTRUSTED))))
    assert messages.REQUEST not in told
    owner.change(notaries=None)
    owners.close()
    told = answer_of(call(owner, "query.enrol", question(masked(make_terms, experiment="b"))))
    assert messages.REQUEST not in told
