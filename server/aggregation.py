"""Adding up what clients send, as it arrives; an unusable reply is dropped and its client named."""

from __future__ import annotations

import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping

import numpy as np
from flwr.app import ConfigRecord, Message

from coinflower.accounting.errors import UserError
from coinflower.flower_internals.messages import NEVER_ARRIVED
from coinflower.learning import FixedPoint, Randomness, add_noise, fine_cell
from coinflower.learning.noise import LARGEST_COUNT, lattice_cell
from coinflower.protocol import messages
from coinflower.protocol.terms import Terms
from coinflower.server.checkpoint import Vector
from coinflower.server.questions import answer_of

logger = logging.getLogger("coinflower.server")

_ROUNDING = 1e-3
# A client may put any text beside an error, so these are ours.
_ERRORS = {
    NEVER_ARRIVED: "its answer was announced but did not arrive in time; if this happens often, "
    "its line is too slow for upload_seconds and reply_seconds",
}
_BLOCK = 1 << 13  # in the processor's cache, and too few to be spread over its cores


class Replies(ABC):
    """The replies of a round: who gave a usable one, and who did not.

    Args:
        asked: The clients that were asked; all others are ignored.

    Attributes:
        answered: Who gave a usable reply.
        dropped: Who gave another one.
        received_bytes: How much the usable ones hold.
    """

    def __init__(self, asked: Iterable[int]) -> None:
        self._asked = frozenset(asked)
        self.answered: set[int] = set()
        self.dropped: set[int] = set()
        self.received_bytes = 0

    def add(self, reply: Message) -> None:
        """Add what a reply carries, or drop it and name the client."""
        node = reply.metadata.src_node_id
        try:
            if node not in self._asked or node in self.answered:
                raise ValueError("not asked for")
            if reply.has_error():
                raise ValueError(_ERRORS.get(reply.error.code, f"error {reply.error.code}"))
            content = self._take(node, answer_of(reply))
        except (KeyError, ValueError) as problem:
            logger.warning("Dropped what client %d sent: %s.", node, problem)
            self.dropped.add(node)
            return
        self.answered.add(node)
        self.received_bytes += content

    @abstractmethod
    def _take(self, node: int, answer: ConfigRecord) -> int:
        """Add what an answer carries to the sum and return how many bytes that was.

        Raises:
            KeyError: Something is missing in it.
            ValueError: Something is wrong with it.
        """


class RunningSum(Replies):
    """The sum of a round so far: one vector, however many clients.

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
        super().__init__(asked)
        self._terms = terms
        self._length = length
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

    @property
    def total(self) -> Vector:
        """The sum in single precision, as it came."""
        return self._bare_total.astype(np.float32) if self._total is None else self._total.rounded

    def noisy_total(self, randomness: Randomness) -> Vector:
        """Return the sum, with noise if it is the server that adds the noise."""
        if self._total is None or not self._terms.mode.server_adds_noise:
            return self.total
        return add_noise(self._total, self._terms.noise_std, randomness)

    def _take(self, node: int, answer: ConfigRecord) -> int:
        vector = messages.vector_from_bytes(answer[messages.SUM], self._length)
        if not _norm(vector) <= self._largest_norms.get(node, math.inf):
            raise ValueError("longer than its records of one round, or the cap, allow")
        if self._total is None:
            self._bare_total += vector
        else:
            self._total.add(vector)
        return vector.nbytes


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
    norm = terms.clip_norm * terms.longest_sum(declared_size)
    if terms.mode.client_adds_noise:
        norm += terms.noise_std * (math.sqrt(length) + 10)
    return norm * (1 + _ROUNDING)


def _norm(vector: Vector) -> float:
    """Return the L2 norm in double precision, with no copy as long as the vector."""
    squares = 0.0
    for start in range(0, vector.size, _BLOCK):
        block = vector[start : start + _BLOCK].astype(np.float64)
        squares += float(block @ block)
    return math.sqrt(squares)
