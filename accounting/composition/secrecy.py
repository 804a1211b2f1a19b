"""What it buys to keep a client's coin secret: the price if everybody sees it, beside one's own."""

from __future__ import annotations

from coinflower.accounting.analyses.analysis import Analysis
from coinflower.accounting.analyses.baselines import WeakClientSampling
from coinflower.accounting.composition.compose import delta_after, epsilon_after
from coinflower.accounting.mechanism import Round

# By how much two figures may differ and still be the same to rounding: ε and σ are composed and
# calibrated to about a thousandth, which moves δ by about a hundredth.
_ROUNDING = {"epsilon": 1e-3, "sigma": 1e-3, "delta": 1e-2}


def secret_coin_pays(figure: str, *, hidden: float, seen: float) -> bool:
    """Return whether a figure is lower, by more than rounding, for a coin that nobody sees.

    Args:
        figure: ``epsilon``, ``delta`` or ``sigma``.
        hidden: The figure if the coin is secret.
        seen: The figure if everybody sees who takes part.
    """
    return seen > hidden * (1 + _ROUNDING[figure])


def pays_in_epsilon(cost: Analysis, rounds: int, delta: float) -> bool:
    """Return whether ε at ``delta`` would be larger if everybody saw who takes part."""
    hidden, seen = (
        epsilon_after([(each, rounds)], delta) for each in (cost, WeakClientSampling(cost.round))
    )
    return secret_coin_pays("epsilon", hidden=hidden, seen=seen)


def pays_in_delta(cost: Analysis, rounds: int, epsilon: float) -> bool:
    """Return whether δ at ``epsilon`` would be larger if everybody saw who takes part."""
    hidden, seen = (
        delta_after([(each, rounds)], epsilon) for each in (cost, WeakClientSampling(cost.round))
    )
    return secret_coin_pays("delta", hidden=hidden, seen=seen)


def why_no_secret(round_: Round) -> str:
    """Return one sentence on a secret coin that buys nothing."""
    if round_.p == 1:
        return "Secrecy of the coin buys nothing at p = 1: everybody always takes part."
    advice = "" if round_.is_capped else "; try --cap"
    return (
        "Secrecy of the coin buys nothing here: participation in plain sight (wcs) costs the "
        f"same{advice}."
    )
