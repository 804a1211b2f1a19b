"""What a federation of known clients has in its terms in mode masked."""

from __future__ import annotations

import math
from typing import Any

import pytest

from coinflower.protocol.masked_terms import masked_fields


def fields_of(*sizes: int, **changes: Any) -> dict[str, Any]:
    usual = {"q": 1.0, "cap": math.inf, "clip_norm": 1.0, "noise_multiplier": 1.0}
    return masked_fields(sizes=sizes, notaries=["a" * 64], **{**usual, **changes})


def test_all_but_a_fifth_must_answer_and_a_tenth_may_collude() -> None:
    fields = fields_of(*[10] * 20)
    assert (fields["threshold"], fields["colluders"], fields["ring_bits"]) == (16, 2, 32)
    assert fields["notaries"] == ("a" * 64,)
    few = fields_of(10, 10)
    assert (few["threshold"], few["colluders"]) == (2, 1)


def test_the_ring_is_for_the_sum_of_all_however_large_one_is() -> None:
    assert fields_of(10, 10, 1_000_000_000)["ring_bits"] == 64
    assert fields_of(10, 10, 1_000_000_000, cap=10.0)["ring_bits"] == 32
    assert fields_of(*[5_000_000] * 3)["ring_bits"] == 32
    assert fields_of(*[5_000_000] * 4)["ring_bits"] == 64


def test_a_federation_of_one_is_refused() -> None:
    with pytest.raises(ValueError, match="clients = 1 must be at least 2"):
        fields_of(10)
