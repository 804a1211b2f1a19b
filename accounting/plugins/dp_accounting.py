"""Random participation for the dp-accounting ecosystem: an event, and an accountant for it."""

from __future__ import annotations

import math

import attr
from dp_accounting import dp_event
from dp_accounting.privacy_accountant import NeighboringRelation, PrivacyAccountant

from coinflower.accounting.analyses.analysis import Analysis
from coinflower.accounting.analyses.names import DEFAULT_SCHEME, scheme_class
from coinflower.accounting.composition.compose import delta_after, epsilon_after
from coinflower.accounting.mechanism import Round


@attr.s(frozen=True, slots=True, auto_attribs=True, kw_only=True)
class RandomParticipationDpEvent(dp_event.DpEvent):  # type: ignore[misc]
    """One round of DP-SGD with random participation, seen from one client.

    The client joins with probability ``p``. If it joins it draws each of its records, of which
    there are at most ``d`` besides the one in question, independently with probability ``q`` and
    contributes the sum of their vectors, each of norm at most 1, clipped to norm ``cap``. The
    output is the sum of all contributions plus N(0, noise_multiplier²·I); neither the coin nor
    the sample is revealed.

    Attributes:
        p: Participation probability.
        q: Local sampling rate.
        d: Bound on the data-set size.
        noise_multiplier: Noise standard deviation over the vectors' norm bound; 0 is no privacy.
        cap: Largest norm of the client's sum over the vectors' norm bound; ∞ for none.
        scheme: Name of the analysis.
    """

    p: float
    q: float
    d: int
    noise_multiplier: float
    cap: float = math.inf
    scheme: str = DEFAULT_SCHEME

    def cost(self) -> Analysis:
        """Return the event's round under its analysis."""
        round_ = Round(
            p=self.p, q=self.q, d=self.d, noise_multiplier=self.noise_multiplier, cap=self.cap
        )
        return scheme_class(self.scheme)(round_)


class RandomParticipationAccountant(PrivacyAccountant):  # type: ignore[misc]
    """Accountant for compositions of random-participation rounds; refuses all other events.

    Schemes that are not an upper bound are refused as well.
    """

    def __init__(self) -> None:
        super().__init__(NeighboringRelation.ADD_OR_REMOVE_ONE)
        self._rounds: dict[Analysis, int] = {}
        self._without_noise = False

    def _maybe_compose(
        self, event: dp_event.DpEvent, count: int, do_compose: bool
    ) -> PrivacyAccountant.CompositionErrorDetails | None:
        if isinstance(event, dp_event.NoOpDpEvent):
            return None
        if isinstance(event, dp_event.SelfComposedDpEvent):
            return self._maybe_compose(event.event, event.count * count, do_compose)
        if isinstance(event, dp_event.ComposedDpEvent):
            for part in event.events:
                problem = self._maybe_compose(part, count, do_compose)
                if problem is not None:
                    return problem
            return None
        if not isinstance(event, RandomParticipationDpEvent):
            return self._refusal(event, "only random-participation rounds are supported")
        if event.noise_multiplier == 0:
            self._without_noise |= do_compose
            return None
        try:
            cost = event.cost()
        except ValueError as error:
            return self._refusal(event, str(error))
        if not cost.is_chargeable:
            return self._refusal(event, f"scheme {cost.name!r} does not bound a client's loss")
        if do_compose:
            self._rounds[cost] = self._rounds.get(cost, 0) + count
        return None

    def _refusal(
        self, event: dp_event.DpEvent, message: str
    ) -> PrivacyAccountant.CompositionErrorDetails:
        return self.CompositionErrorDetails(invalid_event=event, error_message=message)

    def get_epsilon(self, target_delta: float) -> float:
        """Return ε at ``target_delta`` for everything composed so far."""
        if self._without_noise:
            return math.inf
        return epsilon_after(list(self._rounds.items()), target_delta)

    def get_delta(self, target_epsilon: float) -> float:
        """Return δ at ``target_epsilon`` for everything composed so far."""
        if self._without_noise:
            return 1.0
        return delta_after(list(self._rounds.items()), target_epsilon)
