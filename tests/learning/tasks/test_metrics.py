"""Metrics: as their definitions say, and None where the test data does not define one."""

from __future__ import annotations

import json
import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import f1_score

from coinflower.learning.tasks.metrics import (
    binary_metrics,
    class_metrics,
    label_metrics,
    number_metrics,
    sentence,
)

LOGITS = np.array([-3.0, -1.0, 0.5, 2.0, -0.5])
LABELS = np.array([0.0, 0.0, 1.0, 1.0, 1.0])


def test_accuracy_and_macro_f1_of_classes() -> None:
    classes = np.array([0, 0, 0, 1, 2])
    told = np.eye(3)[[0, 0, 1, 1, 0]]
    found = class_metrics(told, classes)
    assert found["accuracy"] == 0.6
    assert found["macro_f1"] == pytest.approx((2 / 3 + 2 / 3 + 0) / 3)


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=12))
def test_macro_f1_is_scikit_learns(pairs: list[tuple[int, int]]) -> None:
    told, classes = np.array(pairs).T
    wanted = f1_score(classes, told, average="macro", zero_division=0.0)
    assert class_metrics(np.eye(5)[told], classes)["macro_f1"] == pytest.approx(wanted)


def test_auc_is_the_share_of_pairs_in_the_right_order() -> None:
    pairs = [(no, yes) for no in LOGITS[LABELS == 0] for yes in LOGITS[LABELS == 1]]
    right = sum(no < yes for no, yes in pairs) / len(pairs)
    assert binary_metrics(LOGITS, LABELS)["auc"] == pytest.approx(right)


def test_accuracy_of_two_classes_stands_beside_the_share_of_positives() -> None:
    found = binary_metrics(np.full(100, -5.0), (np.arange(100) == 7).astype(float))
    assert found["accuracy"] == 0.99
    assert found["positives"] == 0.01
    assert found["auc"] == 0.5


def test_the_calibration_error_is_the_gap_between_stated_and_true_shares() -> None:
    stated = np.repeat([0.25, 0.85], 100)
    logits = np.log(stated / (1 - stated))
    labels = np.concatenate([np.arange(100) < 25, np.arange(100) < 55]).astype(float)
    error = binary_metrics(logits, labels)["calibration_error"]
    assert error == pytest.approx(0.5 * 0.0 + 0.5 * 0.3)


def test_metrics_of_labels_are_means_over_those_that_are_defined() -> None:
    labels = np.stack([LABELS, np.zeros(5)], axis=1)
    found = label_metrics(np.stack([LOGITS, LOGITS], axis=1), labels)
    alone = binary_metrics(LOGITS, LABELS)
    assert found["auc"] == alone["auc"]
    assert found["average_precision"] == alone["average_precision"]
    assert found["macro_f1"] == pytest.approx((0.8 + 0.0) / 2)


def test_errors_of_numbers_have_their_unit() -> None:
    wanted = np.array([[0.0], [2.0], [4.0]])
    found = number_metrics(wanted + np.array([[1.0], [-1.0], [2.0]]), wanted)
    assert found["rmse"] == pytest.approx(2**0.5)
    assert found["mae"] == pytest.approx(4 / 3)
    assert found["r2"] == pytest.approx(1 - 6 / 8)


@pytest.mark.parametrize("label", [0.0, 1.0])
def test_one_class_only_leaves_metrics_undefined_without_a_warning(label: float) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = binary_metrics(LOGITS, np.full(5, label))
        labels = label_metrics(LOGITS[:, None], np.full((5, 1), label))
        assert class_metrics(np.eye(3), np.zeros(3, np.int64))["macro_f1"] is not None
    assert found["auc"] is None
    assert labels["auc"] is None
    assert "AUC not defined" in sentence(found)


def test_targets_that_do_not_vary_have_no_r2() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert number_metrics(np.array([[1.0], [2.0]]), np.ones((2, 1)))["r2"] is None
        assert number_metrics(np.ones((1, 2)), np.ones((1, 2)))["r2"] is None


odd = st.floats(width=32)


@given(st.lists(st.tuples(odd, st.integers(0, 1)), min_size=1, max_size=8))
def test_no_output_of_a_model_makes_a_metric_fail_or_be_nan(
    rows: list[tuple[float, int]],
) -> None:
    told = np.array([row[0] for row in rows], np.float32)
    wanted = np.array([row[1] for row in rows], np.float32)
    found = [
        binary_metrics(told, wanted),
        label_metrics(told[:, None], wanted[:, None]),
        number_metrics(told[:, None], wanted[:, None]),
        class_metrics(np.stack([-told, told], axis=1), wanted.astype(np.int64)),
    ]
    json.dumps(found, allow_nan=False)
