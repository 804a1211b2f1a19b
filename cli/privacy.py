"""Commands that answer what a run costs, before anybody starts one."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import typer

from coinflower.accounting.analyses.analysis import Analysis
from coinflower.accounting.analyses.names import DEFAULT_SCHEME, SCHEMES, scheme_class
from coinflower.accounting.composition.calibration import least_sigma, most_rounds
from coinflower.accounting.composition.compose import delta_after, epsilon_after
from coinflower.accounting.composition.secrecy import (
    pays_in_delta,
    pays_in_epsilon,
    why_no_secret,
)
from coinflower.accounting.composition.tightness import realised_delta_after, realised_epsilon_after
from coinflower.accounting.mechanism import Round
from coinflower.accounting.plots import (
    draw_delta_over_epsilon,
    draw_epsilon_over_rounds,
    draw_epsilon_over_sigma,
    require_drawable,
)
from coinflower.cli.output import (
    NOT_AN_UPPER_BOUND,
    JsonFlag,
    lower_bound,
    number,
    print_json,
    warn_not_an_upper_bound,
)
from coinflower.deploy.terminal import console, say, warn

P = Annotated[float, typer.Option("-p", help="Participation probability, in (0, 1].")]
Q = Annotated[float, typer.Option("-q", help="Local sampling rate, in (0, 1].")]
D = Annotated[int, typer.Option("-d", help="Number of the client's records, at least 0.")]
Sigma = Annotated[float, typer.Option("--sigma", help="Noise multiplier (noise / clip norm).")]
Epsilon = Annotated[float, typer.Option("--epsilon", help="Privacy loss ε, at least 0.")]
Delta = Annotated[float, typer.Option("--delta", help="δ, strictly between 0 and 1.")]
Cap = Annotated[
    float,
    typer.Option(
        "--cap",
        help="Largest norm of a client's sum, in clip norms, at least 1 (default: no cap).",
        show_default=False,
    ),
]
RoundCount = Annotated[int, typer.Option("--rounds", help="Number of rounds.")]
SCHEME_HELP = "; ".join(f"{name}: {scheme.title}" for name, scheme in SCHEMES.items()) + "."
SchemeName = Annotated[str, typer.Option("--scheme", help=SCHEME_HELP)]
Plot = Annotated[
    Path | None,
    typer.Option(
        "--plot",
        help="Plot the curve to this file (.png, .svg or .pdf).",
        callback=require_drawable,
    ),
]


def epsilon(
    p: P,
    q: Q,
    d: D,
    sigma: Sigma,
    delta: Delta,
    rounds: RoundCount = 1,
    cap: Cap = math.inf,
    scheme: SchemeName = DEFAULT_SCHEME,
    plot: Plot = None,
    as_json: JsonFlag = False,
) -> None:
    """Print the ε that these rounds cost at this δ."""
    cost = scheme_class(scheme)(Round(p, q, d, sigma, cap))
    value = epsilon_after([(cost, rounds)], delta)
    if plot is not None:
        draw_epsilon_over_rounds(plot, cost, rounds, delta)
    _answer("epsilon", cost, rounds, value, delta, as_json)


def delta(
    p: P,
    q: Q,
    d: D,
    sigma: Sigma,
    epsilon: Epsilon,
    rounds: RoundCount = 1,
    cap: Cap = math.inf,
    scheme: SchemeName = DEFAULT_SCHEME,
    plot: Plot = None,
    as_json: JsonFlag = False,
) -> None:
    """Print the δ that these rounds reach at this ε."""
    cost = scheme_class(scheme)(Round(p, q, d, sigma, cap))
    value = delta_after([(cost, rounds)], epsilon)
    if plot is not None:
        draw_delta_over_epsilon(plot, cost, rounds, epsilon)
    _answer("delta", cost, rounds, epsilon, value, as_json)


def sigma(
    p: P,
    q: Q,
    d: D,
    epsilon: Epsilon,
    delta: Delta,
    rounds: RoundCount = 1,
    cap: Cap = math.inf,
    scheme: SchemeName = DEFAULT_SCHEME,
    plot: Plot = None,
    as_json: JsonFlag = False,
) -> None:
    """Print the least noise multiplier that keeps these rounds within (ε, δ)."""
    kind = scheme_class(scheme)
    least = least_sigma(kind, p=p, q=q, d=d, epsilon=epsilon, delta=delta, rounds=rounds, cap=cap)
    cost = kind(Round(p, q, d, least, cap))
    if plot is not None:
        draw_epsilon_over_sigma(plot, cost, rounds, delta)
    _answer("sigma", cost, rounds, epsilon, delta, as_json)


def rounds(
    p: P,
    q: Q,
    d: D,
    sigma: Sigma,
    epsilon: Epsilon,
    delta: Delta,
    cap: Cap = math.inf,
    scheme: SchemeName = DEFAULT_SCHEME,
    plot: Plot = None,
    as_json: JsonFlag = False,
) -> None:
    """Print how many rounds fit into (ε, δ)."""
    cost = scheme_class(scheme)(Round(p, q, d, sigma, cap))
    most = most_rounds(cost, epsilon=epsilon, delta=delta)
    if plot is not None:
        draw_epsilon_over_rounds(plot, cost, most, delta)
    _answer("rounds", cost, most, epsilon, delta, as_json)


def warn_of_scheme(scheme: type[Analysis]) -> str | None:
    """Warn of a scheme that does not bound what a client loses; returns why, None if it does."""
    if scheme.is_chargeable:
        return None
    if not scheme.is_upper_bound:
        warn_not_an_upper_bound(scheme.name)
        return NOT_AN_UPPER_BOUND
    warn(
        f"scheme {scheme.name!r} is {NOT_AN_UPPER_BOUND} for a client of a federation; never "
        "report its figures as such."
    )
    return f"{NOT_AN_UPPER_BOUND} for a client of a federation"


def _answer(
    asked: str, cost: Analysis, rounds: int, epsilon: float, delta: float, as_json: bool
) -> None:
    """Print the figure asked for, with the lower bound beside it and a warning where due."""
    realised: dict[str, float] = {}
    pays = True
    round_ = cost.round
    figures: dict[str, object] = {
        "epsilon": epsilon,
        "delta": delta,
        "sigma": round_.noise_multiplier,
        "rounds": rounds,
        "scheme": cost.name,
        "p": round_.p,
        "q": round_.q,
        "d": round_.d,
        **({"cap": round_.cap} if round_.is_capped else {}),
        "upper_bound": cost.is_upper_bound,
    }
    if cost.hides_coin:
        if asked == "delta":
            realised["realised_delta"] = realised_delta_after(round_, rounds, epsilon)
            pays = pays_in_delta(cost, rounds, epsilon)
        else:
            realised["realised_epsilon"] = realised_epsilon_after(round_, rounds, delta)
            pays = pays_in_epsilon(cost, rounds, delta)
        figures["secret_coin_pays"] = pays
    figures |= realised
    warning = warn_of_scheme(type(cost))
    if warning is not None:
        figures["warning"] = warning
    if as_json:
        print_json(figures)
        return
    console.print(f"[bold]{asked} = {number(figures[asked])}[/bold]   ({cost.title})")
    say(
        f"{rounds:,} round{'s' * (rounds != 1)} at {round_}: "
        f"ε = {number(epsilon)} at δ = {number(delta)}."
    )
    for key, unit in (("realised_epsilon", "ε"), ("realised_delta", "δ")):
        if key in realised:
            say(
                f"Lower bound: some data set loses {unit} ≥ {lower_bound(realised[key])}; "
                "the truth lies in between."
            )
    if not pays:
        say(why_no_secret(round_))
