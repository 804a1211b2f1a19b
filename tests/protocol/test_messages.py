"""Vectors on the wire."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from coinflower.protocol.messages import vector_from_bytes, vector_to_bytes

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
