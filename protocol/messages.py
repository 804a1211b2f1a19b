"""The questions a server asks, and the names their parts have on the wire.

Every message is one flat record: Flower spends several requests on each object of a message, so a
vector travels as bytes beside the other fields.

Every record holds fresh random bytes. Flower's SuperLink names what it stores by its hash and gives
it to whoever knows the name: a client could else find another's answer by trying all answers.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Literal

import numpy as np
import numpy.typing as npt

from coinflower.accounting.errors import UserError

ENROL = "enrol"
"""Do you agree to these terms? Answered by yes and the declared size, or by a refusal."""
INVITE = "invite"
"""Will you take part in these rounds? Answered by one coin per round."""
GRADIENT = "gradient"
"""Here is the model of a round: send the (noisy) sum of your clipped gradients."""

VOUCH = "vouch"
"""To a notary: what do you remember of these clients' ledgers? Answered by a voucher for each."""
OPEN = "open"
"""To a notary: take the masks off the sum of these clients. Answered by the sum of their masks."""

ASK = "ask"
ANSWER = "answer"
WEIGHTS = "weights"
HALF_WEIGHTS = "half-weights"
"""The weights in half precision; a question has these or ``WEIGHTS``."""
SUM = "sum"
SALT = "salt"
VECTOR = "vector"
TERMS = "terms"
ROUND = "round"
COUNT = "count"
ENROLLED = "enrolled"
DECLARED_SIZE = "declared-size"
REASON = "reason"
COINS = "coins"
ECHO = "echo"
"""In an answer, a sealed note of the client's ledger; in a record beside a question, the last one
that came back. See `coinflower.accounting.ledger.echo`."""

TICKET = "ticket"
"""In an answer in mode masked, what lets notaries take off its mask; see
`coinflower.masking.tickets`."""
TICKETS = "tickets"
REQUEST = "request"
"""What a client that enrols asks of the notaries; see `coinflower.masking.vouchers`."""
REQUESTS = "requests"
VOUCHERS = "vouchers"
NOTARY = "notary"
"""In an answer to ``ENROL``: the public key of a notary, which is no client."""
LENGTH = "length"
ASKER = "asker"
OPENED = "opened"
MASKS = "masks"
BAD = "bad"
PROOF = "proof"

VECTORS = frozenset({WEIGHTS, HALF_WEIGHTS, SUM})
"""Fields that may be as large as a model: whoever reads them is given a view, not bytes."""

FAILURE_REASON = "The client could not handle this message."
"""All that the server ever learns about a failure; the details are in the client's own log."""

SALT_BYTES = 128
"""Fewest random bytes in a record: two Protobuf bytes state the length of this many and of all that
`salt` returns, so that padding is exact."""
PADDED_BYTES = 512
"""Records that are shorter than this before they are salted have one size afterwards."""


def salt(size: int = 0) -> bytes:
    """Return random bytes that hide what a record of so many bytes says, and how long that is.

    The SuperLink also takes equal objects only once: unsalted, traffic would show which clients
    have the same to say.
    """
    return os.urandom(SALT_BYTES + -size % PADDED_BYTES)


def vector_to_view(vector: npt.NDArray[np.float32]) -> memoryview:
    """Return a vector as the little-endian single-precision numbers that travel, not copied."""
    return np.ascontiguousarray(vector, dtype="<f4").data.cast("B")


Precision = Literal["single", "half"]
"""How exactly the model is told to clients. It is public, so that this costs no privacy."""


def weights_to_field(
    weights: npt.NDArray[np.float32], precision: Precision
) -> tuple[str, memoryview]:
    """Return the model as it travels, and the name of its field.

    Raises:
        ValueError: A weight is too large for half precision.
    """
    if precision == "single":
        return WEIGHTS, vector_to_view(weights)
    with np.errstate(over="ignore"):
        halves = weights.astype("<f2")
    if not np.isfinite(halves).all():
        raise UserError(
            f"The model has a weight of {np.abs(weights).max():g}, and half precision ends at "
            f'{np.finfo(np.float16).max:g}; continue with download_precision = "single".'
        )
    return HALF_WEIGHTS, halves.data.cast("B")


def weights_in(question: Mapping[str, object]) -> object:
    """Return the weights of a question as single-precision numbers, whichever way they came.

    What comes in single precision is returned as it is, and checked by `vector_from_bytes`.

    Raises:
        ValueError: There is no model in the question, or two, or halves that are none.
    """
    if (WEIGHTS in question) == (HALF_WEIGHTS in question):
        raise ValueError(f"a question must have either {WEIGHTS} or {HALF_WEIGHTS}")
    if WEIGHTS in question:
        return question[WEIGHTS]
    halves = question[HALF_WEIGHTS]
    if not isinstance(halves, bytes | bytearray | memoryview) or len(halves) % 2:
        raise ValueError("weights in half precision must be an even number of bytes")
    return vector_to_view(np.frombuffer(halves, dtype="<f2").astype(np.float32))


def vector_to_bytes(vector: npt.NDArray[np.float32]) -> bytes:
    """Return a copy of a vector as it travels."""
    return bytes(vector_to_view(vector))


def vector_from_bytes(content: object, length: int) -> npt.NDArray[np.float32]:
    """Return the vector that was sent, in the memory in which it came if nobody else has that.

    Raises:
        ValueError: Not bytes, another length, or values that are not finite.
    """
    if not isinstance(content, bytes | bytearray | memoryview):
        raise ValueError(f"a vector came as {type(content).__name__}, not as bytes")
    if len(content) != 4 * length:
        raise ValueError(f"a vector of {len(content)} bytes came instead of {4 * length}")
    received = np.frombuffer(content, dtype="<f4")
    vector = received.astype(np.float32, copy=not received.flags.writeable)
    if not np.isfinite(vector).all():
        raise ValueError("a vector with values that are not finite came")
    return vector
