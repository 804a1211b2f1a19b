"""Adding noise so that the low bits of a number tell nothing about what is under it."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

Vector = npt.NDArray[np.float32]

_CELL_EXPONENT = 16


def lattice_cell(noise_std: float) -> float:
    """Return the lattice's cell: 2⁻¹⁶ of the standard deviation's power of two."""
    return math.ldexp(1.0, math.frexp(noise_std)[1] - 1 - _CELL_EXPONENT)


def add_noise(total: Vector, noise: Vector, noise_std: float) -> Vector:
    """Return total + noise on a lattice that depends on ``noise_std`` alone.

    A plain floating-point sum keeps no finer bits than its larger term has. Near zero pure noise
    has many of them and noise on a gradient has not, so a few coordinates tell for certain whether
    a client took part (Mironov, "On significance of the least significant bits for differential
    privacy", 2012). On a lattice coarser than the bits of both, every cell is reached either way
    with the probability that the mathematics says, and the noise's variance grows by 10⁻¹¹ of
    itself at most.

    Args:
        total: What is protected.
        noise: Gaussian noise of the same length.
        noise_std: Its standard deviation; at 0 the total is returned as it is.
    """
    if noise_std == 0:
        return total
    cell = lattice_cell(noise_std)
    # In place, and with the exact reciprocal of a power of two: every round does this.
    counts = total.astype(np.float64)
    counts += noise
    counts *= 1 / cell
    # Half-open cells: rounding half to even would favour every second one.
    counts += 0.5
    np.floor(counts, out=counts)
    counts *= cell
    return counts.astype(np.float32)
