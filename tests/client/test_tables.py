"""A client whose data is a table: read by a schema that the terms name, or not at all."""

from __future__ import annotations

from typing import Any

import pytest

from coinflower.client.data import load_local_data
from coinflower.protocol.policy import Refusal, RefusedError, load_policy
from tests.support import tables
from tests.support.participants import refused


@pytest.fixture
def ward(owner: Any) -> Any:
    """An owner whose data is a table."""
    folder = owner.policy.parent
    tables.write_schema(folder / "schema.toml")
    tables.write_ward(folder / "ward.csv", tables.ward_rows(30))
    owner.change(data="ward.csv", schema="schema.toml", models=[tables.MODEL])
    return owner


def terms_for(ward: Any, make_terms: Any, **changes: Any) -> Any:
    schema = load_local_data(load_policy(ward.policy)).schema
    return make_terms(**{"model": tables.MODEL, "classes": 2, "schema": schema, **changes})


@pytest.mark.parametrize("schema", [None, "0" * 64])
def test_a_schema_whose_hash_differs_is_refused_and_nothing_is_charged(
    ward: Any, make_terms: Any, schema: str | None
) -> None:
    terms = terms_for(ward, make_terms)
    participant = ward.open()
    other = terms_for(ward, make_terms, schema=schema)
    assert refused(lambda: participant.enrol(other)) is Refusal.SCHEMA
    assert ward.entries() == []
    assert participant.enrol(terms) == 30


def test_data_without_a_schema_refuses_terms_with_one(owner: Any, make_terms: Any) -> None:
    participant = owner.open()
    assert refused(lambda: participant.enrol(make_terms(schema="a" * 64))) is Refusal.SCHEMA
    assert participant.enrol(make_terms()) == 30


def test_an_edited_schema_answers_no_round_and_charges_none(
    ward: Any, make_terms: Any, weights: bytes
) -> None:
    terms = terms_for(ward, make_terms)
    ward.open().enrol(terms)
    text = tables.SCHEMA.replace("range = [0, 100]", "range = [0, 10]")
    tables.write_schema(ward.policy.parent / "schema.toml", text)
    with pytest.raises(RefusedError, match="but the terms name the schema"):
        ward.open().gradient_sum(terms, 1, weights)
    assert ward.entries("charge") == []


def test_rows_that_cannot_be_used_change_nothing_that_the_server_hears(
    ward: Any, make_terms: Any, caplog: pytest.LogCaptureFixture
) -> None:
    terms = terms_for(ward, make_terms)
    rows = [*tables.ward_rows(28), ",40,f,no", "q,old,m,yes"]
    tables.write_ward(ward.policy.parent / "ward.csv", rows)
    participant = ward.open()
    assert participant.enrol(terms) == 30
    assert len(participant._gradients.data) == 28
    assert "row 29 counts as absent: column 'patient' is blank" in caplog.text
    assert "row 30 counts as absent: column 'age' = 'old' is not a number" in caplog.text


@pytest.mark.parametrize(
    ("header", "schema", "sentence"),
    [
        ("patient,years,sex,ill", tables.SCHEMA, "has no column 'age'"),
        (tables.HEADER, tables.SCHEMA.replace('["f", "m"]', "[]"), "must list the categories"),
        (tables.HEADER, tables.SCHEMA.replace('["no", "yes"]', '["0", "1"]'), "30 of 30 rows"),
    ],
)
def test_a_table_that_cannot_be_read_keeps_the_client_from_starting(
    ward: Any, header: str, schema: str, sentence: str
) -> None:
    tables.write_ward(ward.policy.parent / "ward.csv", tables.ward_rows(30), header)
    (ward.policy.parent / "schema.toml").write_text(schema)
    with pytest.raises(ValueError, match=sentence):
        ward.open()
    assert ward.entries() == []


def test_numbers_as_targets_are_refused_by_terms_that_ask_for_classes(
    ward: Any, make_terms: Any
) -> None:
    text = tables.SCHEMA.replace('target = "ill"', 'target = "age"')
    tables.write_schema(ward.policy.parent / "schema.toml", text)
    participant = ward.open()
    terms = terms_for(ward, make_terms)
    assert refused(lambda: participant.enrol(terms)) is Refusal.MODEL
    assert ward.entries() == []


def test_an_own_loader_must_be_listed(owner: Any) -> None:
    name = "tests.support.tables:ward_arrays"
    owner.change(data=name)
    with pytest.raises(ValueError, match="runs only if the policy lists it: add loaders"):
        owner.open()
    owner.change(loaders=[name])
    assert len(load_local_data(load_policy(owner.policy))) == 4
