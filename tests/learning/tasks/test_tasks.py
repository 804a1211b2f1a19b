"""Losses of the built-in tasks, record by record, and what they take for targets."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from coinflower.accounting.errors import UserError
from coinflower.learning import clipped_gradient_sum, make_task
from coinflower.learning.tasks.independence import refuse_mixing_loss
from coinflower.learning.tasks.named import TASKS
from coinflower.protocol.policy import BUILT_IN_TASKS

CASES: list[tuple[str, dict[str, Any], int, Any]] = [
    ("classification", {}, 3, [0, 2, 1, 1]),
    ("classification", {"class_weights": [1, 2.5, 4]}, 3, [0, 2, 1, 1]),
    ("binary", {}, 1, [0, 1, 1, 0]),
    ("binary", {"class_weights": [0.5, 3]}, 1, [0, 1, 1, 0]),
    ("multilabel", {}, 2, [[0, 1], [1, 1], [0, 0], [1, 0]]),
    ("multilabel", {"class_weights": [2, 7]}, 2, [[0, 1], [1, 1], [0, 0], [1, 0]]),
    ("regression", {}, 2, [[0.5, -1], [2, 3], [0, 0], [9, -9]]),
    ("regression", {"loss": "huber", "huber_threshold": 0.5}, 1, [0.5, -1, 2, 30]),
]


def by_hand(name: str, options: dict[str, Any], outputs: list[float], target: Any) -> float:
    """The loss of one record, from the definition."""
    wanted = np.atleast_1d(target).tolist()
    if name == "classification":
        (right,) = wanted
        weight = options.get("class_weights", [1] * len(outputs))[right]
        return weight * (math.log(sum(map(math.exp, outputs))) - outputs[right])
    if name == "regression":
        gaps = [abs(told - true) for told, true in zip(outputs, wanted, strict=True)]
        if options.get("loss") != "huber":
            return sum(gap**2 for gap in gaps) / len(gaps)
        at = options["huber_threshold"]
        losses = [gap**2 / 2 if gap <= at else at * (gap - at / 2) for gap in gaps]
        return sum(losses) / len(losses)
    weights = options.get("class_weights")
    losses = []
    for place, (told, true) in enumerate(zip(outputs, wanted, strict=True)):
        loss = math.log1p(math.exp(-told if true else told))
        if weights is not None:
            loss *= weights[int(true)] if name == "binary" else (weights[place] if true else 1)
        losses.append(loss)
    return sum(losses) / len(losses)


@pytest.mark.parametrize(("name", "options", "outputs", "targets"), CASES)
def test_a_loss_is_that_of_its_definition(
    name: str, options: dict[str, Any], outputs: int, targets: Any
) -> None:
    task = make_task(name, options, outputs=outputs)
    told = torch.randn(4, outputs, generator=torch.Generator().manual_seed(1))
    taken = task.take(np.asarray(targets))
    assert taken.fit.all()
    found = task.losses(told, torch.from_numpy(taken.values))
    expected = [
        by_hand(name, options, row.tolist(), target)
        for row, target in zip(told, targets, strict=True)
    ]
    assert found.tolist() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(("name", "options", "outputs", "targets"), CASES)
def test_the_clipped_sum_of_a_task_is_that_of_a_loop_over_records(
    name: str, options: dict[str, Any], outputs: int, targets: Any
) -> None:
    task = make_task(name, options, outputs=outputs)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, outputs))
    inputs = torch.randn(4, 5)
    taken = torch.from_numpy(task.take(np.asarray(targets)).values)
    total = clipped_gradient_sum(model, inputs, taken, 0.1, loss=task.losses)
    expected = torch.zeros_like(total)
    for one in range(4):
        loss = task.losses(model(inputs[one : one + 1]), taken[one : one + 1]).sum()
        gradient = torch.cat(
            [part.reshape(-1) for part in torch.autograd.grad(loss, model.parameters())]
        )
        expected += gradient * min(1.0, 0.1 / float(gradient.norm()))
    assert torch.allclose(total, expected, atol=1e-6)


@pytest.mark.parametrize(("name", "options", "outputs", "targets"), CASES)
def test_no_built_in_loss_mixes_records(
    name: str, options: dict[str, Any], outputs: int, targets: Any
) -> None:
    task = make_task(name, options, outputs=outputs)
    refuse_mixing_loss(task, torch.from_numpy(task.take(np.asarray(targets)).values))


@pytest.mark.parametrize(
    ("name", "outputs", "targets", "fit", "why"),
    [
        ("classification", 3, [0, 3, -1, 2], [0, 3], "target 3 is not one of the classes 0 to 2"),
        ("classification", 3, [0.0, 1.5, np.nan, 2.0], [0, 3], "target 1.5 is not one of"),
        ("classification", 3, [[0], [5], [1], [2]], [0, 2, 3], "target 5 is not one of"),
        ("binary", 1, [0, 2, 1, -1], [0, 2], "target 2 is neither 0 nor 1"),
        ("binary", 1, [0.0, np.nan, 1.0, np.inf], [0, 2], "target NaN is neither 0 nor 1"),
        ("multilabel", 2, [[0, 1], [1, 0.5]], [0], "target 0.5 in column 1 is neither 0 nor 1"),
        ("regression", 1, [1, np.inf, -3.5, np.nan], [0, 2], "target inf is not a finite number"),
        ("regression", 2, [[1, 2], [3, np.nan]], [0], "target NaN in column 1 is not a finite"),
        ("regression", 1, [1.0, 1e300], [0], "target inf is not a finite number"),
    ],
)
def test_targets_that_do_not_fit_are_left_out_and_named(
    name: str, outputs: int, targets: Any, fit: list[int], why: str
) -> None:
    with np.errstate(over="ignore"):
        taken = make_task(name, {}, outputs=outputs).take(np.asarray(targets))
    assert np.flatnonzero(taken.fit).tolist() == fit
    assert why in taken.fault.why(int(np.argmax(taken.fault.rows)))
    assert np.isfinite(taken.values).all()


@pytest.mark.parametrize("name", ["classification", "binary", "regression"])
def test_classes_and_whole_numbers_are_taken_alike(name: str) -> None:
    task = make_task(name, {}, outputs=1 if name != "classification" else 2)
    ints, floats = (task.take(np.array([0, 1, 1, 0], kind)) for kind in (np.int64, np.float32))
    assert ints.values.dtype == floats.values.dtype
    assert np.array_equal(ints.values, floats.values)


@pytest.mark.parametrize(
    ("name", "outputs", "shape"),
    [("classification", 3, (4, 3)), ("binary", 1, (4, 2)), ("multilabel", 3, (4, 2))],
)
def test_targets_of_another_shape_are_refused(
    name: str, outputs: int, shape: tuple[int, ...]
) -> None:
    with pytest.raises(UserError, match=f"each record has {shape[1]} targets, but the task takes"):
        make_task(name, {}, outputs=outputs).take(np.zeros(shape))


@pytest.mark.parametrize(
    ("name", "options", "outputs", "sentence"),
    [
        ("regresion", {}, 1, "unknown .did you mean regression"),
        ("own.module", {}, 1, "is unknown: choose one of classification, binary"),
        (":Task", {}, 1, "is unknown"),
        ("binary", {}, 2, "classes = 2 must be 1 in task 'binary'"),
        ("classification", {}, 1, "at least 2"),
        ("classification", {"class_weights": [1.0, 2.0]}, 3, "has 2 numbers; there must be 3"),
        ("classification", {"class_weights": [1.0] * 5000}, 3, "has 5000 numbers"),
        ("classification", {"class_weights": [1.0, -2.0]}, 2, "class_weights.1 = -2.0"),
        ("classification", {"class_weights": [1.0, math.nan]}, 2, "class_weights.1 = nan"),
        ("classification", {"class_weights": [1.0, math.inf]}, 2, "class_weights.1 = inf"),
        ("classification", {"class_weights": "many"}, 2, "class_weights"),
        ("classification", {"class_weights": 1.0}, 2, "class_weights"),
        ("binary", {"class_weights": [1.0]}, 1, "has 1 numbers; there must be 2"),
        ("regression", {"loss": "absolute"}, 1, "loss = 'absolute'"),
        ("regression", {"loss": "huber", "huber_threshold": -1.0}, 1, "above 0"),
        ("regression", {"loss": "huber", "huber_threshold": 0.0}, 1, "above 0"),
        ("regression", {"loss": "huber", "huber_threshold": math.nan}, 1, "huber_threshold = nan"),
        ("regression", {"loss": "huber", "huber_threshold": True}, 1, "huber_threshold = True"),
        ("regression", {"huber_threshold": 1.0}, 1, "goes with loss = 'huber' only"),
        ("regression", {"class_weights": [1.0]}, 1, "has no option 'class_weights'; it has loss"),
        ("regression", {"outputs": 7}, 1, "has no option 'outputs'"),
    ],
)
def test_a_task_that_makes_no_sense_is_refused_in_a_sentence(
    name: str, options: dict[str, Any], outputs: int, sentence: str
) -> None:
    with pytest.raises(UserError, match=sentence):
        make_task(name, options, outputs=outputs)


def test_a_policy_allows_the_tasks_that_are_built_in() -> None:
    assert set(TASKS) == BUILT_IN_TASKS


words = st.text(max_size=5)
junk = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    words,
    st.lists(st.integers()),
    st.lists(st.floats()),
    st.lists(words),
    st.dictionaries(words, words),
)
names = st.sampled_from(["loss", "huber_threshold", "class_weights", "outputs", "other"])


@given(st.sampled_from(sorted(TASKS)), st.dictionaries(names, junk, max_size=3), st.integers(-2, 9))
def test_no_option_from_the_wire_does_more_than_be_refused(
    name: str, options: dict[str, Any], outputs: int
) -> None:
    try:
        task = make_task(name, options, outputs=outputs)
    except UserError:
        return
    told = torch.zeros(2, outputs)
    zeros = np.zeros(2) if name in ("classification", "binary") else np.zeros((2, outputs))
    assert task.losses(told, torch.from_numpy(task.take(zeros).values)).shape == (2,)
