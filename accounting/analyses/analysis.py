"""What an analysis is: an answer to the question how much one round reveals about one record.

An analysis looks at a `Round` and says how large δ is at a given ε if one record is removed from
the client's data, or added to it. Proofs are in docs/mathematics.md.

Names are a contract:

* ``name`` is what people say and what commands print. Two analyses may share a name if both prove
  the same thing about the same mechanism, one more tightly than the other.
* ``ledger_name`` stands in ledgers, which live for years. No two analyses share one, it never goes
  away, and the figure behind it never changes: what was charged once keeps its price for ever.
  Whoever tightens an analysis gives it a new ledger name and keeps the old one readable.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar, Self, overload

import numpy as np
import numpy.typing as npt

from coinflower.accounting import patience, validation
from coinflower.accounting.errors import UserError
from coinflower.accounting.mechanism import Direction, Round

Array = npt.NDArray[np.float64]

# The search for ε doubles from 1 up to 10¹⁸, far above what the least noise costs, and in steps of
# at least 10⁻¹⁸ rounds up what it found.
_MOST_DOUBLINGS = 60
_LEAST_STEP = 1e-18


@dataclass(frozen=True)
class Analysis(ABC):
    """One round under one analysis; an immutable value.

    Attributes:
        round: The mechanism.
    """

    round: Round

    name: ClassVar[str]
    ledger_name: ClassVar[str] = ""
    """Under which ledgers keep it; empty if no ledger takes it."""
    is_chargeable: ClassVar[bool] = False
    """Whether the figure bounds what a federated client really loses, so that a ledger takes it:
    those that have a ledger name."""
    title: ClassVar[str]
    is_upper_bound: ClassVar[bool] = True
    """Whether ε and δ bound the loss of the mechanism that the analysis names."""
    takes_cap: ClassVar[bool] = True
    """Whether what it says still holds if the client's sum is capped."""
    hides_coin: ClassVar[bool] = False
    """Whether it counts on the client's coin being secret."""

    def __init_subclass__(cls) -> None:
        """Take the ledger's name for the sign that a ledger takes it."""
        super().__init_subclass__()
        cls.is_chargeable = bool(cls.ledger_name)

    def __post_init__(self) -> None:
        """Refuse a mechanism that the analysis knows nothing of."""
        if self.round.is_capped and not self.takes_cap:
            raise UserError(f"scheme {self.name!r} knows no cap; leave out the cap.")

    def with_noise(self, noise_multiplier: float) -> Self:
        """Return the same analysis of the same round with other noise."""
        return replace(self, round=replace(self.round, noise_multiplier=noise_multiplier))

    def is_another_price_of(self, other: Analysis) -> bool:
        """Return whether both bound the same round in the same sense, by different figures."""
        return self != other and self.round == other.round and self.name == other.name

    @abstractmethod
    def _delta(self, epsilon: Array, direction: Direction) -> Array:
        """Return δ for a one-dimensional array of ε ≥ 0."""

    @overload
    def delta(self, epsilon: float, direction: Direction | None = None) -> float: ...
    @overload
    def delta(self, epsilon: Array, direction: Direction | None = None) -> Array: ...
    def delta(self, epsilon: float | Array, direction: Direction | None = None) -> float | Array:
        """Return δ(ε), for ε of either sign.

        For ε < 0 one direction is the mirror of the other:
        δ_remove(ε) = 1 − e^ε + e^ε·δ_add(−ε), and the same with the names exchanged.

        Args:
            epsilon: One value or an array.
            direction: Remove or add; the worse of both if left out.

        Returns:
            δ in [0, 1], of the shape of ``epsilon``.
        """
        patience.require()
        values = np.asarray(epsilon, dtype=np.float64)
        if np.isnan(values).any():
            raise UserError("epsilon = nan is not a number.")
        if direction is None:
            delta = np.maximum(
                self._signed(values.ravel(), Direction.REMOVE),
                self._signed(values.ravel(), Direction.ADD),
            )
        else:
            delta = self._signed(values.ravel(), direction)
        return float(delta[0]) if values.ndim == 0 else delta.reshape(values.shape)

    def epsilon(self, delta: float) -> float:
        """Return the least ε ≥ 0 with δ(ε) ≤ delta, rounded up; ∞ if there is none to be found."""
        validation.require_delta(delta)
        if self.delta(0.0) <= delta:
            return 0.0
        from scipy import optimize

        for high in (2.0**doublings for doublings in range(_MOST_DOUBLINGS)):
            if self.delta(high) <= delta:
                break
        else:
            return math.inf

        def log_excess(value: float) -> float:
            return math.log(max(self.delta(value), 5e-324)) - math.log(delta)

        root = float(
            optimize.brentq(
                log_excess, 0.0, high, xtol=_LEAST_STEP, rtol=1e-13, maxiter=1000, disp=False
            )
        )
        # Where δ(0) is hardly above delta the root is 0, so the step must not be a share of it.
        step = max(1e-13 * root, _LEAST_STEP)
        while root < high:
            if self.delta(root) <= delta:
                return root
            root, step = root + step, 2 * step
        return high

    def _signed(self, epsilon: Array, direction: Direction) -> Array:
        result = np.empty_like(epsilon)
        positive = epsilon >= 0
        result[positive] = self._delta(epsilon[positive], direction)
        mirrored = epsilon[~positive]
        result[~positive] = -np.expm1(mirrored) + np.exp(mirrored) * self._delta(
            -mirrored, direction.other
        )
        # What is no number is no bound: 1 always is.
        return np.clip(np.where(np.isnan(result), 1.0, result), 0.0, 1.0)
