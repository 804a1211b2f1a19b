"""The command that puts schemes side by side."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from coinflower.accounting.analyses.names import SCHEMES
from coinflower.accounting.analyses.realised import Realised
from coinflower.accounting.analyses.schemes import Certified, Scheme
from coinflower.accounting.composition.calibration import least_sigma
from coinflower.accounting.composition.compose import delta_after, epsilon_after
from coinflower.accounting.composition.tightness import (
    realised_delta_after,
    realised_epsilon_after,
    realised_sigma_after,
)
from coinflower.accounting.errors import UserError
from coinflower.accounting.plots import draw_schemes_over_epsilon, draw_schemes_over_sigma
from coinflower.cli.output import JsonFlag, lower_bound, number, print_json, print_table
from coinflower.cli.privacy import D, P, Plot, Q, RoundCount


def compare(
    p: P,
    q: Q,
    d: D,
    sigma: Annotated[
        float | None, typer.Option("--sigma", help="Noise multiplier; leave out to ask for it.")
    ] = None,
    epsilon: Annotated[
        float | None, typer.Option("--epsilon", help="Leave out to ask for ε.")
    ] = None,
    delta: Annotated[float | None, typer.Option("--delta", help="Leave out to ask for δ.")] = None,
    rounds: RoundCount = 1,
    plot: Plot = None,
    as_json: JsonFlag = False,
) -> None:
    """All schemes side by side, with the realised lower bound. Give two of σ, ε, δ."""
    setting: dict[str, Any] = {"p": p, "q": q, "d": d}
    if sigma is None and epsilon is not None and delta is not None:
        asked, values = "sigma", _sigmas(setting, rounds, epsilon, delta)
        if plot is not None:
            span = (min(values.values()) or values["cs"], max(values.values()))
            draw_schemes_over_sigma(plot, **setting, rounds=rounds, delta=delta, span=span)
    elif sigma is not None and epsilon is None and delta is not None:
        asked, values = "epsilon", _epsilons(setting, rounds, sigma, delta)
        if plot is not None:
            span = (sigma / 2, sigma * 2)
            draw_schemes_over_sigma(plot, **setting, rounds=rounds, delta=delta, span=span)
    elif sigma is not None and epsilon is not None and delta is None:
        asked, values = "delta", _deltas(setting, rounds, sigma, epsilon)
        if plot is not None:
            draw_schemes_over_epsilon(plot, **setting, rounds=rounds, sigma=sigma, epsilon=epsilon)
    else:
        raise UserError("Give exactly two of --sigma, --epsilon and --delta; the third is asked.")
    given = {**setting, "sigma": sigma, "epsilon": epsilon, "delta": delta, "rounds": rounds}
    kinds: dict[str, type[Scheme]] = {**SCHEMES, Realised.name: Realised}
    if as_json:
        rows = [
            {
                "scheme": name,
                asked: value,
                "upper_bound": kinds[name].is_upper_bound,
                "title": kinds[name].title,
            }
            for name, value in values.items()
        ]
        print_json({**given, "asked": asked, "schemes": rows})
        return
    known = ", ".join(
        f"{key} = {number(value)}" for key, value in given.items() if value is not None
    )
    print_table(
        f"{asked} by scheme ({known})",
        ["scheme", asked, "what it is"],
        [
            [
                name,
                lower_bound(value) if name == Realised.name else value,
                kinds[name].title,
            ]
            for name, value in values.items()
        ],
    )


def _sigmas(setting: dict[str, Any], rounds: int, epsilon: float, delta: float) -> dict[str, float]:
    values = {
        name: least_sigma(kind, **setting, epsilon=epsilon, delta=delta, rounds=rounds)
        for name, kind in SCHEMES.items()
    }
    certified = Certified(**setting, noise_multiplier=values[Certified.name])
    return {**values, Realised.name: realised_sigma_after(certified, rounds, epsilon, delta)}


def _epsilons(setting: dict[str, Any], rounds: int, sigma: float, delta: float) -> dict[str, float]:
    terms = {name: kind(**setting, noise_multiplier=sigma) for name, kind in SCHEMES.items()}
    values = {name: epsilon_after([(each, rounds)], delta) for name, each in terms.items()}
    realised = realised_epsilon_after(terms[Certified.name], rounds, delta)
    return {**values, Realised.name: realised}


def _deltas(setting: dict[str, Any], rounds: int, sigma: float, epsilon: float) -> dict[str, float]:
    terms = {name: kind(**setting, noise_multiplier=sigma) for name, kind in SCHEMES.items()}
    values = {name: delta_after([(each, rounds)], epsilon) for name, each in terms.items()}
    realised = realised_delta_after(terms[Certified.name], rounds, epsilon)
    return {**values, Realised.name: realised}
