"""Which model suits which data, and what is said if they do not go together."""

import numpy as np
import pytest
from torch import nn

from coinflower.accounting.errors import UserError
from coinflower.learning import Dataset, Records, make_task, model_for, usual_model_for

TASK = make_task("classification", {}, outputs=2)


def data_of(inputs: np.ndarray) -> Dataset:
    targets = np.arange(len(inputs), dtype=np.int64) % 2
    records = Records(inputs=inputs, targets=targets)
    return Dataset(name="rows", train=records, test_part=records, class_count=2)


@pytest.mark.parametrize(
    ("shape", "kind", "model"),
    [
        ((12,), np.float32, "mlp"),
        ((3, 4), np.float32, "mlp"),
        ((1, 8, 8), np.uint8, "digits"),
        ((1, 28, 28), np.uint8, "tanh-cnn"),
        ((3, 32, 32), np.uint8, "resnet18-gn"),
        ((2, 9, 9), np.float32, "resnet18-gn"),
        ((20,), np.int64, "gru"),
        ((20,), np.uint8, "mlp"),
    ],
)
def test_the_data_chooses_a_model_that_takes_it(shape, kind, model):
    data = data_of(np.zeros((2, *shape), kind))
    assert usual_model_for(data.train) == model
    model_for(model, data, TASK)


def test_public_words_beyond_the_vocabulary_are_told_before_anybody_waits():
    data = data_of(np.array([[1, 2, 19], [3, 4, 5]]))
    with pytest.raises(UserError, match=r"words up to 19.*at least 20"):
        model_for("gru", data, TASK, options={"words": 19})
    model_for("gru", data, TASK, options={"words": 20})


def test_a_model_of_words_refuses_other_numbers():
    with pytest.raises(UserError, match="takes integers"):
        model_for("gru", data_of(np.zeros((2, 5), np.float32)), TASK)


def test_a_model_that_answers_with_other_numbers_than_the_task_needs_is_told():
    regression = make_task("regression", {}, outputs=1)
    name = "tests.support.participants:five_classes"
    with pytest.raises(
        UserError, match=r"answers a record with shape \(5,\), but the task needs 1 "
    ):
        model_for(name, data_of(np.zeros((2, 1, 8, 8), np.float32)), regression)


def few_words(classes: int) -> nn.Module:
    return nn.Sequential(nn.Embedding(20, 3), nn.Flatten(), nn.Linear(15, classes))


def test_an_own_model_that_public_rows_are_too_much_for_is_refused_before_anybody_waits():
    name = "tests.learning.test_fit:few_words"
    words = np.arange(10).reshape(2, 5)
    model_for(name, data_of(words + 10), TASK)
    with pytest.raises(UserError, match=f"model '{name}' fails: IndexError"):
        model_for(name, data_of(words + 11), TASK)


def test_images_that_would_be_indices_are_named_as_such():
    scans = data_of(np.zeros((2, 1, 8, 8), np.uint16))
    with pytest.raises(UserError, match=r"8 x 8 images, which are indices because they are uint16"):
        model_for("digits", scans, TASK)


def test_truth_values_are_numbers():
    model_for("mlp", data_of(np.ones((2, 4), bool)), TASK)
