"""Whole numbers modulo 2^b, and the masks that hide them.

A mask is the keystream of AES-256 in counter mode under a seed of 32 random bytes, read as numbers
of b bits. Added modulo 2^b it makes any numbers look uniformly random to whoever lacks the seed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

SEED_BYTES = 32
_BLOCK_BYTES = 16

Numbers = npt.NDArray[Any]
"""Of 32 or 64 bits, without a sign."""
Counts = npt.NDArray[np.int64]

_KINDS = {32: "<u4", 64: "<u8"}


def add_masks(numbers: Numbers, seeds: Iterable[bytes]) -> None:
    """Add the masks of all seeds, modulo 2^b, in place.

    No seed may ever be used for a second vector: the difference of both would show.
    """
    zeros = bytes(numbers.nbytes)
    keystream = bytearray(numbers.nbytes + _BLOCK_BYTES - 1)  # what the cipher wants for a buffer
    mask = np.frombuffer(keystream, numbers.dtype, numbers.size)
    for seed in seeds:
        cipher = Cipher(algorithms.AES256(seed), modes.CTR(bytes(_BLOCK_BYTES)))
        cipher.encryptor().update_into(zeros, keystream)
        numbers += mask


def sum_of_masks(seeds: Iterable[bytes], length: int, bits: int) -> Numbers:
    """Return the sum of the masks of all seeds: what hides the sum of what they hide."""
    total = zeros(length, bits)
    add_masks(total, seeds)
    return total


def zeros(length: int, bits: int) -> Numbers:
    """Return a sum of nothing."""
    return np.zeros(length, _KINDS[bits])


def wrapped(counts: Counts, bits: int) -> Numbers:
    """Return whole numbers modulo 2^b."""
    return counts.astype(_KINDS[bits])


def lifted(numbers: Numbers) -> Counts:
    """Return the whole numbers, of either sign and below 2^(b−1), that were wrapped."""
    return numbers.view(f"<i{numbers.itemsize}").astype(np.int64)


def numbers_from_bytes(content: object, length: int, bits: int) -> Numbers:
    """Return the numbers that were sent.

    Raises:
        ValueError: Not bytes, or another length.
    """
    if not isinstance(content, bytes | bytearray | memoryview):
        raise ValueError(f"masked numbers came as {type(content).__name__}, not as bytes")
    wanted = bits // 8 * length
    if len(content) != wanted:
        raise ValueError(f"masked numbers of {len(content)} bytes came instead of {wanted}")
    return np.frombuffer(content, _KINDS[bits])
