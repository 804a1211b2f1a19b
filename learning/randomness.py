"""The randomness that privacy depends on, and a seeded substitute for simulations and tests."""

import math
import os
from collections.abc import Callable
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from coinflower.accounting.coin import BITS, CoinSource, SecureCoin, flip, threshold
from coinflower.accounting.errors import UserError

_FIRST_BITS = 16
_REST_BITS = BITS - _FIRST_BITS
_CELL = 2.0**-53  # between two values of a uniform draw
_COARSE = 2.0**-20  # below this, 53 bits leave too few


class NoiseSource(Protocol):
    """Gaussian noise; predictable draws void every guarantee."""

    def normal(self, size: int, std: float) -> NDArray[np.float64]:
        """Return independent draws of N(0, std²); exact zeros for std = 0."""


class Randomness(CoinSource, NoiseSource, Protocol):
    """Coins, Poisson samples and Gaussian noise."""

    def sample_indices(self, n: int, q: float) -> NDArray[np.int64]:
        """Return each of 0, ..., n - 1 independently with probability q, ascending."""


class SecureRandom(SecureCoin):
    """Randomness for real use: unpredictable, and never the same in two processes.

    Coins and samples come straight from the operating system, noise from AES in counter mode under
    a key of 128 bits from it. Each draw of noise has its own key, which is overwritten and
    dropped afterwards: the process remembers nothing that would reveal earlier noise, and a fork or
    a copy has nothing to share.
    """

    def sample_indices(self, n: int, q: float) -> NDArray[np.int64]:
        """Return each of 0, ..., n - 1 independently with probability q (exact to 2^-64)."""
        return _sample_indices(os.urandom, n, q)

    def normal(self, size: int, std: float) -> NDArray[np.float64]:
        """Return independent draws of N(0, std²)."""
        from randomgen import AESCounter

        bits = AESCounter(key=int.from_bytes(os.urandom(16), "little"))
        try:
            return _normal(np.random.Generator(bits), size, std)
        finally:
            bits.seed(key=0)


class SeededRandom:
    """Repeatable randomness for simulations and tests; gives no privacy.

    Args:
        seed: Equal seeds give equal draws.
    """

    insecure = True

    def __init__(self, seed: int) -> None:
        self._generator = np.random.Generator(np.random.Philox(seed))

    def coin(self, p: float) -> bool:
        """Return True with probability p."""
        return flip(self._generator.bytes, p)

    def sample_indices(self, n: int, q: float) -> NDArray[np.int64]:
        """Return each of 0, ..., n - 1 independently with probability q."""
        return _sample_indices(self._generator.bytes, n, q)

    def normal(self, size: int, std: float) -> NDArray[np.float64]:
        """Return independent draws of N(0, std²)."""
        return _normal(self._generator, size, std)


def _sample_indices(source: Callable[[int], bytes], n: int, q: float) -> NDArray[np.int64]:
    """Compare 16 bits of each index with q first; only ties (1 in 65,536) need the other 48."""
    if n < 0:
        raise UserError(f"n = {n} must be at least 0: it is the number of records to sample from")
    first, rest = divmod(threshold("q", q), 1 << _REST_BITS)
    draws = np.frombuffer(source(n * _FIRST_BITS // 8), dtype="<u2").astype(np.int64)
    taken = draws < first
    for tie in np.flatnonzero(draws == first):
        taken[tie] = int.from_bytes(source(_REST_BITS // 8), "little") < rest
    return np.flatnonzero(taken).astype(np.int64)


def _normal(generator: np.random.Generator, size: int, std: float) -> NDArray[np.float64]:
    if not 0 <= std < math.inf:
        raise UserError(f"std = {std} must be finite and at least 0: it is a standard deviation")
    if std == 0:
        return np.zeros(size)
    # Box and Muller, which torch computes on many numbers at once, in double precision: noise must
    # have finer bits than what it is added to, and the tails of single precision are coarse.
    pairs = (size + 1) // 2
    uniform = torch.from_numpy(generator.random(2 * pairs))
    radius, angle = uniform[:pairs], uniform[pairs:]
    radius.neg_().add_(1)  # exact, and never 0
    _refine(radius, generator)
    radius.log_().mul_(-2).sqrt_().mul_(std)
    angle.mul_(2 * math.pi)
    cosine = torch.cos(angle)
    angle.sin_().mul_(radius)
    radius.mul_(cosine)
    return uniform[:size].numpy()


def _refine(uniform: torch.Tensor, generator: np.random.Generator) -> None:
    """Spread multiples of 2^-53 near 0 over their cells: the far tail has more than 53 bits."""
    if uniform.numel() and float(uniform.min()) < _COARSE:
        few = torch.nonzero(uniform < _COARSE).squeeze(1)
        uniform[few] -= _CELL * torch.from_numpy(generator.random(len(few)))
