"""What federations in mode masked have in common, and how far their rounds came."""

from __future__ import annotations

from typing import Any

from tests.support.memory_grid import NOTARY_NODE

FOUR = (12, 12, 12, 12)
"""Declared sizes of four clients."""


def opened(fed: Any, node: int = NOTARY_NODE) -> int:
    """How many rounds a notary has opened."""
    return sum(each.rounds for each in fed.grid.notaries[node]._record.opened())


def stepped(fed: Any) -> int:
    """In how many rounds the model moved."""
    kept = fed.checkpoints().load()
    return 0 if kept is None else kept.round
