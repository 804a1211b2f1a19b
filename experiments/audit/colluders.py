"""Clients that conspire to round another one's sum away, in the messages of the real protocol.

Each declares as much as the server takes and sends as much as it adds up. Half of them push the sum
to where single precision has steps of four clip norms, the other half take it back again; the first
one tips the honest client's sum over the edge of a step. Together they send ``OFFSET``, which who
knows them subtracts.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from flwr.app import ConfigRecord, Message, RecordDict

from coinflower.protocol import messages
from coinflower.server.clients.roster import SizeLimits

OFFSET = 3.0
"""What all of them add to the last coordinate, in clip norms."""
DECLARED_SIZE = SizeLimits().each
_EACH_WAY = 4


class Colluder:
    """A node that agrees to everything and always sends the same.

    Args:
        value: What it adds to the last coordinate.
        declared_size: What it declares.
    """

    def __init__(self, value: float, declared_size: int = DECLARED_SIZE) -> None:
        self._value = value
        self._declared_size = declared_size

    def answer(self, message: Message) -> Message:
        """Return the answer to any question."""
        asked = message.content.config_records[messages.ASK]
        if messages.COUNT in asked:
            coins = [True] * int(asked[messages.COUNT])  # type: ignore[arg-type]
            answer = ConfigRecord({messages.COINS: coins})
        elif messages.WEIGHTS in asked:
            content = memoryview(asked[messages.WEIGHTS])  # type: ignore[arg-type]
            answer = self._sum(message, len(content) // 4)
        else:
            answer = self._enrolled()
        return Message(RecordDict({messages.ANSWER: answer}), reply_to=message)

    def _enrolled(self) -> ConfigRecord:
        return ConfigRecord(
            {
                messages.ENROLLED: True,
                messages.DECLARED_SIZE: self._declared_size,
                messages.REASON: "",
            }
        )

    def _sum(self, message: Message, length: int) -> ConfigRecord:
        del message
        vector = np.zeros(length, dtype=np.float32)
        vector[-1] = self._value
        return ConfigRecord({messages.SUM: messages.vector_to_bytes(vector)})


def conspiracy(clip_norm: float) -> Sequence[Colluder]:
    """Return colluders whose answers are to arrive in this order, after the honest client's."""
    most = clip_norm * DECLARED_SIZE
    there = [most + OFFSET * clip_norm, *[most] * (_EACH_WAY - 1)]
    return [Colluder(value) for value in (*there, *[-most] * _EACH_WAY)]


def declared_by_all() -> int:
    """Return the sum of what they declare."""
    return 2 * _EACH_WAY * DECLARED_SIZE
