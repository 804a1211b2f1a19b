"""What a client refuses depends on its policy and on the shape of its data, never on a value."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from coinflower.client.gradient_sums import GradientSums
from coinflower.client.model import ModelRules
from coinflower.learning import Records, SeededRandom
from coinflower.protocol.policy import RefusedError
from coinflower.protocol.unit import Unit
from tests.support.builders import make_terms

_SHAPE = (9, 4)
_INPUTS = {
    "usual": np.full(_SHAPE, 0.5, np.float32),
    "zeros": np.zeros(_SHAPE, np.float32),
    "one record that is no number": np.where(np.arange(36).reshape(_SHAPE) == 17, np.nan, 1),
    "huge": np.full(_SHAPE, 3e38, np.float32),
}
_TARGETS: dict[str, Any] = {
    "two classes": np.arange(9) % 2,
    "one class": np.zeros(9, np.int64),
    "a rare class": np.where(np.arange(9) == 4, 8, 0),
    "beyond any class": np.where(np.arange(9) == 4, 2**62, 0),
    "numbers": np.linspace(-1, 1, 9, dtype=np.float32),
    "not a number": np.where(np.arange(9) == 4, np.nan, 1).astype(np.float32),
}
_ASKED: list[dict[str, Any]] = [
    {"task": task, "classes": classes, "model": model, "row_shape": shape, **more}
    for task, classes in (("classification", 2), ("binary", 1), ("regression", 1), ("binary", 2))
    for model, shape in (("linear", (4,)), ("mlp", (5,)))
    for more in ({}, {"task_options": {"class_weights": [1.0, 2.0]}}, {"trained_parts": ["no"]})
]


def _said(records: Records, asked: dict[str, Any], unit: Unit) -> str:
    sums = GradientSums(records, SeededRandom(0), ModelRules(most_parameters=10**6), unit)
    try:
        return str(len(list(sums.model_of(make_terms(**asked)).parameters())))
    except RefusedError as refused:
        return refused.refusal.name
    except ValueError as error:
        return str(error)


@pytest.mark.parametrize("unit", Unit)
def test_refusals_are_alike_for_data_of_one_shape(unit: Unit) -> None:
    persons = itertools.cycle((np.arange(9), np.zeros(9, np.int64)))
    inputs = itertools.cycle(_INPUTS.values())
    different = [
        Records(inputs=next(inputs).astype(np.float32), targets=targets, persons=next(persons))
        for targets in _TARGETS.values()
    ]
    answers = [{_said(one, asked, unit) for one in different} for asked in _ASKED]
    assert all(len(said) == 1 for said in answers), answers
    assert len(set.union(*answers)) > 2  # some are refused, and some are not
