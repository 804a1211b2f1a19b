"""Adding up masked numbers, which nobody can read before the sum is opened."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import numpy as np
from flwr.app import ConfigRecord

from coinflower.accounting.errors import UserError
from coinflower.masking.masks import Numbers, lifted, numbers_from_bytes, zeros
from coinflower.masking.tickets import Occasion
from coinflower.protocol import messages
from coinflower.protocol.terms import Terms
from coinflower.server.aggregation import Replies
from coinflower.server.checkpoint import Vector


class MaskedSum(Replies):
    """The sum of masked numbers so far, and the tickets with which notaries take off the masks.

    Nobody can tell what a client has sent, so nothing of it can be checked but its length.

    Args:
        terms: The public terms, of mode masked.
        length: Number of parameters of the model.
        asked: Declared sizes of the clients that were asked; all others are ignored.

    Attributes:
        tickets: Of the clients in the sum.

    Raises:
        ValueError: The ring of the terms might not hold the sum.
    """

    def __init__(self, terms: Terms, length: int, asked: Mapping[int, int]) -> None:
        super().__init__(asked)
        assert terms.ring_bits is not None
        self._cell = terms.noise_shares.cell
        self._ticket_bytes = Occasion.of(terms, 0).ticket_bytes
        self._numbers = zeros(length, terms.ring_bits)
        self._bits = terms.ring_bits
        self.tickets: dict[int, bytes] = {}
        require_ring(terms, asked.values())

    def opened(self, masks: Iterable[Numbers]) -> Vector:
        """Return the sum without the masks that notaries have added up."""
        numbers = self._numbers.copy()
        for mask in masks:
            numbers -= mask
        return (lifted(numbers) * self._cell).astype(np.float32)

    @property
    def length(self) -> int:
        """How many numbers the sum has."""
        return int(self._numbers.size)

    def _take(self, node: int, answer: ConfigRecord) -> int:
        numbers = numbers_from_bytes(answer[messages.SUM], self.length, self._bits)
        ticket = answer[messages.TICKET]
        if not isinstance(ticket, bytes) or len(ticket) != self._ticket_bytes:
            raise ValueError(f"its ticket must be {self._ticket_bytes} bytes")
        self._numbers += numbers
        self.tickets[node] = ticket
        return numbers.nbytes + len(ticket)


def require_ring(terms: Terms, sizes: Collection[int]) -> None:
    """Refuse terms of mode masked whose ring might not hold the sum of clients of these sizes.

    Raises:
        ValueError: It might not.
    """
    if not ring_holds(terms, len(sizes), sum(map(terms.longest_sum, sizes))):
        raise UserError(
            f"ring_bits = {terms.ring_bits} is too few for the sum of {len(sizes)} clients with "
            f"{sum(sizes)} records in all: let the terms have more bits, or a cap."
        )


def ring_holds(terms: Terms, clients: int, length: float) -> bool:
    """Return whether the ring of the terms is sure to hold a sum.

    Args:
        terms: Terms of mode masked.
        clients: How many clients are in it.
        length: What their sums may be long together, in clip norms.
    """
    clients = max(1, clients)
    try:
        needed = terms.noise_shares.ring_bits(clients=clients, longest=length / clients)
    except UserError:
        return False
    return needed <= (terms.ring_bits or 0)
