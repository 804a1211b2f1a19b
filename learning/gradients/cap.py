"""The cap: a client's whole sum is clipped, too (docs/mathematics.md, "The cap")."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from coinflower.accounting.errors import UserError

Vector = npt.NDArray[np.float32]
Lengths = npt.NDArray[np.float64]

# Rounding to single precision lengthens a vector by at most 2⁻²⁴ of itself. Aiming a little lower
# leaves room for that, and for the rounding of the norm.
_ROOM = 1 - 2.0**-22


def capped_sum(total: Vector, cap_norm: float) -> Vector:
    """Return the point nearest to a client's sum in the ball that the cap allows.

    The norm of what comes back is at most ``cap_norm``, rounding included. Whoever counts it in
    cells afterwards (`coinflower.learning.noise.FixedPoint`) cuts off towards zero, which shortens
    it once more. Projection on a ball lengthens no difference, so one record still moves the sum by
    at most the clip norm, but for the rounding of single precision: c·2⁻²³ clip norms under a cap
    of c, where sums without a cap round by as much for each clip norm of their own length.

    Under a cap the same is done for every sum, whether or not it bites: no time reveals which.

    Args:
        total: The sum of clipped gradients, finite; zeros stay zeros.
        cap_norm: Cap times clip norm; ``math.inf`` for no cap, which changes nothing.

    Raises:
        ValueError: If the cap is not above 0.
    """
    if cap_norm == math.inf:
        return total
    exact = total.astype(np.float64)
    exact *= cap_factors(np.array([np.linalg.norm(exact)]), cap_norm)
    return exact.astype(np.float32)


def cap_factors(norms: Lengths, cap_norm: float) -> Lengths:
    """Return the factor of each sum that has one of these norms: 1 where the cap does not bite.

    Args:
        norms: L2 norms of clients' sums.
        cap_norm: As for `capped_sum`.

    Raises:
        ValueError: If the cap is not above 0.
    """
    if not cap_norm > 0:
        raise UserError(f"cap_norm = {cap_norm} must be above 0: it is the cap times the clip norm")
    if math.isinf(cap_norm):
        return np.ones_like(norms)
    largest = cap_norm * _ROOM
    return np.asarray(largest / np.maximum(norms, largest))
