"""What mode masked adds to the terms of an experiment whose clients are known."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from coinflower.accounting.analyses.binomial import most_samples
from coinflower.accounting.masked import NoiseShares, chosen_shares


def masked_fields(
    *,
    sizes: Sequence[int],
    q: float,
    cap: float,
    clip_norm: float,
    noise_multiplier: float,
    notaries: Sequence[str],
    threshold: int | None = None,
    colluders: int | None = None,
) -> dict[str, Any]:
    """Return the fields of the terms, with the fewest bits that hold every sum.

    Args:
        sizes: Declared sizes of all clients.
        q: Sampling rate.
        cap: Bound on each client's sum, in clip norms.
        clip_norm: Clip norm.
        noise_multiplier: The noise that is charged.
        notaries: Public keys of the notaries.
        threshold: How many clients a sum has at least; None chooses.
        colluders: How many of them may collude; None chooses.

    Raises:
        ValueError: The threshold is beyond the clients, or no ring is large enough.
    """
    clients = len(sizes)
    threshold, colluders = chosen_shares(clients, threshold, colluders)
    shares = NoiseShares(
        noise_multiplier=noise_multiplier,
        clip_norm=clip_norm,
        threshold=threshold,
        colluders=colluders,
    )
    longest = sum(min(most_samples(size, q), cap) for size in sizes) / clients
    return {
        "threshold": threshold,
        "colluders": colluders,
        "ring_bits": shares.ring_bits(clients=clients, longest=longest),
        "notaries": tuple(notaries),
    }
