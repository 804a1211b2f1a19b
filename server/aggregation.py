"""Adding up what clients send, as it arrives; an unusable reply is dropped and its client named."""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Mapping

import numpy as np
from flwr.app import Message
from scipy.special import betainc

from coinflower.accounting.errors import UserError
from coinflower.learning import FixedPoint, Randomness, add_noise, fine_cell
from coinflower.learning.noise import LARGEST_COUNT, lattice_cell
from coinflower.protocol import messages
from coinflower.protocol.terms import Terms
from coinflower.server.checkpoint import Vector

logger = logging.getLogger("coinflower.server")

_ROUNDING = 1e-3
_RARE = 2.0**-80


class RunningSum:
    """The sum of a round so far, and who contributed to it: one vector, however many clients.

    In private modes it is counted in whole numbers of a cell that depends on the terms alone, so
    it is exact: a client adds exactly what it sends, whatever others send, in any order.

    Args:
        terms: The public terms.
        length: Number of parameters of the model.
        asked: Declared sizes of the clients that were asked; all others are ignored.

    Raises:
        ValueError: There is so much data that the sum might overflow.
    """

    def __init__(self, terms: Terms, length: int, asked: Mapping[int, int]) -> None:
        self._terms = terms
        self._length = length
        self._asked = frozenset(asked)
        self._largest_norms: dict[int, float] = {}
        self._total: FixedPoint | None = None
        if terms.mode.is_private:
            self._largest_norms = {
                node: largest_norm(terms, size, length) for node, size in asked.items()
            }
            self._total = FixedPoint(length, cell_of(terms))
            if not sum(self._largest_norms.values()) <= LARGEST_COUNT * self._total.cell:
                raise UserError(
                    f"{len(asked)} clients with {sum(asked.values())} records in all are more than "
                    "a sum can hold; set a smaller largest_total_size."
                )
        self._bare_total = np.zeros(length if self._total is None else 0)
        self.answered: set[int] = set()
        self.dropped: set[int] = set()
        self.received_bytes = 0

    @property
    def total(self) -> Vector:
        """The sum in single precision, as it came."""
        return self._bare_total.astype(np.float32) if self._total is None else self._total.rounded

    def noisy_total(self, randomness: Randomness) -> Vector:
        """Return the sum, with noise if it is the server that adds the noise."""
        if self._total is None or not self._terms.mode.server_adds_noise:
            return self.total
        return add_noise(self._total, self._terms.noise_std, randomness)

    def add(self, reply: Message) -> None:
        """Add what a reply carries, or drop it and name the client."""
        node = reply.metadata.src_node_id
        vector, problem = _vector_of(reply, self._length)
        if node not in self._asked or node in self.answered:
            vector, problem = None, "not asked for"
        elif vector is not None and not _norm(vector) <= self._largest_norms.get(node, math.inf):
            vector, problem = None, "longer than its records of one round, or the cap, allow"
        if vector is None:
            logger.warning("Dropped what client %d sent: %s.", node, problem)
            self.dropped.add(node)
            return
        if self._total is None:
            self._bare_total += vector
        else:
            self._total.add(vector)
        self.answered.add(node)
        self.received_bytes += vector.nbytes


def cell_of(terms: Terms) -> float:
    """Return the cell that sums of these (private) terms are counted in.

    If clients add the noise, what they send already lies on the noise's lattice.
    """
    if terms.mode.client_adds_noise:
        return lattice_cell(terms.noise_std)
    return fine_cell(terms.clip_norm)


def largest_norm(terms: Terms, declared_size: int, length: int) -> float:
    """Return the largest L2 norm that a client of that size can honestly send.

    Each record adds at most the clip norm, and no sum is longer than the cap. Gaussian noise of
    standard deviation s on n coordinates is longer than s·(√n + 10) with a probability of at most
    e⁻⁵⁰.
    """
    norm = terms.clip_norm * min(most_samples(declared_size, terms.q), terms.cap)
    if terms.mode.client_adds_noise:
        norm += terms.noise_std * (math.sqrt(length) + 10)
    return norm * (1 + _ROUNDING)


@functools.lru_cache(maxsize=1 << 16)
def most_samples(declared_size: int, q: float) -> int:
    """Return how many records a round can have: more have a probability of at most 2⁻⁸⁰.

    The least k with P(Binom(d, q) > k) = I_q(k + 1, d − k) ≤ 2⁻⁸⁰.
    """
    too_few, enough = -1, declared_size
    while enough - too_few > 1:
        k = (too_few + enough) // 2
        if betainc(k + 1, declared_size - k, q) <= _RARE:
            enough = k
        else:
            too_few = k
    return enough


def _norm(vector: Vector) -> float:
    return float(np.linalg.norm(vector.astype(np.float64)))


def _vector_of(reply: Message, length: int) -> tuple[Vector | None, str]:
    """Return the vector that a reply carries, or what is wrong with it."""
    if reply.has_error():
        return None, f"error {reply.error.code}"
    try:
        content = reply.content.config_records[messages.ANSWER][messages.SUM]
        return messages.vector_from_bytes(content, length), ""
    except (KeyError, ValueError) as error:
        return None, str(error)
