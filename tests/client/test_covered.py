"""Mode covered: a client whose answers differ inside of TLS only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from coinflower.client import gradient_sums
from coinflower.client.participant import UnansweredError
from coinflower.learning import clipped_gradient_sum
from coinflower.protocol.modes import Mode
from coinflower.protocol.terms import Terms

Make = Callable[..., Terms]


def test_heads_send_the_sum_and_tails_zeros_of_the_same_length(
    owner: Any, make_terms: Make, weights: bytes
) -> None:
    terms = make_terms(Mode.COVERED, q=1.0)
    participant = owner.open_with(True, False)
    participant.enrol(terms)
    joined, sat_out = (participant.gradient_sum(terms, round_, weights) for round_ in (1, 2))
    assert joined.any()
    assert not sat_out.any()
    assert (joined.shape, joined.dtype) == (sat_out.shape, sat_out.dtype)
    assert [entry.coin for entry in owner.entries("charge")] == [True, False]


def test_the_gradient_is_worked_out_for_either_coin(
    owner: Any, make_terms: Make, weights: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    terms, batches = make_terms(Mode.COVERED, q=1.0), []

    def counted(model: Any, inputs: Any, targets: Any, clip_norm: float, **more: Any) -> Any:
        batches.append(len(inputs))
        return clipped_gradient_sum(model, inputs, targets, clip_norm, **more)

    participant = owner.open_with(True, False)
    participant.enrol(terms)
    monkeypatch.setattr(gradient_sums, "clipped_gradient_sum", counted)
    for round_ in (1, 2):
        participant.gradient_sum(terms, round_, weights)
    assert len(batches) == 2
    assert batches[0] == batches[1] > 0


def test_a_gradient_that_always_fails_is_answered_by_zeros_and_not_by_an_error(
    owner: Any, make_terms: Make, weights: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    terms = make_terms(Mode.COVERED)
    participant = owner.open_with(True)
    participant.enrol(terms)
    monkeypatch.setattr(gradient_sums, "clipped_gradient_sum", lambda *_, **__: 1 / 0)
    total = participant.gradient_sum(terms, 1, weights)
    assert total.dtype == np.float32
    assert not total.any()


def test_no_invitation_is_told_a_coin(owner: Any, make_terms: Make) -> None:
    terms = make_terms(Mode.COVERED)
    participant = owner.open()
    participant.enrol(terms)
    with pytest.raises(UnansweredError, match="reveals no coins"):
        participant.flip(terms, [1])
    assert owner.entries("charge") == []
