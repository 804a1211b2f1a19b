"""A client under a cap: its whole sum is clipped, charged as such, and nothing weaker is taken."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest

from coinflower.accounting.ledger.errors import LedgerError
from coinflower.accounting.ledger.ledger import Ledger
from coinflower.accounting.mechanism import Round
from coinflower.client import gradient_sums
from coinflower.client.data import load_local_data
from coinflower.learning import capped_sum
from coinflower.learning.noise import lattice_cell
from coinflower.protocol.modes import Mode
from coinflower.protocol.policy import Refusal, load_policy
from tests.client.conftest import SAMPLES
from tests.support.participants import (
    LENGTH,
    Make,
    Recorder,
    enrolled,
    exact_sum,
    fail_on,
    refused,
    variance_p_value,
)

BARE = [mode for mode in Mode if not mode.client_adds_noise]


class Heads(Recorder):
    """Public coins of mode none that say yes."""

    def coin(self, p: float) -> bool:
        return p > 0


def norm(vector: np.ndarray) -> float:
    return float(np.linalg.norm(vector.astype(np.float64)))


@pytest.mark.parametrize("mode", BARE)
@pytest.mark.parametrize("cap", [1.0, 1.5, 2.0])
def test_the_whole_sum_is_clipped_once(
    owner: Any, make_terms: Make, weights: bytes, mode: Mode, cap: float
) -> None:
    terms = make_terms(mode, q=1.0, clip_norm=0.5, cap=cap)
    bare = exact_sum(owner, weights, 0.5)
    assert norm(bare) > cap * 0.5  # so the cap bites
    participant = enrolled(owner.open_with(True, randomness=Heads()), terms)
    total = participant.gradient_sum(terms, 1, weights)
    assert norm(total) <= cap * 0.5
    np.testing.assert_allclose(total, capped_sum(bare, cap * 0.5), atol=1e-6)


def test_a_sum_below_the_cap_is_sent_as_it_is(owner: Any, make_terms: Make, weights: bytes) -> None:
    terms = make_terms(Mode.TRUSTED, q=1.0, cap=float(SAMPLES))
    participant = enrolled(owner.open_with(True), terms)
    total = participant.gradient_sum(terms, 1, weights)
    np.testing.assert_allclose(total, exact_sum(owner, weights), atol=1e-6)


def test_an_empty_sample_gives_zeros(owner: Any, make_terms: Make, weights: bytes) -> None:
    terms = make_terms(Mode.TRUSTED, q=1e-9, cap=1)
    participant = enrolled(owner.open_with(True), terms)
    assert not participant.gradient_sum(terms, 1, weights).any()


def test_whoever_fails_one_by_one_is_capped_all_the_same(
    owner: Any, make_terms: Make, weights: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bisection around a failing record adds up parts: it is their sum that is clipped."""
    terms = make_terms(Mode.TRUSTED, q=1.0, cap=1.5)
    inputs = load_local_data(load_policy(owner.policy)).inputs
    participant = enrolled(owner.open_with(True), terms)
    monkeypatch.setattr(gradient_sums, "clipped_gradient_sum", fail_on([inputs[4]]))
    total = participant.gradient_sum(terms, 1, weights)
    assert norm(total) <= 1.5
    wanted = capped_sum(exact_sum(owner, weights, without=[4]), 1.5)
    np.testing.assert_allclose(total, wanted, atol=1e-6)


class Silence(Recorder):
    """Noise that is asked for as ever, and is all zeros."""

    def normal(self, size: int, std: float) -> np.ndarray:
        return 0 * super().normal(size, std)


@pytest.mark.parametrize("mode", [Mode.UNTRUSTED, Mode.QUIET])
def test_under_the_noise_lies_the_capped_sum(
    owner: Any, make_terms: Make, weights: bytes, mode: Mode
) -> None:
    terms, silence = make_terms(mode, q=1.0, cap=1.25), Silence()
    participant = enrolled(owner.open_with(True, randomness=silence), terms)
    total = participant.gradient_sum(terms, 1, weights)
    assert ("noise", LENGTH, terms.noise_std) in silence.calls
    wanted = capped_sum(exact_sum(owner, weights), 1.25)
    np.testing.assert_allclose(total, wanted, atol=lattice_cell(terms.noise_std))


@pytest.mark.parametrize("mode", [Mode.UNTRUSTED, Mode.QUIET])
def test_the_noise_is_not_capped(owner: Any, make_terms: Make, weights: bytes, mode: Mode) -> None:
    terms = make_terms(mode, q=1.0, cap=1)
    participant = enrolled(owner.open_with(True), terms)
    total = participant.gradient_sum(terms, 1, weights)
    noise = total - capped_sum(exact_sum(owner, weights), 1.0)
    assert variance_p_value(noise, terms.noise_std) > 1e-6
    assert variance_p_value(capped_sum(noise, 1.0), terms.noise_std) < 1e-6


def test_the_ledger_keeps_the_cap_and_charges_less_for_it(
    owner: Any, make_terms: Make, weights: bytes
) -> None:
    terms, free = make_terms(cap=1), make_terms(experiment="free")
    participant = owner.open_with(True)
    for each in (terms, free):
        enrolled(participant, each).gradient_sum(each, 1, weights)
    participant.ledger.close()
    with Ledger.open(owner.ledger, read_only=True) as ledger:
        ledger.verify()
        capped, uncapped = (
            next(one for one in ledger.tallies() if one.experiment == each.ledger_key)
            for each in (terms, free)
        )
    assert capped.terms.round == Round(terms.p, terms.q, SAMPLES, 1.5, cap=1.0)
    assert uncapped.terms.round == Round(terms.p, terms.q, SAMPLES, 1.5)
    assert capped.terms.epsilon(1e-5) < uncapped.terms.epsilon(1e-5)
    stored = [json.loads(entry.terms) for entry in owner.entries("commit")]
    assert [one.get("cap") for one in stored] == [1.0, None]
    assert [one["agreed"].get("cap") for one in stored] == [1.0, None]


@pytest.mark.parametrize("cap", [2.5, math.inf])
def test_a_server_that_asks_for_a_larger_cap_or_none_is_refused(
    owner: Any, make_terms: Make, weights: bytes, cap: float
) -> None:
    owner.change(largest_cap=2.0)
    participant = owner.open_with(True)
    terms = make_terms(cap=cap)
    assert refused(lambda: participant.enrol(terms)) is Refusal.CAP
    assert refused(lambda: participant.gradient_sum(terms, 1, weights)) is Refusal.CAP
    assert owner.entries() == []
    enrolled(participant, make_terms(cap=1.5))


def test_a_limit_that_came_after_enrolment_holds_at_once(
    owner: Any, make_terms: Make, weights: bytes
) -> None:
    terms = make_terms(cap=3)
    enrolled(owner.open_with(True), terms).ledger.close()
    owner.change(largest_cap=2.0)
    assert refused(lambda: owner.open().gradient_sum(terms, 1, weights)) is Refusal.CAP
    assert owner.entries("charge") == []


def test_terms_with_a_cap_are_another_experiment_than_those_without(
    owner: Any, make_terms: Make, weights: bytes
) -> None:
    """Else a server could have the capped rounds charged and the bare ones answered."""
    participant = enrolled(owner.open_with(True), make_terms(cap=1))
    with pytest.raises(LedgerError, match="is not enrolled"):
        participant.gradient_sum(make_terms(), 1, weights)
