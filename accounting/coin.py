"""A secret coin from the operating system's cryptographic randomness."""

from __future__ import annotations

import secrets
from typing import Protocol

_BITS = 53


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
        """Return True with probability p, rounded down to a multiple of 2⁻⁵³."""
        return secrets.randbits(_BITS) < int(p * (1 << _BITS))
