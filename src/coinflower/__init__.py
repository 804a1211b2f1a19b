"""Federated DP-SGD with random participation, and what it really costs.

The names in ``__all__``, with `coinflower.opacus` and `coinflower.dp_accounting`, are the public
interface. They and their meaning stay within a major version. The names under which ledgers keep
their charges, and the prices behind them, never change. Everything else may change at any time.

The folders of this package lie at the top of the repository; here are links to them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from coinflower.accounting.ledger.entries import Budget
    from coinflower.accounting.ledger.ledger import Ledger
    from coinflower.accounting.mechanism import Round
    from coinflower.accounting.questions import epsilon, epsilon_at_least, noise_multiplier, rounds
    from coinflower.federation import ClientResult, RunResult, run
    from coinflower.learning.models.saving import load_model

__all__ = [
    "Budget",
    "ClientResult",
    "Ledger",
    "Round",
    "RunResult",
    "epsilon",
    "epsilon_at_least",
    "load_model",
    "noise_multiplier",
    "rounds",
    "run",
]

# Looked up at first use: whoever asks for an ε need not wait for torch and Flower.
_HOMES = {
    "Budget": "coinflower.accounting.ledger.entries",
    "ClientResult": "coinflower.federation",
    "Ledger": "coinflower.accounting.ledger.ledger",
    "Round": "coinflower.accounting.mechanism",
    "RunResult": "coinflower.federation",
    "epsilon": "coinflower.accounting.questions",
    "epsilon_at_least": "coinflower.accounting.questions",
    "load_model": "coinflower.learning.models.saving",
    "noise_multiplier": "coinflower.accounting.questions",
    "rounds": "coinflower.accounting.questions",
    "run": "coinflower.federation",
}


def __getattr__(name: str) -> object:
    if name in ("dp_accounting", "opacus"):
        return import_module(f"{__name__}.{name}")
    try:
        home = _HOMES[name]
    except KeyError:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None
    return getattr(import_module(home), name)


def __dir__() -> list[str]:
    return [*globals(), *__all__, "dp_accounting", "opacus"]
