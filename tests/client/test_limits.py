"""A server that asks for too much: refused before anything is built, with one constant sentence."""

from __future__ import annotations

import math
from typing import Any

import pytest
from torch import nn

import client.model
from client.participant import Participant
from protocol.policy import Refusal
from protocol.terms import Mode, Terms
from tests.client.participants import Make, enrolled, refused


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
    monkeypatch.setattr(client.model, "build_model", lambda *_, **__: pytest.fail("was built"))
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
        client.model, "clipped_gradient_sum", lambda *_, **__: pytest.fail("was tried")
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
    monkeypatch.setattr("accounting.ledger.epsilon_after", lambda *_, **__: price)
    assert refused(lambda: participant.enrol(make_terms())) is Refusal.BUDGET
    assert owner.entries() == []


@pytest.mark.parametrize("price", [math.nan, math.inf])
def test_no_coin_falls_while_what_is_committed_has_no_figure(
    owner: Any, make_terms: Make, monkeypatch: pytest.MonkeyPatch, price: float
) -> None:
    terms = make_terms(Mode.TRUSTED)
    enrolled(owner.open(), terms)
    again = owner.open()
    monkeypatch.setattr("accounting.ledger.epsilon_after", lambda *_, **__: price)
    with pytest.raises(Exception, match="is committed at delta"):
        again.flip(terms, [1])
    assert owner.entries("charge") == []
