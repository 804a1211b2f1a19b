"""What a client makes of a model in half precision: it computes on what it got."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from coinflower.protocol import messages
from coinflower.protocol.modes import Mode
from tests.support.participants import LENGTH, answer_of, call, exact_sum, fails, question

WEIGHTS = np.linspace(-1, 1, LENGTH, dtype=np.float32) / 3
HALVES = WEIGHTS.astype("<f2")


def test_the_sum_is_that_of_the_rounded_model(owner: Any, make_terms: Any) -> None:
    terms = make_terms(Mode.LOCAL_ONLY, q=1.0)
    assert answer_of(call(owner, "query.enrol", question(terms)))["enrolled"]
    ask = question(terms, **{"round": 1, messages.HALF_WEIGHTS: HALVES.tobytes()})
    answer = answer_of(call(owner, "train.gradient", ask))
    total = messages.vector_from_bytes(answer[messages.SUM], LENGTH)
    rounded = HALVES.astype(np.float32).tobytes()
    np.testing.assert_allclose(total, exact_sum(owner, rounded), atol=1e-5)
    # It is told apart from the sum of the model that was not rounded.
    assert np.abs(exact_sum(owner, rounded) - exact_sum(owner, WEIGHTS.tobytes())).max() > 1e-4


@pytest.mark.parametrize(
    "fields",
    [
        {messages.HALF_WEIGHTS: HALVES.tobytes(), messages.WEIGHTS: WEIGHTS.tobytes()},
        {messages.WEIGHTS: HALVES.tobytes()},
        {messages.HALF_WEIGHTS: WEIGHTS.tobytes()},
        {messages.HALF_WEIGHTS: HALVES.tobytes()[:-1]},
        {messages.HALF_WEIGHTS: np.full(LENGTH, np.nan, "<f2").tobytes()},
        {"quarter-weights": bytes(LENGTH)},
    ],
    ids=["both", "halves as singles", "singles as halves", "odd", "nan", "unknown"],
)
def test_a_model_that_is_not_what_it_says_is_not_answered_and_not_charged(
    owner: Any, make_terms: Any, fields: dict[str, bytes]
) -> None:
    terms = make_terms(Mode.LOCAL_ONLY)
    assert answer_of(call(owner, "query.enrol", question(terms)))["enrolled"]
    before = owner.entries()
    fails(owner, "train.gradient", question(terms, **{"round": 1, **fields}))
    assert owner.entries() == before
