"""What a tracker is told of a round: figures of the server's journal, and not all of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from coinflower.protocol.modes import Mode

# How many took part, and what shows it: clients' coins, if only participants are asked.
_FROM_COINS = frozenset(
    {
        "participants",
        "asked",
        "answered",
        "dropped",
        "expected_batch",
        "seconds",
        "received_bytes",
    }
)


def figures_of(row: Mapping[str, Any], mode: Mode) -> dict[str, float]:
    """Return the figures of a journal's line that a tracker may show, by name.

    A tracker has more readers than the journal. So where ε counts on secret coins, it is not told
    how many clients took part.
    """
    tells_coins = mode.hides_coins and not mode.answers_always
    return {
        name: value
        for name, value in _flat(row)
        if name != "round" and not (tells_coins and name in _FROM_COINS)
    }


def _flat(row: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    for name, value in row.items():
        if isinstance(value, Mapping):
            yield from _flat(value)
        elif isinstance(value, int | float):
            yield name, float(value)
