"""Masks hide everything but the sum, and come off it without a trace."""

from __future__ import annotations

import os

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from coinflower.masking.masks import (
    SEED_BYTES,
    add_masks,
    lifted,
    numbers_from_bytes,
    sum_of_masks,
    wrapped,
    zeros,
)

BITS = [32, 64]


def seeds(count: int) -> list[bytes]:
    return [os.urandom(SEED_BYTES) for _ in range(count)]


@pytest.mark.parametrize("bits", BITS)
@given(data=st.data(), clients=st.integers(1, 6), length=st.integers(1, 40))
def test_masks_come_off_the_sum(bits: int, data: st.DataObject, clients: int, length: int) -> None:
    most = 2 ** (bits - 1) // clients - 1
    rows = st.lists(st.integers(-most, most), min_size=length, max_size=length)
    counts = [np.array(data.draw(rows), np.int64) for _ in range(clients)]
    own = seeds(clients)
    total = zeros(length, bits)
    for one, seed in zip(counts, own, strict=True):
        hidden = wrapped(one, bits)
        add_masks(hidden, [seed])
        total += hidden
    total -= sum_of_masks(own, length, bits)
    assert lifted(total).tolist() == sum(counts).tolist()  # type: ignore[union-attr]


@pytest.mark.parametrize("bits", BITS)
def test_a_mask_is_the_keystream_of_aes_in_counter_mode(bits: int) -> None:
    # NIST's AES known answer: key 0, block 0, 256 bits ("GFSbox" and "KeySbox", CAVP).
    first = bytes.fromhex("dc95c078a2408989ad48a21492842087")
    assert sum_of_masks([bytes(SEED_BYTES)], 128 // bits, bits).tobytes() == first


@pytest.mark.parametrize("bits", BITS)
def test_masked_numbers_look_uniformly_random_whatever_they_hide(bits: int) -> None:
    length = 200_000
    for value in (0, -1, 2**20):
        hidden = wrapped(np.full(length, value, np.int64), bits)
        add_masks(hidden, seeds(1))
        octets = np.bincount(np.frombuffer(hidden.tobytes(), np.uint8), minlength=256)
        assert stats.chisquare(octets).pvalue > 1e-7
    bare = np.bincount(np.frombuffer(np.full(length, 5).tobytes(), np.uint8), minlength=256)
    assert stats.chisquare(bare).pvalue < 1e-7


def test_several_seeds_are_one_mask_that_each_of_them_hides() -> None:
    own = seeds(3)
    parts = [sum_of_masks([seed], 50, 32) for seed in own]
    assert np.array_equal(sum_of_masks(own, 50, 32), sum(parts))
    assert len({part.tobytes() for part in parts}) == 3


@pytest.mark.parametrize(
    ("content", "match"),
    [(None, "as NoneType"), ("text", "as str"), (b"", "of 0 bytes"), (bytes(44), "instead of 40")],
)
def test_what_is_not_numbers_of_the_ring_is_refused(content: object, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        numbers_from_bytes(content, 10, 32)
    assert numbers_from_bytes(bytes(40), 10, 32).tolist() == [0] * 10
    assert numbers_from_bytes(bytes(80), 10, 64).tolist() == [0] * 10
