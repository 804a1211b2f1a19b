"""An accountant with which Opacus reports what random participation costs.

Imported on demand only, since it needs Opacus.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from opacus.accountants import IAccountant

from coinflower.accounting.analyses.analysis import Analysis
from coinflower.accounting.analyses.names import DEFAULT_SCHEME, scheme_class
from coinflower.accounting.composition.compose import epsilon_after
from coinflower.accounting.mechanism import Round


class RandomParticipationAccountant(IAccountant):  # type: ignore[misc]
    """Counts optimizer steps of one client as rounds of random participation.

    A step is a round for which the client flipped its coin, whatever the coin said: when it sits
    out, let it step on an empty batch, which sends noise alone and is counted. Opacus' sample rate
    is the local sampling rate q. Two ways to plug it in::

        engine = PrivacyEngine()
        engine.accountant = RandomParticipationAccountant(p=0.1, d=len(data))
        model, optimizer, loader = engine.make_private(...)

    or by name, which ``make_private_with_epsilon`` and ``get_noise_multiplier`` need::

        make = functools.partial(RandomParticipationAccountant, p=0.1, d=len(data))
        register_accountant(RandomParticipationAccountant.mechanism(), make)
        engine = PrivacyEngine(accountant=RandomParticipationAccountant.mechanism())

    Args:
        p: Participation probability.
        d: Bound on the client's data-set size.
        cap: Largest norm of a client's sum in clip norms, if your optimizer clips it, too.
        scheme: Name of the analysis; only those that bound what a client loses.

    Attributes:
        history: Opacus' list of (noise multiplier, sample rate, number of steps).
    """

    def __init__(
        self, p: float, d: int, scheme: str = DEFAULT_SCHEME, cap: float = math.inf
    ) -> None:
        kind = scheme_class(scheme)
        if not kind.is_chargeable:
            raise ValueError(
                f"scheme = {scheme!r} is not an upper bound of what a client loses; use "
                "'certified', 'wcs' or 'ols'."
            )
        super().__init__()
        self._kind = kind
        self._p = p
        self._d = d
        self._cap = cap
        self._cost(noise_multiplier=1.0, sample_rate=1.0)  # refuses a wrong p, d or cap at once

    def _cost(self, noise_multiplier: float, sample_rate: float) -> Analysis:
        return self._kind(Round(self._p, sample_rate, self._d, noise_multiplier, self._cap))

    def step(self, *, noise_multiplier: float, sample_rate: float) -> None:
        """Count one round."""
        steps = 1
        if self.history and self.history[-1][:2] == (noise_multiplier, sample_rate):
            steps += self.history.pop()[2]
        self.history.append((noise_multiplier, sample_rate, steps))

    def get_epsilon(self, delta: float) -> float:
        """Return ε at ``delta`` of all rounds so far, ∞ if any was without noise."""
        if any(noise == 0 for noise, _, _ in self.history):
            return math.inf
        return epsilon_after(
            [(self._cost(noise, rate), steps) for noise, rate, steps in self.history], delta
        )

    def __len__(self) -> int:
        return sum(steps for _, _, steps in self.history)

    @classmethod
    def mechanism(cls) -> str:
        """Return the name for Opacus' registry."""
        return "random-participation"

    def state_dict(self, destination: Any = None) -> Any:
        """Return history and terms, into ``destination`` if given."""
        state = super().state_dict(OrderedDict() if destination is None else destination)
        state["terms"] = self._own_terms()
        return state

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take over a history; refuse one that was counted under other terms."""
        if state_dict and state_dict.get("terms") != self._own_terms():
            raise ValueError(
                f"This state was counted with {state_dict.get('terms')}, not {self._own_terms()}."
            )
        super().load_state_dict(state_dict)

    def _own_terms(self) -> dict[str, object]:
        terms: dict[str, object] = {"p": self._p, "d": self._d, "scheme": self._kind.name}
        return {**terms, **({"cap": self._cap} if math.isfinite(self._cap) else {})}
