"""How tight a certified figure is: the ε that a concrete data set is known to lose."""

from __future__ import annotations

import math

from accounting.composition import epsilon_after
from accounting.realised import Realised, realised_epsilon
from accounting.schemes import Certified

# Composition rounds up by a small fraction of a per cent; giving back a whole one keeps the
# composed figure a lower bound.
_ROUNDED_UP_AT_MOST = 0.01
_ANGLES = (0.2, 0.6, 1.0, 1.3, math.pi / 2)


def realised_epsilon_after(
    *, p: float, q: float, d: int, noise_multiplier: float, delta: float, rounds: int
) -> float:
    """Return a lower bound on the worst-case ε at ``delta`` after ``rounds`` rounds.

    One round: the best geometry found. More rounds: the best of a few geometries, each held
    through all rounds, which a data set of constant gradients does.

    Args:
        p: Participation probability.
        q: Local sampling rate.
        d: Data-set size.
        noise_multiplier: Noise over clip norm.
        delta: In (0, 1).
        rounds: At least 1.

    Returns:
        ε that no honest analysis can go below.
    """
    if rounds == 1:
        start = Certified(p=p, q=q, d=d, noise_multiplier=noise_multiplier).epsilon(delta)
        return realised_epsilon(
            delta, p=p, q=q, d=d, noise_multiplier=noise_multiplier, start=start
        )[0]
    composed = (
        epsilon_after(
            [(Realised(p=p, q=q, d=d, noise_multiplier=noise_multiplier, angle=angle), rounds)],
            delta,
        )
        for angle in _ANGLES
    )
    return max(composed) * (1 - _ROUNDED_UP_AT_MOST)
