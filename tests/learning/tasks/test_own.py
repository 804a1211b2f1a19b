"""Tasks of a user's own: what mixes records is refused, and what fails says where."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from coinflower.accounting.errors import UserError
from coinflower.learning import (
    Dataset,
    Records,
    clipped_gradient_sum,
    make_task,
    measure,
    task_for,
    usual_task,
)
from coinflower.learning.tasks.independence import refuse_mixing_loss
from coinflower.learning.tasks.own import OwnTask
from tests.support import own_tasks
from tests.support.own_tasks import HERE


def own(name: str, **options: Any) -> OwnTask:
    return OwnTask(f"{HERE}:{name}", options, outputs=1)


@pytest.mark.parametrize("name", ["Pinball", "Fragile"])
def test_a_loss_of_each_record_by_itself_is_accepted(name: str) -> None:
    refuse_mixing_loss(own(name), torch.zeros(1, 1))


def test_a_task_may_take_classes() -> None:
    task = own("Ordinal")
    taken = task.take(np.array([0.0, 3.0, 1.5]))
    assert taken.fit.tolist() == [True, True, False]
    refuse_mixing_loss(task, torch.from_numpy(taken.values[:1]))


@pytest.mark.parametrize("name", ["Centred", "Balanced", "Neighbouring", "Remembering"])
def test_a_loss_that_mixes_records_is_refused(name: str) -> None:
    with pytest.raises(UserError, match="changes with the other records of a batch"):
        refuse_mixing_loss(own(name), torch.zeros(1, 1))


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("Averaging", "the loss has shape .. for 6 records; it must be one number per record"),
        ("Detached", "does not depend on the model's outputs"),
        ("Listing", "returned list as loss; it must be a tensor"),
    ],
)
def test_a_loss_that_teaches_nothing_is_refused(name: str, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        refuse_mixing_loss(own(name), torch.zeros(1, 1))


@pytest.mark.parametrize(
    ("name", "options", "sentence"),
    [
        (f"{HERE}:Lossless", {}, "has no method loss"),
        (f"{HERE}:Nothing", {}, "cannot be loaded"),
        ("no.such.module:Task", {}, "cannot be loaded"),
        (f"{HERE}:HERE", {}, "is not a function"),
        (f"{HERE}:Pinball", {"quantil": 0.5}, "fails: TypeError: .*unexpected keyword"),
    ],
)
def test_a_task_that_cannot_be_made_says_why(
    name: str, options: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(UserError, match=sentence):
        make_task(name, options, outputs=1)


def test_terms_with_other_outputs_than_the_class_states_are_refused() -> None:
    with pytest.raises(UserError, match="has 1 outputs, but the terms have 4"):
        make_task(f"{HERE}:Pinball", {}, outputs=4)


def test_a_record_whose_loss_is_nan_contributes_exactly_zero() -> None:
    task = own("Fragile")
    model, inputs = nn.Linear(2, 1), torch.randn(4, 2)
    targets = torch.tensor([[1.0], [-4.0], [9.0], [16.0]])
    total = clipped_gradient_sum(model, inputs, targets, 1.0, loss=task.losses)
    sound = torch.tensor([0, 2, 3])
    expected = clipped_gradient_sum(model, inputs[sound], targets[sound], 1.0, loss=task.losses)
    assert torch.equal(total, expected)
    alone = clipped_gradient_sum(model, inputs[1:2], targets[1:2], 1.0, loss=task.losses)
    assert not alone.any()


def records(targets: Any) -> Records:
    wanted = np.asarray(targets, np.float32)
    return Records(inputs=np.ones((len(wanted), 2), np.float32), targets=wanted)


def test_the_headline_comes_first_and_undefined_metrics_are_none() -> None:
    model = own_tasks.one_number(1)
    assert list(measure(model, records([1, 2, 3]), own("Pinball"))) == ["missed", "below"]
    found = measure(model, records([1, 2, 3]), own("Fragile"))
    assert found == {"missed": None, "below": None}


def test_metrics_that_fail_name_the_line() -> None:
    with pytest.raises(UserError, match=r"fails in .*own_tasks.py, line \d+: LookupError"):
        measure(own_tasks.one_number(1), records([1, 2]), own("Failing"))


def test_a_task_for_data_has_as_many_outputs_as_the_class_states() -> None:
    data = Dataset(name="six", train=records(np.zeros((6, 3))))
    assert task_for(data, f"{HERE}:Pinball", {}).outputs == 1
    assert task_for(data, "regression", {}).outputs == 3


def test_targets_that_are_for_another_task_are_named_with_their_record() -> None:
    data = Dataset(name="six", train=records([0.5, 1.5, 1, 0.5, 0.5, 0]))
    with pytest.raises(
        UserError, match=r"4 of 6 records cannot be used; record 0: its target 0\.5"
    ):
        task_for(data, "binary", {})
    with pytest.raises(UserError, match=r"4 of 6 .*its target 0\.5 is not a class: a whole number"):
        task_for(data, "classification", {})


def test_a_few_targets_that_are_no_classes_do_not_keep_the_others_from_being_classified() -> None:
    data = Dataset(name="six", train=records([0, 4, -1, 2, 1, 0]))
    task = task_for(data, "classification", {})
    assert task.outputs == 5
    assert task.take(data.train.targets).fit.tolist() == [True, True, False, True, True, True]


def test_a_task_for_two_classes_is_told_of_a_third_in_time() -> None:
    targets = np.array([0, 1, 0, 1, 0, 2])
    inputs = np.ones((6, 2), np.float32)
    data = Dataset(name="six", train=Records(inputs=inputs, targets=targets), class_count=3)
    with pytest.raises(UserError, match="six has 3 classes, but task 'binary' takes two"):
        task_for(data, "binary", {})


@pytest.mark.parametrize("name", ["classification", "binary", "multilabel"])
def test_a_number_of_a_schema_is_no_class(name: str) -> None:
    scaled = Records(
        inputs=np.ones((2, 2), np.float32),
        targets=np.array([-1, 1], np.float32),
        target_scale=(0.5,),
    )
    with pytest.raises(UserError, match="let its kind be category"):
        task_for(Dataset(name="two", train=scaled), name, {})


@pytest.mark.parametrize(
    ("kept", "task"),
    [
        ({"class_count": 2, "targets": np.array([0, 1])}, "classification"),
        ({"targets": np.array([0.5, 1], np.float32)}, "regression"),
        ({"targets": np.eye(2, dtype=np.float32)}, "regression"),
        ({"targets": np.eye(2, dtype=np.float32), "schema": "0" * 64}, "multilabel"),
        (
            {"targets": np.eye(2, dtype=np.float32), "schema": "0" * 64, "target_scale": (1.0, 2)},
            "regression",
        ),
    ],
)
def test_the_targets_choose_a_task_if_nobody_does(kept: dict[str, Any], task: str) -> None:
    classes = kept.pop("class_count", None)
    train = Records(inputs=np.ones((2, 2), np.float32), **kept)
    assert usual_task(Dataset(name="two", train=train, class_count=classes)) == task
