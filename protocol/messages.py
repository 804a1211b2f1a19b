"""The three questions a server asks, and the names their parts have on the wire."""

from __future__ import annotations

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
VECTOR = "vector"
TERMS = "terms"
ROUND = "round"
COUNT = "count"
ENROLLED = "enrolled"
DECLARED_SIZE = "declared-size"
REASON = "reason"
COINS = "coins"
