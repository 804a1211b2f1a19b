"""The three questions a server asks, and the names their parts have on the wire.

Every message is one flat record: Flower spends several requests on each object of a message, so a
vector travels as bytes beside the other fields.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

ENROL = "enrol"
"""Do you agree to these terms? Answered by yes and the declared size, or by a refusal."""
INVITE = "invite"
"""Will you take part in these rounds? Answered by one coin a round."""
GRADIENT = "gradient"
"""Here is the model of a round: send the (noisy) sum of your clipped gradients."""

ASK = "ask"
ANSWER = "answer"
WEIGHTS = "weights"
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

FAILURE_REASON = "The client could not handle this message."
"""All that the server ever learns about a failure; the details are in the client's own log."""

SALT_BYTES = 16
"""Random bytes beside a sum. The SuperLink takes equal objects only once, so without them traffic
would show which clients have the same to say: nothing."""


def vector_to_bytes(vector: npt.NDArray[np.float32]) -> bytes:
    """Return a vector as the little-endian single-precision numbers that travel."""
    return vector.astype("<f4", copy=False).tobytes()


def vector_from_bytes(content: object, length: int) -> npt.NDArray[np.float32]:
    """Return the vector that was sent.

    Raises:
        ValueError: Not bytes, another length, or values that are not finite.
    """
    if not isinstance(content, bytes):
        raise ValueError(f"a vector came as {type(content).__name__}, not as bytes")
    if len(content) != 4 * length:
        raise ValueError(f"a vector of {len(content)} bytes came instead of {4 * length}")
    vector = np.frombuffer(content, dtype="<f4").astype(np.float32)
    if not np.isfinite(vector).all():
        raise ValueError("a vector with values that are not finite came")
    return vector
