"""How much data the clients of one round may declare together."""

from __future__ import annotations

from coinflower.protocol.terms import Terms
from coinflower.server.masked.masked_sum import ring_holds


class Room:
    """What is left for further clients of a round.

    Args:
        terms: The public terms; in mode masked their ring must hold the sum of all.
        together: Largest sum of declared sizes.
    """

    def __init__(self, terms: Terms, together: int) -> None:
        self._terms = terms
        self._left = together
        self._clients = 0
        self._length = 0.0

    def takes(self, size: int) -> bool:
        """Count a client in, if there is room for what it declares."""
        if size > self._left:
            return False
        if self._terms.mode.masks_sums:
            length = self._length + self._terms.longest_sum(size)
            if not ring_holds(self._terms, self._clients + 1, length):
                return False
            self._clients, self._length = self._clients + 1, length
        self._left -= size
        return True
