"""The command that puts schemes side by side."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Annotated, Any

import typer

from coinflower.accounting.analyses.analysis import Analysis
from coinflower.accounting.analyses.baselines import WeakClientSampling
from coinflower.accounting.analyses.certified import Certified
from coinflower.accounting.analyses.client_unit import WholeClient
from coinflower.accounting.analyses.names import SCHEMES, analyses_of
from coinflower.accounting.analyses.realised import Realised
from coinflower.accounting.composition.calibration import least_sigma
from coinflower.accounting.composition.compose import delta_after, epsilon_after
from coinflower.accounting.composition.secrecy import secret_coin_pays, why_no_secret
from coinflower.accounting.composition.tightness import (
    realised_delta_after,
    realised_epsilon_after,
    realised_sigma_after,
)
from coinflower.accounting.errors import UserError
from coinflower.accounting.mechanism import Round
from coinflower.accounting.plots import draw_schemes_over_epsilon, draw_schemes_over_sigma
from coinflower.cli.output import JsonFlag, lower_bound, number, print_json, print_table
from coinflower.cli.privacy import Cap, D, P, Plot, Q, RoundCount
from coinflower.deploy.terminal import say


def compare(
    p: P,
    q: Q,
    d: D,
    sigma: Annotated[
        float | None, typer.Option("--sigma", help="Noise multiplier; leave out to compute it.")
    ] = None,
    epsilon: Annotated[
        float | None, typer.Option("--epsilon", help="Leave out to compute ε.")
    ] = None,
    delta: Annotated[float | None, typer.Option("--delta", help="Leave out to compute δ.")] = None,
    rounds: RoundCount = 1,
    cap: Cap = math.inf,
    plot: Plot = None,
    as_json: JsonFlag = False,
) -> None:
    """Compare all schemes, with the realised lower bound. Give two of σ, ε and δ."""
    if sigma is None and epsilon is not None and delta is not None:
        asked = "sigma"
        round_ = Round(p, q, d, 1.0, cap)
        values = _sigmas(round_, rounds, epsilon, delta)
        span = (min(values.values()) or values["cs"], max(values.values()))
    elif sigma is not None and epsilon is None and delta is not None:
        asked, span = "epsilon", (sigma / 2, sigma * 2)
        round_ = Round(p, q, d, sigma, cap)
        values = _epsilons(round_, rounds, delta)
    elif sigma is not None and epsilon is not None and delta is None:
        asked = "delta"
        round_ = Round(p, q, d, sigma, cap)
        values = _deltas(round_, rounds, epsilon)
    else:
        raise UserError(
            "Give exactly two of --sigma, --epsilon and --delta; the third is computed."
        )
    if plot is not None and delta is not None:
        draw_schemes_over_sigma(plot, round_, rounds=rounds, delta=delta, span=span)
    elif plot is not None and epsilon is not None:
        draw_schemes_over_epsilon(plot, round_, rounds=rounds, epsilon=epsilon)
    given = {
        **{"p": p, "q": q, "d": d, **({"cap": cap} if round_.is_capped else {})},
        **{"sigma": sigma, "epsilon": epsilon, "delta": delta, "rounds": rounds},
    }
    whole = _whole_client(round_, rounds, epsilon, delta)
    pays = secret_coin_pays(
        asked, hidden=values[Certified.name], seen=values[WeakClientSampling.name]
    )
    kinds: dict[str, type[Analysis]] = {**SCHEMES, Realised.name: Realised}
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
        told = {"schemes": rows, "whole_client": whole, "secret_coin_pays": pays}
        print_json({**given, "asked": asked, **told})
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
    if whole is not None:
        say(f"And for the client as a whole, all its records at once: {asked} = {number(whole)}.")
    if not pays:
        say(why_no_secret(round_))


def _whole_client(
    round_: Round, rounds: int, epsilon: float | None, delta: float | None
) -> float | None:
    """Return what is asked for, ε or δ, with the client as the unit; None if noise is asked for."""
    cost = [(WholeClient(round_), rounds)]
    if epsilon is None and delta is not None:
        return epsilon_after(cost, delta)
    if delta is None and epsilon is not None:
        return delta_after(cost, epsilon)
    return None


def _sigmas(round_: Round, rounds: int, epsilon: float, delta: float) -> dict[str, float]:
    setting: dict[str, Any] = {"p": round_.p, "q": round_.q, "d": round_.d, "cap": round_.cap}
    values = {
        name: least_sigma(kind, **setting, epsilon=epsilon, delta=delta, rounds=rounds)
        for name, kind in analyses_of(round_).items()
    }
    enough = replace(round_, noise_multiplier=values[Certified.name])
    return {**values, Realised.name: realised_sigma_after(enough, rounds, epsilon, delta)}


def _epsilons(round_: Round, rounds: int, delta: float) -> dict[str, float]:
    values = {
        name: epsilon_after([(kind(round_), rounds)], delta)
        for name, kind in analyses_of(round_).items()
    }
    return {**values, Realised.name: realised_epsilon_after(round_, rounds, delta)}


def _deltas(round_: Round, rounds: int, epsilon: float) -> dict[str, float]:
    values = {
        name: delta_after([(kind(round_), rounds)], epsilon)
        for name, kind in analyses_of(round_).items()
    }
    return {**values, Realised.name: realised_delta_after(round_, rounds, epsilon)}
