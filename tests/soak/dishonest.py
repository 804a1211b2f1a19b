"""Nodes of people who wish a federation ill, among the honest ones.

Run as ``python dishonest.py ADDRESS``: one resident node of each kind, until SIGTERM. They agree to
everything, say that they take part in every round, and

- two that conspire declare as much as the server takes and send as much as it adds up, with either
  sign;
- one declares an absurd size;
- one sends what is no sum: a wrong length, NaN, numbers near the largest, text.
"""

import sys

import numpy as np
from flwr.app import ConfigRecord, Message, RecordDict

from coinflower.protocol import messages
from coinflower.protocol.terms import Terms
from coinflower.server.aggregation import largest_norm
from coinflower.server.clients.roster import SizeLimits
from tests.soak.machine import run_nodes

LARGEST = SizeLimits().each


class Dishonest:
    """A ClientApp that has no data.

    Args:
        size: What it declares.
        answer: What it sends for the sum, given the terms, the round and the number of parameters.
    """

    def __init__(self, size, answer):
        self._size = size
        self._answer = answer

    def __call__(self, message, _):
        asked = message.content.config_records[messages.ASK]
        kind = message.metadata.message_type.partition(".")[2]
        fields = {
            messages.ENROLLED: True,
            messages.DECLARED_SIZE: self._size,
            messages.REASON: "",
        }
        if kind == messages.INVITE:
            fields = {messages.COINS: [True] * asked[messages.COUNT]}
        if kind == messages.GRADIENT:
            terms = Terms.from_json(asked[messages.TERMS])
            length = len(asked[messages.WEIGHTS]) // 4
            fields = {messages.SUM: self._answer(terms, asked[messages.ROUND], length)}
        return Message(RecordDict({messages.ANSWER: ConfigRecord(fields)}), reply_to=message)


def extreme(sign):
    """Send the longest vector that counts."""

    def answer(terms, _, length):
        vector = np.zeros(length, "<f4")
        vector[0] = sign * 0.999 * largest_norm(terms, LARGEST, length)
        return vector.tobytes()

    return answer


def garbled(_, round_, length):
    """Send what is no sum, another thing each round."""
    kinds = [
        np.zeros(length + 1, "<f4").tobytes(),
        np.full(length, np.nan, "<f4").tobytes(),
        np.full(length, 3e38, "<f4").tobytes(),
        "no vector at all",
    ]
    return kinds[round_ % len(kinds)]


KINDS = [
    Dishonest(LARGEST, extreme(1)),
    Dishonest(LARGEST, extreme(-1)),
    Dishonest(2**62, extreme(1)),
    Dishonest(100, garbled),
]


def main(address):
    run_nodes(address, [(app, {}) for app in KINDS])


if __name__ == "__main__":
    main(*sys.argv[1:])
