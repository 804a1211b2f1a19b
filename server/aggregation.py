"""Adding up what clients send, as it arrives; what is not usable is dropped by name."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

import numpy as np
from flwr.app import Message

from protocol import messages
from protocol.terms import Terms
from server.checkpoint import Vector

logger = logging.getLogger("coinflower.server")

_ROUNDING = 1e-3


class RunningSum:
    """The sum of a round so far, and who contributed to it: one vector, however many clients.

    Args:
        length: Number of parameters of the model.
        asked: The clients that were asked; nobody else is listened to.
        largest_norms: The largest L2 norm that each can honestly send, by client; where none is
            given, anything finite goes.
    """

    def __init__(
        self, length: int, asked: Iterable[int], largest_norms: Mapping[int, float] | None = None
    ) -> None:
        self._total = np.zeros(length)
        self._asked = frozenset(asked)
        self._largest_norms = largest_norms or {}
        self.answered: set[int] = set()
        self.dropped: set[int] = set()
        self.received_bytes = 0

    @property
    def total(self) -> Vector:
        """The sum in single precision."""
        return self._total.astype(np.float32)

    def add(self, reply: Message) -> None:
        """Add what a reply carries, or drop it and name the client."""
        node = reply.metadata.src_node_id
        vector, problem = _vector_of(reply, self._total.size)
        if node not in self._asked or node in self.answered:
            vector, problem = None, "not asked for"
        elif vector is not None and _norm(vector) > self._largest_norms.get(node, np.inf):
            vector, problem = None, "more than all of its samples could add up to"
        if vector is None:
            logger.warning("Dropped what client %d sent: %s.", node, problem)
            self.dropped.add(node)
            return
        self._total += vector
        self.answered.add(node)
        self.received_bytes += vector.nbytes


def largest_norm(terms: Terms, declared_size: int, length: int) -> float:
    """Return the largest L2 norm that a client of that size can honestly send.

    Each sample adds at most the clip norm. Gaussian noise of standard deviation s on n coordinates
    is longer than s·(√n + 10) with probability e⁻⁵⁰ at most.
    """
    norm = terms.clip_norm * declared_size
    if terms.mode.client_adds_noise:
        norm += terms.noise_std * (np.sqrt(length) + 10)
    return float(norm * (1 + _ROUNDING))


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
