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
from coinflower.server.roster import SizeLimits

OFFSET = 3.0
"""What all of them add to the last coordinate, in clip norms."""
DECLARED_SIZE = SizeLimits().each
_EACH_WAY = 4


class Colluder:
    """A node that agrees to everything and always sends the same.

    Args:
        value: What it adds to the last coordinate.
    """

    def __init__(self, value: float) -> None:
        self._value = value

    def answer(self, message: Message) -> Message:
        """Return the answer to any question."""
        asked = message.content.config_records[messages.ASK]
        answer = ConfigRecord()
        if messages.COUNT in asked:
            answer[messages.COINS] = [True] * int(asked[messages.COUNT])  # type: ignore[arg-type]
        elif messages.WEIGHTS in asked:
            content = asked[messages.WEIGHTS]
            assert isinstance(content, bytes)
            vector = np.zeros(len(content) // 4, dtype=np.float32)
            vector[-1] = self._value
            answer[messages.SUM] = messages.vector_to_bytes(vector)
        else:
            answer[messages.ENROLLED] = True
            answer[messages.DECLARED_SIZE] = DECLARED_SIZE
            answer[messages.REASON] = ""
        return Message(RecordDict({messages.ANSWER: answer}), reply_to=message)


def conspiracy(clip_norm: float) -> Sequence[Colluder]:
    """Return colluders whose answers are to arrive in this order, after the honest client's."""
    most = clip_norm * DECLARED_SIZE
    there = [most + OFFSET * clip_norm, *[most] * (_EACH_WAY - 1)]
    return [Colluder(value) for value in (*there, *[-most] * _EACH_WAY)]


def declared_by_all() -> int:
    """Return the sum of what they declare."""
    return 2 * _EACH_WAY * DECLARED_SIZE
