"""Queries in the terms: what may be asked, how it travels, and what policies and versions allow."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from coinflower.accounting.errors import UserError
from coinflower.protocol.modes import PRIVATE_MODES, Mode
from coinflower.protocol.policy import BUILT_IN_MODELS, Refusal, RefusedError
from coinflower.protocol.query import Query, QueryKind
from coinflower.protocol.terms import NO_MODEL, Terms
from tests.support.builders import make_policy, make_terms

EVALUATION = Query(kind=QueryKind.EVALUATION, metrics=("accuracy", "loss"), largest_loss=5.0)
STATISTICS = Query(kind=QueryKind.STATISTICS, means=("age",), histograms=("age", "sex"), bins=10)
STATISTICAL = {"query": STATISTICS, "model": NO_MODEL, "classes": 1, "schema": "a" * 64}


def allowing(*kinds: str, **changes: Any) -> Any:
    limits = {"largest_p": 1.0, "largest_q": 1.0}
    return make_policy(queries=frozenset(map(QueryKind, kinds)), **{**limits, **changes})


@pytest.mark.parametrize("changes", [{"query": EVALUATION}, STATISTICAL])
@pytest.mark.parametrize("mode", PRIVATE_MODES)
def test_terms_of_a_query_travel_as_they_are(mode: Mode, changes: dict[str, Any]) -> None:
    terms = make_terms(mode, **changes)
    assert Terms.from_json(terms.to_json()) == terms
    assert Terms.from_fields(terms.to_fields()).hash == terms.hash


def test_terms_without_a_query_say_nothing_of_it() -> None:
    assert "query" not in make_terms().to_fields()


def test_every_part_of_a_query_makes_it_another_experiment() -> None:
    others = [
        dataclasses.replace(EVALUATION, metrics=("accuracy",)),
        dataclasses.replace(EVALUATION, metrics=("loss", "accuracy")),
        dataclasses.replace(EVALUATION, largest_loss=6.0),
        dataclasses.replace(EVALUATION, bins=21),
        None,
    ]
    keys = {make_terms(query=query).ledger_key for query in (EVALUATION, *others)}
    assert len(keys) == len(others) + 1


@pytest.mark.parametrize(
    ("fields", "match"),
    [
        ({"kind": "evaluation"}, "needs metrics"),
        ({"kind": "statistics"}, "needs means or histograms"),
        ({"kind": "evaluation", "metrics": ["accuracy"], "means": ["age"]}, "means does not go"),
        ({"kind": "statistics", "means": ["age"], "metrics": ["loss"]}, "metrics does not go"),
        ({"kind": "evaluation", "metrics": ["loss", "loss"]}, "one of them twice"),
        ({"kind": "evaluation", "metrics": ["names"]}, "metrics"),
        ({"kind": "evaluation", "metrics": ["loss"], "largest_loss": 0}, "largest_loss"),
        ({"kind": "evaluation", "metrics": ["auc"], "bins": 1}, "bins"),
        ({"kind": "evaluation", "metrics": ["auc"], "bins": 10**9}, "bins"),
        ({"kind": "statistics", "means": [str(n) for n in range(201)]}, "200 columns at most"),
        ({"kind": "export", "metrics": ["loss"]}, "kind"),
        ({"kind": "evaluation", "metrics": ["loss"], "rows": 3}, "unknown key 'rows'"),
    ],
)
def test_a_query_that_makes_no_sense_is_no_terms(fields: dict[str, Any], match: str) -> None:
    content = make_terms().to_fields() | {"query": fields}
    with pytest.raises(UserError, match=match):
        Terms.from_json(json.dumps(content))


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"mode": Mode.NONE, "noise_multiplier": 0.0}, "needs a mode that protects"),
        ({"clipping": "automatic"}, "for gradients"),
        ({"query": STATISTICS}, "statistics take none"),
    ],
)
def test_a_query_needs_protection_and_its_own_kind_of_model(
    changes: dict[str, Any], match: str
) -> None:
    mode = changes.pop("mode", Mode.TRUSTED)
    with pytest.raises(UserError, match=match):
        make_terms(mode, **{"query": EVALUATION, **changes})


def test_a_policy_that_says_nothing_of_queries_allows_none() -> None:
    for changes in ({"query": EVALUATION}, STATISTICAL):
        with pytest.raises(RefusedError) as caught:
            allowing().require(make_terms(**changes))
        assert caught.value.refusal is Refusal.QUERY


def test_a_policy_allows_the_kinds_that_it_lists_and_trainings_as_before() -> None:
    allowing("evaluation").require(make_terms(query=EVALUATION))
    allowing("evaluation").require(make_terms())
    allowing("statistics").require(make_terms(**STATISTICAL))
    with pytest.raises(RefusedError):
        allowing("statistics").require(make_terms(query=EVALUATION))


@pytest.mark.parametrize(
    ("limits", "refusal"),
    [
        ({"largest_p": 0.4}, Refusal.PARTICIPATION),
        ({"largest_q": 0.4}, Refusal.SAMPLING),
        ({"largest_clip_norm": 0.9}, Refusal.CLIPPING),
        ({"largest_cap": 10.0}, Refusal.CAP),
        ({"least_noise_multiplier": 1.6}, Refusal.NOISE),
        ({"most_rounds": 7}, Refusal.EXTENT),
        ({"modes": ["untrusted"]}, Refusal.MODE),
        ({"models": BUILT_IN_MODELS - {"digits"}}, Refusal.MODEL),
    ],
)
def test_a_query_is_held_to_the_limits_of_a_training(
    limits: dict[str, Any], refusal: Refusal
) -> None:
    with pytest.raises(RefusedError) as caught:
        allowing("evaluation", **limits).require(make_terms(query=EVALUATION))
    assert caught.value.refusal is refusal


def test_statistics_need_no_model_that_the_policy_lists() -> None:
    allowing("statistics", models=frozenset({"linear"})).require(make_terms(**STATISTICAL))
