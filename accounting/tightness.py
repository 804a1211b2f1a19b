"""How tight a certified figure is: what a concrete data set is known to lose."""

from __future__ import annotations

from collections.abc import Iterator

from accounting.composition import Rounds, delta_after, epsilon_after
from accounting.realised import Realised, realised_delta, realised_epsilon
from accounting.schemes import Scheme

# Composition rounds ε up by a small fraction of a per cent; giving back a whole one keeps the
# composed figure a lower bound.
_ROUNDED_UP_AT_MOST = 0.01
_ANGLES = (0.25, 0.6, 0.95, 1.3)


def realised_epsilon_after(terms: Scheme, rounds: int, delta: float) -> float:
    """Return a lower bound on the worst-case ε at ``delta`` after ``rounds`` rounds.

    One round: the best geometry found. More rounds: the best of a few geometries, each held
    through all rounds, which a data set of constant gradients does.

    Args:
        terms: p, q, d and noise of a round; the analysis plays no part.
        rounds: At least 1.
        delta: In (0, 1).

    Returns:
        ε that no honest analysis can go below.
    """
    if rounds == 1:
        return realised_epsilon(terms, delta, start=terms.epsilon(delta))[0]
    composed = max(epsilon_after(pairs, delta) for pairs in _candidates(terms, rounds))
    return composed * (1 - _ROUNDED_UP_AT_MOST)


def realised_delta_after(terms: Scheme, rounds: int, epsilon: float) -> float:
    """Return a lower bound on the worst-case δ at ``epsilon`` after ``rounds`` rounds."""
    if rounds == 1:
        return realised_delta(terms, epsilon)[0]
    lowered = epsilon / (1 - _ROUNDED_UP_AT_MOST)
    return max(delta_after(pairs, lowered) for pairs in _candidates(terms, rounds))


def _candidates(terms: Scheme, rounds: int) -> Iterator[Rounds]:
    for angle in _ANGLES:
        yield [(Realised.of(terms, angle=angle), rounds)]
