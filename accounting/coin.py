"""A secret coin from the operating system's cryptographic randomness."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from typing import Protocol

from coinflower.accounting.errors import UserError

BITS = 64
"""A probability is compared with this many random bits, so it is exact to 2^-64."""


class CoinSource(Protocol):
    """Where coins come from; ``insecure`` marks a seeded source."""

    @property
    def insecure(self) -> bool:
        """Whether somebody could predict the coins."""

    def coin(self, p: float) -> bool:
        """Return True with probability p."""


class SecureCoin:
    """Coins nobody can predict."""

    insecure = False

    def coin(self, p: float) -> bool:
        """Return True with probability p, rounded down to a multiple of 2^-64."""
        return flip(os.urandom, p)


def flip(random_bytes: Callable[[int], bytes], p: float) -> bool:
    """Return True with probability p if the bytes are random."""
    return int.from_bytes(random_bytes(BITS // 8), "little") < threshold("p", p)


def threshold(name: str, probability: float) -> int:
    """Return the integer T such that 64 random bits are below T with the given probability."""
    if not 0 <= probability <= 1:
        raise UserError(f"{name} = {probability} must lie in 0 to 1: it is a probability")
    return int(math.ldexp(probability, BITS))
