"""Adding up what clients send, as it arrives; what is not usable is dropped by name."""

from __future__ import annotations

import logging
from collections.abc import Iterable

import numpy as np
from flwr.app import Message

from protocol import messages
from server.checkpoint import Vector

logger = logging.getLogger("coinflower.server")


class RunningSum:
    """The sum of a round so far, and who contributed to it: one vector, however many clients.

    Args:
        length: Number of parameters of the model.
        asked: The clients that were asked; nobody else is listened to.
    """

    def __init__(self, length: int, asked: Iterable[int]) -> None:
        self._total = np.zeros(length)
        self._asked = frozenset(asked)
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
        if vector is None:
            logger.warning("Dropped what client %d sent: %s.", node, problem)
            self.dropped.add(node)
            return
        self._total += vector
        self.answered.add(node)
        self.received_bytes += vector.nbytes


def _vector_of(reply: Message, length: int) -> tuple[Vector | None, str]:
    """Return the vector that a reply carries, or what is wrong with it."""
    if reply.has_error():
        return None, f"error {reply.error.code}"
    try:
        content = reply.content.config_records[messages.ANSWER][messages.SUM]
        return messages.vector_from_bytes(content, length), ""
    except (KeyError, ValueError) as error:
        return None, str(error)
