"""For dp-accounting: rounds as an event, and an accountant for it."""

from __future__ import annotations

from dp_accounting import dp_event

from coinflower.accounting.mechanism import Round
from coinflower.accounting.plugins.dp_accounting import (
    RandomParticipationAccountant as Accountant,
)
from coinflower.accounting.plugins.dp_accounting import (
    RandomParticipationDpEvent,
)

__all__ = ["Accountant", "event"]


def event(round_: Round, *, rounds: int = 1) -> dp_event.DpEvent:
    """Return so many rounds as an event that composes with dp-accounting's own."""
    once = RandomParticipationDpEvent(
        p=round_.p,
        q=round_.q,
        d=round_.d,
        noise_multiplier=round_.noise_multiplier,
        cap=round_.cap,
    )
    return once if rounds == 1 else dp_event.SelfComposedDpEvent(once, rounds)
