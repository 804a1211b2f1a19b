"""Masked sums: every client adds a share of the noise, and nothing but the sum is ever opened.

Each client rounds its noisy sum to whole numbers of a cell that all share, and hides them under a
mask modulo 2^b. A sum of rounded Gaussians is as good as the rounded sum of the Gaussians, so a
round is charged as if one party had added the noise of all honest shares: by `Certified`, at the
terms' noise multiplier. Proofs are in docs/mathematics.md, "Masked sums".
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from coinflower.accounting import validation
from coinflower.accounting.errors import UserError

RING_BITS = (32, 64)
"""How many bits a masked number may have; fewer make shorter messages."""
CUT_MARGIN = 2.0**-20
"""By how much a share is larger than σ·C/√h: cutting off to cells of 2⁻³² clip norms lets a record
move a sum of n numbers by √n·2⁻³² clip norms more than one, which this covers up to n = 2²⁴."""
_CELL_EXPONENT = 6
# Of the noise in a sum: more is seen once in 10³² numbers, and spoils that number only.
_MOST_DEVIATIONS = 12


@dataclass(frozen=True, kw_only=True)
class NoiseShares:
    """The noise that each client of a masked sum adds; an immutable value.

    Guarantees: of any ``threshold`` clients at least h = ``threshold`` − ``colluders`` are honest,
    and what h of them add together is no less than the noise that is charged,
    N(0, (σ·C)²), whatever the others add, know or leave out.

    Attributes:
        noise_multiplier: σ, the noise that is charged, in clip norms.
        clip_norm: C, the bound on each record's gradient.
        threshold: How many clients an opened sum has at least.
        colluders: How many of them may tell their shares, at least 1: each knows its own.
    """

    noise_multiplier: float
    clip_norm: float
    threshold: int
    colluders: int

    def __post_init__(self) -> None:
        """Check every field once."""
        validation.require_positive("noise_multiplier", self.noise_multiplier)
        validation.require_positive("clip_norm", self.clip_norm)
        validation.require_count("colluders", self.colluders, least=1)
        validation.require_count("threshold", self.threshold, least=2)
        if self.threshold <= self.colluders:
            raise UserError(
                f"threshold = {self.threshold} must be above colluders = {self.colluders}: the "
                "noise is that of the clients that are not among them."
            )

    @property
    def honest(self) -> int:
        """How many shares of an opened sum are honest at least: h."""
        return self.threshold - self.colluders

    @property
    def share_std(self) -> float:
        """Standard deviation of the noise that each client adds: σ·C/√h, and the margin."""
        charged = self.noise_multiplier * self.clip_norm
        return charged / math.sqrt(self.honest) * (1 + CUT_MARGIN)

    @property
    def cell(self) -> float:
        """What all clients count in: a power of two, 64 to 128 of which are a share's deviation."""
        return math.ldexp(1.0, math.frexp(self.share_std)[1] - 1 - _CELL_EXPONENT)

    def sum_std(self, clients: int) -> float:
        """Return the standard deviation of the noise in a sum of so many clients."""
        return self.share_std * math.sqrt(clients)

    def ring_bits(self, *, clients: int, longest: float) -> int:
        """Return the fewest bits that hold the sum of all clients, with twelve deviations of noise.

        Args:
            clients: How many there may be.
            longest: Largest length of one client's sum, in clip norms: the cap, or the most records
                that it may sample.

        Raises:
            UserError: No choice of ``RING_BITS`` is enough.
        """
        validation.require_count("clients", clients, least=1)
        # Rounding to whole cells adds up to half of one each.
        lengths = clients * (longest * self.clip_norm / self.cell + 0.5)
        largest = lengths + _MOST_DEVIATIONS * self.sum_std(clients) / self.cell
        for bits in RING_BITS:
            if largest < 2.0 ** (bits - 1):
                return bits
        raise UserError(
            f"The sum of {clients:,} clients of up to {longest:g} clip norms each, in cells of the "
            f"noise, does not fit into {RING_BITS[-1]} bits; set a cap, or ask fewer clients."
        )

    def log10_added_delta(self, *, numbers: int, clients: int) -> float:
        """Return the decimal logarithm of what rounding share by share adds to δ.

        Args:
            numbers: How many are opened: those of a vector, times rounds.
            clients: How many there may be.
        """
        steps = numbers * max(clients - 1, 1)
        return math.log10(steps) + log10_rounding_distance(self.share_std / self.cell)


def chosen_shares(
    clients: int, threshold: int | None = None, colluders: int | None = None
) -> tuple[int, int]:
    """Return the threshold and the colluders of a federation, as chosen or as usual.

    Args:
        clients: How many there are.
        threshold: How many must answer; all but a fifth by default.
        colluders: How many of them may collude; a tenth of all, and at least one, by default.

    Raises:
        ValueError: So many clients, or so many honest ones, there are not.
    """
    if clients < 2:
        raise UserError(f"clients = {clients} must be at least 2: a masked sum hides each in it.")
    threshold = max(2, clients - clients // 5) if threshold is None else threshold
    colluders = max(1, clients // 10) if colluders is None else colluders
    validation.require_count("threshold", threshold, least=2)
    validation.require_count("colluders", colluders, least=1)
    if threshold > clients:
        raise UserError(
            f"threshold = {threshold} is more than the {clients} clients that there are: no sum "
            "would ever be opened."
        )
    if threshold <= colluders:
        raise UserError(
            f"threshold = {threshold} must be above colluders = {colluders}: the noise is that of "
            "the clients that are not among them."
        )
    return threshold, colluders


def log10_rounding_distance(deviation: float) -> float:
    """Return log₁₀ of η = 2·Σ_k e^(−π²k²s²), k ≥ 1, rounded up.

    With a probability of at least 1 − (n−1)·η, whatever the centres, a sum of n independent rounded
    Gaussians of standard deviation s is drawn as the rounded sum of all would be.

    Args:
        deviation: s, in cells.
    """
    # The terms fall at least as fast as a geometric series.
    ratio = math.exp(-3 * (math.pi * deviation) ** 2)
    natural = math.log(2) - (math.pi * deviation) ** 2 - math.log1p(-ratio)
    return (natural + 1e-12 * abs(natural)) / math.log(10)
