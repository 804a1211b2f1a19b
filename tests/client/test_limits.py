"""A server that asks for too much: refused before anything is built, with one constant sentence."""

from __future__ import annotations

import math
from typing import Any

import pytest
from torch import nn

import coinflower.client.model
from coinflower.client.participant import Participant
from coinflower.protocol.modes import Mode
from coinflower.protocol.policy import Refusal
from coinflower.protocol.terms import Terms
from tests.support.participants import Make, enrolled, refused


def large_model(classes: int) -> nn.Module:
    """A model of an owner's own, far larger than its classes suggest."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 1_000), nn.Linear(1_000, classes))


@pytest.mark.parametrize(
    ("limits", "changes"),
    [
        ({}, {"classes": 100_000}),
        ({"most_classes": 9}, {}),
        ({"most_rounds": 7}, {}),
        ({"most_rounds_per_invitation": 3}, {}),
        ({}, {"rounds": 1_000_000, "rounds_per_invitation": 1_000_000}),
    ],
)
def test_terms_beyond_a_limit_are_refused_before_a_model_is_built(
    owner: Any,
    make_terms: Make,
    monkeypatch: pytest.MonkeyPatch,
    limits: dict[str, Any],
    changes: dict[str, Any],
) -> None:
    monkeypatch.setattr(
        coinflower.client.model, "model_of", lambda *_, **__: pytest.fail("was built")
    )
    owner.change(**limits)
    participant, terms = owner.open(), make_terms(Mode.TRUSTED, **changes)
    assert refused(lambda: participant.enrol(terms)) is Refusal.EXTENT
    assert refused(lambda: participant.flip(terms, [1])) is Refusal.EXTENT
    assert refused(lambda: participant.gradient_sum(terms, 1, b"")) is Refusal.EXTENT
    assert owner.entries() == []


@pytest.mark.parametrize("classes", [10**9, 100_001])
def test_more_classes_than_anybody_has_are_no_terms(make_terms: Make, classes: int) -> None:
    text = make_terms().to_json().replace('"classes":10', f'"classes":{classes}')
    with pytest.raises(ValueError, match="classes"):
        Terms.from_json(text)


def test_a_model_with_too_many_parameters_is_refused_before_it_is_tried(
    owner: Any, make_terms: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"{__name__}:large_model"
    owner.change(models=[name], most_parameters=75_009)
    terms = make_terms(model=name)
    monkeypatch.setattr(
        coinflower.client.model, "try_out", lambda *_, **__: pytest.fail("was tried")
    )
    assert refused(lambda: owner.open().enrol(terms)) is Refusal.EXTENT
    assert owner.entries() == []


def test_a_model_of_exactly_the_most_parameters_is_allowed(owner: Any, make_terms: Make) -> None:
    name = f"{__name__}:large_model"
    owner.change(models=[name], most_parameters=75_010)
    assert enrolled(owner.open(), make_terms(model=name)).current is not None


def test_the_figures_of_a_limit_stay_in_the_owners_log(owner: Any, make_terms: Make) -> None:
    owner.change(most_classes=9)
    participant: Participant = owner.open()
    with pytest.raises(Exception, match="classes = 10 > most_classes = 9"):
        participant.enrol(make_terms())
    assert not any(character.isdigit() for character in Refusal.EXTENT.value)


@pytest.mark.parametrize("price", [math.nan, math.inf])
def test_a_price_that_is_no_figure_is_refused(
    owner: Any, make_terms: Make, monkeypatch: pytest.MonkeyPatch, price: float
) -> None:
    participant = owner.open()
    monkeypatch.setattr("coinflower.accounting.ledger.prices.epsilon_after", lambda *_, **__: price)
    assert refused(lambda: participant.enrol(make_terms())) is Refusal.BUDGET
    assert owner.entries() == []


@pytest.mark.parametrize("price", [math.nan, math.inf])
def test_no_coin_falls_while_what_is_reserved_has_no_figure(
    owner: Any, make_terms: Make, monkeypatch: pytest.MonkeyPatch, price: float
) -> None:
    terms = make_terms(Mode.TRUSTED)
    enrolled(owner.open(), terms)
    again = owner.open()
    monkeypatch.setattr("coinflower.accounting.ledger.prices.epsilon_after", lambda *_, **__: price)
    with pytest.raises(Exception, match="is reserved at delta"):
        again.flip(terms, [1])
    assert owner.entries("charge") == []


def test_terms_that_take_too_long_to_price_are_refused_in_one_sentence(
    owner: Any, make_terms: Make
) -> None:
    owner.change(pricing_seconds=1e-6)
    with pytest.raises(Exception, match="more than pricing_seconds") as caught:
        owner.open().enrol(make_terms(noise_multiplier=7.1))
    assert caught.value.refusal is Refusal.PRICE
    assert owner.entries() == []


@pytest.mark.parametrize("limit", ["most_experiments", "most_open_experiments"])
def test_one_experiment_more_than_allowed_is_refused(
    owner: Any, make_terms: Make, limit: str
) -> None:
    owner.change(**{limit: 2})
    participant = owner.open()
    first, second, third = (make_terms(experiment=f"trial-{index}") for index in range(3))
    enrolled(enrolled(participant, first), second)
    assert refused(lambda: participant.enrol(third)) is Refusal.EXPERIMENTS
    participant.enrol(second)  # those that are in may ask again
    assert len(owner.entries()) == 2
    participant.leave("trial-0")
    if limit == "most_open_experiments":
        participant.enrol(third)
    else:
        assert refused(lambda: participant.enrol(third)) is Refusal.EXPERIMENTS


def test_experiments_with_ever_new_terms_neither_lock_out_nor_lose_count(
    owner: Any, make_terms: Make
) -> None:
    owner.change(largest_p=0.5, budget={"epsilon": 4.0, "delta": 1e-5})
    participant = owner.open()
    for index in range(30):
        participant.enrol(
            make_terms(
                Mode.TRUSTED,
                experiment=f"trial-{index}",
                rounds=1,
                rounds_per_invitation=1,
                p=0.01 + 1e-4 * index,
                q=0.01,
                noise_multiplier=20 + 0.01 * index,
            )
        )
    dear = make_terms(Mode.TRUSTED, experiment="dear", p=0.5, q=1.0, rounds=1000)
    assert refused(lambda: participant.enrol(dear)) is Refusal.BUDGET
    again = owner.open()
    again.flip(
        make_terms(
            Mode.TRUSTED,
            experiment="trial-29",
            rounds=1,
            rounds_per_invitation=1,
            p=0.01 + 1e-4 * 29,
            q=0.01,
            noise_multiplier=20 + 0.01 * 29,
        ),
        [1],
    )
    assert len(owner.entries("charge")) == 1
