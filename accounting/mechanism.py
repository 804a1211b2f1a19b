"""The mechanism: one round as one client sees it. What a round costs is the analyses' business.

In a round a client joins with probability p, samples each of its records with probability q, clips
each gradient to norm 1, adds them up and, if there is a cap, clips the sum to it; the sum gets
noise N(0, σ²) in units of the clip norm. Symbols and proofs are in docs/mathematics.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

from coinflower.accounting import validation
from coinflower.accounting.errors import UserError
from coinflower.accounting.rounding import rounded_up

LEAST_NOISE = 1e-6


class Direction(StrEnum):
    """Which neighbour is the real one: the data with the record, or the data without it."""

    REMOVE = "remove"
    ADD = "add"

    @property
    def other(self) -> Direction:
        """The opposite direction."""
        return Direction.ADD if self is Direction.REMOVE else Direction.REMOVE


@dataclass(frozen=True)
class Round:
    """One round of DP-SGD with random participation; an immutable value.

    Attributes:
        p: Participation probability, in (0, 1].
        q: Local sampling rate, in (0, 1].
        d: Bound on the client's data-set size, at least 0. No loss ever falls with d.
        noise_multiplier: Noise standard deviation over clip norm, above 0.
        cap: Largest norm of the client's whole sum, in clip norms, at least 1; ∞ for none.
    """

    p: float
    q: float
    d: int
    noise_multiplier: float
    cap: float = math.inf

    def __post_init__(self) -> None:
        """Check every field once."""
        validation.require_probability("p", self.p)
        validation.require_probability("q", self.q)
        validation.require_probability("p·q", self.p * self.q)
        validation.require_count("d", self.d, least=0)
        validation.require_positive("noise multiplier (sigma)", self.noise_multiplier)
        if self.noise_multiplier < LEAST_NOISE:
            raise UserError(
                f"noise multiplier (sigma) = {self.noise_multiplier} must be at least "
                f"{LEAST_NOISE:g}: less is as good as none."
            )
        validation.require_cap(self.cap)

    @property
    def is_capped(self) -> bool:
        """Whether the client's sum is clipped, too."""
        return math.isfinite(self.cap)

    def __str__(self) -> str:
        """Return the round as people write it."""
        sigma = rounded_up(self.noise_multiplier, 6)
        cap = f", cap = {self.cap:g}" if self.is_capped else ""
        return f"p = {self.p:g}, q = {self.q:g}, d = {self.d:,}, σ = {sigma}{cap}"
