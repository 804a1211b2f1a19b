"""Vectors on the wire."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from coinflower.protocol.messages import (
    HALF_WEIGHTS,
    WEIGHTS,
    vector_from_bytes,
    vector_to_bytes,
    weights_in,
    weights_to_field,
)

FINITE = st.floats(allow_nan=False, allow_infinity=False, width=32)


@given(arrays.arrays(np.float32, st.integers(0, 50), elements=FINITE))
def test_a_vector_survives_the_wire_bit_by_bit(vector: np.ndarray) -> None:
    back = vector_from_bytes(vector_to_bytes(vector), len(vector))
    assert back.dtype == np.float32
    assert back.tobytes() == vector.tobytes()


def test_every_vector_of_a_length_travels_in_as_many_bytes() -> None:
    assert len(vector_to_bytes(np.zeros(7, np.float32))) == 28
    assert len(vector_to_bytes(np.full(7, 1e-40, np.float32))) == 28


def test_what_was_received_may_be_written_to() -> None:
    vector = vector_from_bytes(vector_to_bytes(np.zeros(3, np.float32)), 3)
    vector += 1
    assert vector.tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (None, "came as NoneType"),
        ([1.0, 2.0], "came as list"),
        ("abcdefgh", "came as str"),
        (b"", "0 bytes came instead of 8"),
        (bytes(9), "9 bytes came instead of 8"),
        (bytes(16), "16 bytes came instead of 8"),
        (np.array([1, np.nan], "<f4").tobytes(), "not finite"),
        (np.array([-np.inf, 1], "<f4").tobytes(), "not finite"),
    ],
)
def test_what_is_no_vector_is_named(content: object, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        vector_from_bytes(content, 2)


@given(st.binary(max_size=64), st.integers(0, 16))
def test_any_bytes_are_a_finite_vector_or_a_value_error(content: bytes, length: int) -> None:
    try:
        vector = vector_from_bytes(content, length)
    except ValueError:
        return
    assert vector.shape == (length,)
    assert np.isfinite(vector).all()


HALVES = st.floats(-60000, 60000, width=32)


@given(arrays.arrays(np.float32, st.integers(0, 50), elements=HALVES))
def test_weights_in_half_precision_are_rounded_and_half_as_long(weights: np.ndarray) -> None:
    name, content = weights_to_field(weights, "half")
    assert name == HALF_WEIGHTS
    assert len(content) == 2 * len(weights)
    came = vector_from_bytes(weights_in({name: content}), len(weights))
    assert came.tolist() == weights.astype(np.float16).astype(np.float32).tolist()


def test_weights_in_single_precision_come_as_they_went() -> None:
    weights = np.linspace(-1, 1, 9, dtype=np.float32)
    name, content = weights_to_field(weights, "single")
    assert name == WEIGHTS
    assert weights_in({name: content}) is content


@pytest.mark.parametrize("weight", [7e4, -7e4, np.inf])
def test_a_weight_that_half_precision_cannot_hold_is_named(weight: float) -> None:
    with pytest.raises(ValueError, match='download_precision = "single"'):
        weights_to_field(np.array([0.0, weight], np.float32), "half")


@pytest.mark.parametrize(
    "question",
    [
        {},
        {WEIGHTS: bytes(8), HALF_WEIGHTS: bytes(4)},
        {HALF_WEIGHTS: bytes(3)},
        {HALF_WEIGHTS: [1.0]},
        {HALF_WEIGHTS: "ab"},
    ],
)
def test_a_question_that_has_no_model_or_two_is_an_error(question: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="weights"):
        weights_in(question)


@pytest.mark.parametrize("halves", [[np.nan, 0.0], [np.inf, 0.0], [0.0], [0.0] * 3])
def test_halves_are_checked_as_other_weights_are(halves: list[float]) -> None:
    content = np.array(halves, "<f2").tobytes()
    with pytest.raises(ValueError, match="vector"):
        vector_from_bytes(weights_in({HALF_WEIGHTS: content}), 2)
