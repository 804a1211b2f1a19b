"""A data owner's client without Flower: enrolment, edited policies, coins."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from coinflower.accounting.ledger.errors import LedgerError
from coinflower.accounting.ledger.ledger import Ledger
from coinflower.client.participant import UnansweredError
from coinflower.protocol.agreed import terms_of
from coinflower.protocol.modes import PRIVATE_MODES, Mode
from coinflower.protocol.policy import Refusal, RefusedError
from tests.support.participants import (
    SPEAKING,
    Make,
    Recorder,
    enrolled,
    refused,
)

# Enrolment


@pytest.mark.parametrize("mode", PRIVATE_MODES)
def test_enrolment_reserves_the_planned_rounds_and_notes_the_terms(
    owner: Any, make_terms: Make, mode: Mode
) -> None:
    terms = make_terms(mode)
    assert owner.open().enrol(terms) == 30
    (entry,) = owner.entries()
    assert (entry.kind, entry.experiment, entry.rounds) == ("commit", terms.ledger_key, 8)
    with Ledger.open(owner.ledger) as ledger:
        assert ledger.tallies()[0].terms == terms.round_cost(30)
        assert terms_of(ledger.tallies()[0]) == terms


def test_enrolling_twice_is_free(owner: Any, make_terms: Make) -> None:
    enrolled(owner.open(), make_terms()).enrol(make_terms())
    owner.open().enrol(make_terms())
    assert len(owner.entries()) == 1


@pytest.mark.parametrize(
    ("limit", "changes", "refusal"),
    [
        ({"modes": ["trusted"]}, {}, Refusal.MODE),
        ({"largest_p": 0.4}, {}, Refusal.PARTICIPATION),
        ({"largest_q": 0.4}, {}, Refusal.SAMPLING),
        ({}, {"clip_norm": 1.1}, Refusal.CLIPPING),
        ({}, {"noise_multiplier": 1.4}, Refusal.NOISE),
        ({"models": ["paper-cnn"]}, {}, Refusal.MODEL),
        ({}, {"model": "os:system"}, Refusal.MODEL),
        ({}, {"model": "paper-cnn"}, Refusal.MODEL),
        ({}, {"p": 5e-324, "q": 5e-324}, Refusal.TERMS),
    ],
)
def test_weaker_or_strange_terms_are_refused_and_leave_no_trace(
    owner: Any,
    make_terms: Make,
    weights: bytes,
    limit: dict[str, Any],
    changes: dict[str, Any],
    refusal: Refusal,
) -> None:
    owner.change(**limit)
    participant, terms = owner.open(), make_terms(**changes)
    assert refused(lambda: participant.enrol(terms)) is refusal
    with pytest.raises((RefusedError, LedgerError, RuntimeError, ValueError)):
        participant.gradient_sum(terms, 1, weights)
    assert owner.entries() == []


@pytest.mark.parametrize(("classes", "fits"), [(5, True), (4, False), (10, False)])
def test_an_own_model_with_another_number_of_classes_than_the_terms_is_refused(
    owner: Any, make_terms: Make, classes: int, fits: bool
) -> None:
    owner.change(models=["tests.support.participants:five_classes"])
    terms = make_terms(model="tests.support.participants:five_classes", classes=classes)
    if fits:
        assert owner.open().enrol(terms) == 30
    else:
        assert refused(lambda: owner.open().enrol(terms)) is Refusal.MODEL


@pytest.mark.parametrize("epsilon", [0, 0.01])
def test_a_budget_that_does_not_suffice_is_refused_before_anything_is_charged(
    owner: Any, make_terms: Make, weights: bytes, epsilon: float
) -> None:
    owner.change(budget={"epsilon": epsilon, "delta": 1e-5})
    participant = owner.open()
    assert refused(lambda: participant.enrol(make_terms())) is Refusal.BUDGET
    with pytest.raises(LedgerError):
        participant.gradient_sum(make_terms(), 1, weights)
    assert owner.entries() == []


def test_what_other_experiments_reserved_counts(owner: Any, make_terms: Make) -> None:
    participant = enrolled(owner.open(), make_terms())
    with Ledger.open(owner.ledger) as ledger:
        reserved = ledger.reserved_epsilon(1e-5)
    owner.change(budget={"epsilon": 1.2 * reserved, "delta": 1e-5})
    participant = owner.open()
    participant.enrol(make_terms())
    other = make_terms(experiment="other")
    assert refused(lambda: participant.enrol(other)) is Refusal.BUDGET


def test_the_same_name_with_other_terms_is_another_experiment(owner: Any, make_terms: Make) -> None:
    participant = enrolled(owner.open(), make_terms())
    participant.enrol(make_terms(noise_multiplier=2.0))
    assert len({entry.experiment for entry in owner.entries("commit")}) == 2


def test_a_damaged_ledger_lets_nobody_in(owner: Any, make_terms: Make) -> None:
    enrolled(owner.open(), make_terms()).ledger.close()
    content = bytearray(owner.ledger.read_bytes())
    content[len(content) // 2 :] = bytes(len(content) - len(content) // 2)
    owner.ledger.write_bytes(content)
    with pytest.raises(LedgerError):
        owner.open().enrol(make_terms())


def test_a_missing_ledger_or_one_of_other_data_lets_nobody_in(owner: Any) -> None:
    owner.change(ledger="elsewhere.db")
    with pytest.raises(LedgerError, match="There is no ledger"):
        owner.open()
    owner.change(ledger="ward7.db", data_set="ward 8")
    with pytest.raises(LedgerError, match="belongs to data set 'ward 7'"):
        owner.open()


# A policy that was edited after enrolment


def test_a_larger_declared_size_is_not_charged_at_the_old_price(
    owner: Any, make_terms: Make, weights: bytes
) -> None:
    enrolled(owner.open(), make_terms()).ledger.close()
    owner.change(declared_size=60)
    participant = owner.open()
    assert refused(lambda: participant.enrol(make_terms())) is Refusal.LEDGER
    with pytest.raises(LedgerError, match="price"):
        participant.gradient_sum(make_terms(), 1, weights)
    with pytest.raises(LedgerError, match="price"):
        enrolled(participant, make_terms(Mode.TRUSTED, experiment="b")).flip(
            make_terms(Mode.TRUSTED), [1]
        )
    assert owner.entries("charge") == []


def test_a_budget_that_was_lowered_stops_what_was_enrolled(
    owner: Any, make_terms: Make, weights: bytes
) -> None:
    enrolled(owner.open(), make_terms()).ledger.close()
    owner.change(budget={"epsilon": 0.1, "delta": 1e-5})
    participant = owner.open()
    assert refused(lambda: participant.enrol(make_terms())) is Refusal.BUDGET
    with pytest.raises(LedgerError, match=r"budget is 0\.1 now"):
        participant.gradient_sum(make_terms(), 1, weights)
    assert owner.entries("charge") == []


def test_a_limit_that_was_tightened_stops_what_was_enrolled(
    owner: Any, make_terms: Make, weights: bytes
) -> None:
    enrolled(owner.open(), make_terms(Mode.TRUSTED)).ledger.close()
    owner.change(least_noise_multiplier=1.6)
    participant, terms = owner.open(), make_terms(Mode.TRUSTED)
    assert refused(lambda: participant.flip(terms, [1])) is Refusal.NOISE
    assert refused(lambda: participant.gradient_sum(terms, 1, weights)) is Refusal.NOISE
    assert owner.entries("charge") == []


# Coins


@pytest.mark.parametrize("mode", SPEAKING)
def test_every_coin_is_charged_heads_or_tails(owner: Any, make_terms: Make, mode: Mode) -> None:
    terms = make_terms(mode)
    participant = enrolled(owner.open_with(True, False, False), terms)
    assert participant.flip(terms, range(1, 4)) == [True, False, False]
    charges = owner.entries("charge")
    assert [(entry.round, entry.coin) for entry in charges] == [(1, True), (2, False), (3, False)]


def test_a_replayed_invitation_gives_the_same_coins_and_charges_nothing(
    owner: Any, make_terms: Make
) -> None:
    terms = make_terms(Mode.TRUSTED)
    participant = enrolled(owner.open(), terms)
    coins = participant.flip(terms, range(1, 5))
    before = owner.entries()
    assert participant.flip(terms, range(1, 5)) == coins
    participant.ledger.close()
    assert owner.open().flip(terms, range(1, 5)) == coins
    assert owner.entries() == before


def test_overlapping_invitations_flip_each_coin_once(owner: Any, make_terms: Make) -> None:
    terms = make_terms(Mode.TRUSTED)
    participant = enrolled(owner.open_with(True, False), terms)
    assert participant.flip(terms, [1, 2]) == [True, False]
    assert participant.flip(terms, [2, 3]) == [False, True]
    assert len(owner.entries("charge")) == 3


def test_untrusted_servers_see_no_coins(owner: Any, make_terms: Make) -> None:
    participant = enrolled(owner.open(), make_terms())
    with pytest.raises(UnansweredError, match="reveals no coins"):
        participant.flip(make_terms(), [1])
    assert owner.entries("charge") == []


@pytest.mark.parametrize("rounds", [[0], [-1], [9], [8, 9], range(8, 10)])
def test_rounds_outside_of_the_plan_are_not_charged(
    owner: Any, make_terms: Make, rounds: Sequence[int]
) -> None:
    terms = make_terms(Mode.TRUSTED)
    participant = enrolled(owner.open(), terms)
    with pytest.raises(UnansweredError, match="are not all in 1 to 8"):
        participant.flip(terms, rounds)
    assert owner.entries("charge") == []


def test_nobody_is_charged_for_an_experiment_not_enrolled_in(
    owner: Any, make_terms: Make, weights: bytes
) -> None:
    participant = enrolled(owner.open(), make_terms(Mode.TRUSTED))
    other = make_terms(Mode.TRUSTED, experiment="other")
    with pytest.raises(LedgerError, match="is not enrolled"):
        participant.flip(other, [1])
    with pytest.raises(LedgerError, match="is not enrolled"):
        participant.gradient_sum(other, 1, weights)
    assert owner.entries("charge") == []


class FaultyLedger:
    """A ledger that fails at one of its deeds."""

    def __init__(self, ledger: Ledger, fails_at: str) -> None:
        self._ledger = ledger
        self._fails_at = fails_at

    def __getattr__(self, name: str) -> Any:
        if name == self._fails_at:
            raise LedgerError("The disk is full. Nothing was charged.")
        return getattr(self._ledger, name)


@pytest.mark.parametrize("fails_at", ["flip_all", "claim_answer", "tallies"])
@pytest.mark.parametrize("mode", [Mode.UNTRUSTED, Mode.LOCAL_ONLY])
def test_if_the_ledger_fails_the_data_is_not_touched(
    owner: Any,
    make_terms: Make,
    weights: bytes,
    monkeypatch: pytest.MonkeyPatch,
    fails_at: str,
    mode: Mode,
) -> None:
    terms = make_terms(mode)
    enrolled(owner.open(), terms).ledger.close()
    faulty = FaultyLedger(Ledger.open(owner.ledger), fails_at)
    recorder = Recorder()
    participant = owner.open_with(ledger=faulty, randomness=recorder)
    with pytest.raises(LedgerError, match="disk is full"):
        participant.gradient_sum(terms, 1, weights)
    assert recorder.calls == []


def test_if_the_ledger_fails_no_coin_comes_out(owner: Any, make_terms: Make) -> None:
    terms = make_terms(Mode.TRUSTED)
    enrolled(owner.open(), terms).ledger.close()
    participant = owner.open_with(ledger=FaultyLedger(Ledger.open(owner.ledger), "flip_all"))
    with pytest.raises(LedgerError, match="disk is full"):
        participant.flip(terms, [1])


def test_charge_and_answer_are_on_disk_before_the_data_is_touched(
    owner: Any, make_terms: Make, weights: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    participant = enrolled(owner.open(), make_terms())
    seen: list[list[tuple[str, int | None]]] = []

    class Watching(Recorder):
        def sample_indices(self, n: int, q: float) -> npt.NDArray[np.int64]:
            seen.append([(entry.kind, entry.round) for entry in owner.entries()])
            return super().sample_indices(n, q)

    monkeypatch.setattr(participant._gradients, "_randomness", Watching())
    participant.gradient_sum(make_terms(), 5, weights)
    assert seen == [[("commit", None), ("charge", 5), ("answer", 5)]]


def test_a_client_whose_policy_names_a_witness_refuses_a_ledger_that_was_set_back(
    owner: Any, make_terms: Make, tmp_path: Path
) -> None:
    owner.change(witness=str(tmp_path / "witness"))
    terms = make_terms(Mode.TRUSTED)
    participant = owner.open()
    participant.enrol(terms)
    participant.ledger.close()
    older = owner.ledger.read_bytes()
    participant = owner.open()
    participant.flip(terms, [1])
    participant.ledger.close()
    owner.ledger.write_bytes(older)
    with pytest.raises(LedgerError, match="was set back"):
        owner.open()
