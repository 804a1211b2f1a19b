"""For Opacus: an accountant that knows random participation."""

from __future__ import annotations

from coinflower.accounting.plugins.opacus import RandomParticipationAccountant as Accountant

__all__ = ["Accountant"]
