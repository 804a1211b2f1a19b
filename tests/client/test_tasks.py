"""What a client does with the task of the terms: it learns it, or stays away and says why."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from coinflower.learning import (
    build_model,
    clipped_gradient_sum,
    flatten_parameters,
    make_task,
    to_tensor,
)
from coinflower.protocol.messages import vector_to_bytes
from coinflower.protocol.modes import Mode
from coinflower.protocol.policy import Refusal
from coinflower.protocol.terms import Terms
from tests.support.own_tasks import HERE
from tests.support.participants import Make, enrolled, refused

LINEAR = f"{HERE}:one_number"
INPUTS = np.random.default_rng(0).normal(size=(30, 2)).astype(np.float32)
NUMBERS = np.linspace(-3, 5, 30).astype(np.float32)


@pytest.fixture
def rows(owner: Any) -> Any:
    """An owner of rows of two numbers, whose targets are numbers."""
    owner.change(data="rows.npz", models=[LINEAR])
    write(owner, NUMBERS)
    return owner


def write(owner: Any, targets: Any) -> None:
    path: Path = owner.policy.parent / "rows.npz"
    np.savez(path, x=INPUTS, y=targets, kind="rows")


def terms_of(make_terms: Make, task: str, **changes: Any) -> Terms:
    fields = {"model": LINEAR, "classes": 1, "task": task, "q": 1.0}
    return make_terms(**{"mode": Mode.TRUSTED, **fields, **changes})


def sum_of(owner: Any, terms: Terms) -> np.ndarray:
    """What a client that always joins sends."""
    sent = flatten_parameters(build_model(LINEAR, classes=terms.classes)).numpy()
    participant = enrolled(owner.open_with(True), terms)
    return participant.gradient_sum(terms, 1, vector_to_bytes(sent))


def expected_sum(terms: Terms, targets: Any, rows: Any) -> np.ndarray:
    task = make_task(terms.task, terms.task_options, outputs=terms.classes)
    model = build_model(LINEAR, classes=terms.classes)
    taken = torch.from_numpy(task.take(np.asarray(targets)[rows]).values)
    inputs = to_tensor(INPUTS[rows])
    return clipped_gradient_sum(model, inputs, taken, terms.clip_norm, loss=task.losses).numpy()


@pytest.mark.parametrize(
    ("task", "options", "outputs", "targets"),
    [
        ("regression", {}, 1, NUMBERS),
        ("regression", {"loss": "huber", "huber_threshold": 0.5}, 1, NUMBERS),
        ("regression", {}, 2, np.stack([NUMBERS, -NUMBERS], axis=1)),
        ("binary", {"class_weights": [1.0, 9.0]}, 1, (NUMBERS > 4).astype(np.int64)),
        ("multilabel", {}, 2, np.stack([NUMBERS > 0, NUMBERS > 4], axis=1).astype(np.float64)),
        ("classification", {"class_weights": [1.0, 2.0, 3.0]}, 3, np.arange(30) % 3),
    ],
)
def test_a_client_sums_the_gradients_of_the_task(
    rows: Any, make_terms: Make, task: str, options: dict[str, Any], outputs: int, targets: Any
) -> None:
    write(rows, targets)
    terms = terms_of(make_terms, task, task_options=options, classes=outputs)
    everything = np.arange(30)
    np.testing.assert_allclose(
        sum_of(rows, terms), expected_sum(terms, targets, everything), atol=1e-5
    )


@pytest.mark.parametrize(
    ("task", "outputs", "usual", "odd"),
    [
        ("classification", 3, np.arange(30) % 3, 3),
        ("classification", 3, np.arange(30) % 3, -1),
        ("classification", 3, np.arange(30) % 3, 0.5),
        ("classification", 3, np.arange(30) % 3, np.nan),
        ("binary", 1, np.arange(30) % 2, 2),
        ("binary", 1, np.arange(30) % 2, 0.5),
        ("regression", 1, NUMBERS, np.inf),
        ("regression", 1, np.arange(30), np.nan),
    ],
)
def test_a_target_that_does_not_fit_counts_as_zero_and_is_told_to_the_owner_only(
    rows: Any,
    make_terms: Make,
    caplog: pytest.LogCaptureFixture,
    task: str,
    outputs: int,
    usual: Any,
    odd: float,
) -> None:
    targets = np.where(np.arange(30) == 29, odd, usual)
    write(rows, targets)
    terms = terms_of(make_terms, task, classes=outputs)
    found = sum_of(rows, terms)
    np.testing.assert_allclose(found, expected_sum(terms, targets, np.arange(29)), atol=1e-5)
    assert "record 29 counts as absent" in caplog.text


@pytest.mark.parametrize(
    ("task", "changes"),
    [
        ("binary", {"classes": 2}),
        ("multilabel", {"classes": 3}),
        ("regression", {"classes": 2}),
        ("regression", {"task_options": {"loss": "absolute"}}),
        ("regression", {"task_options": {"loss": "huber", "huber_threshold": -1.0}}),
        ("binary", {"task_options": {"class_weights": [1.0] * 900}}),
        ("binary", {"task_options": {"outputs": 3}}),
        ("no-such-task", {}),
        ("os:system", {}),
        (f"{HERE}:Pinball", {}),
    ],
)
def test_a_task_that_does_not_suit_is_refused_and_nothing_is_charged(
    rows: Any, make_terms: Make, task: str, changes: dict[str, Any]
) -> None:
    participant, terms = rows.open(), terms_of(make_terms, task, **changes)
    assert refused(lambda: participant.enrol(terms)) is Refusal.TASK
    assert rows.entries() == []


def test_whether_numbers_are_classes_is_not_told_to_a_server(rows: Any, make_terms: Make) -> None:
    assert rows.open().enrol(terms_of(make_terms, "classification", classes=5)) == 30


@pytest.mark.parametrize("name", ["Centred", "Balanced", "Neighbouring", "Averaging"])
def test_an_own_loss_that_mixes_records_is_refused_although_it_is_listed(
    rows: Any, make_terms: Make, name: str
) -> None:
    rows.change(tasks=[f"{HERE}:{name}"])
    terms = terms_of(make_terms, f"{HERE}:{name}")
    assert refused(lambda: rows.open().enrol(terms)) is Refusal.MODEL
    assert rows.entries() == []


def test_an_own_task_runs_if_the_policy_lists_it(rows: Any, make_terms: Make) -> None:
    rows.change(tasks=[f"{HERE}:Pinball"])
    terms = terms_of(make_terms, f"{HERE}:Pinball", task_options={"quantile": 0.9})
    np.testing.assert_allclose(
        sum_of(rows, terms), expected_sum(terms, NUMBERS, np.arange(30)), atol=1e-5
    )
    assert refused(lambda: rows.open().enrol(terms_of(make_terms, "regression"))) is Refusal.TASK


@pytest.mark.parametrize("odd", [-4.0, 5000.0])
def test_a_record_on_which_an_own_loss_is_nan_or_fails_counts_as_zero(
    rows: Any, make_terms: Make, odd: float
) -> None:
    targets = np.where(np.arange(30) == 7, odd, np.abs(NUMBERS))
    write(rows, targets)
    rows.change(tasks=[f"{HERE}:Fragile"])
    terms = terms_of(make_terms, f"{HERE}:Fragile")
    others = np.setdiff1d(np.arange(30), 7)
    np.testing.assert_allclose(sum_of(rows, terms), expected_sum(terms, targets, others), atol=1e-5)


def test_another_task_in_between_changes_nothing(rows: Any, make_terms: Make) -> None:
    one = terms_of(make_terms, "regression")
    two = terms_of(make_terms, "regression", task_options={"loss": "huber"})
    bad = terms_of(make_terms, "regression", classes=2)
    participant = enrolled(enrolled(rows.open_with(True), one), two)
    assert refused(lambda: participant.enrol(bad)) is Refusal.TASK
    sent = vector_to_bytes(flatten_parameters(build_model(LINEAR, classes=1)).numpy())
    total = participant.gradient_sum(one, 1, sent)
    np.testing.assert_allclose(total, expected_sum(one, NUMBERS, np.arange(30)), atol=1e-5)


def test_a_model_whose_outputs_do_not_fit_the_task_is_refused(rows: Any, make_terms: Make) -> None:
    name = f"{HERE}:three_numbers"
    rows.change(models=[name])
    terms = terms_of(make_terms, "regression", model=name)
    assert refused(lambda: rows.open().enrol(terms)) is Refusal.MODEL
    assert rows.entries() == []


@pytest.mark.parametrize("value", ["NaN", "1e999", "[1.0,NaN]", "[[1]]", "{}", "null"])
def test_options_that_are_no_finite_values_are_no_terms(make_terms: Make, value: str) -> None:
    text = terms_of(make_terms, "regression", task_options={"loss": "huber"}).to_json()
    with pytest.raises(ValueError, match="task_options"):
        Terms.from_json(text.replace('"huber"', value))
