"""Commands that answer what a run costs, before anybody starts one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from coinflower.accounting.analyses.names import DEFAULT_SCHEME, SCHEMES, scheme_class
from coinflower.accounting.analyses.schemes import Certified, Scheme
from coinflower.accounting.composition.calibration import least_sigma, most_rounds
from coinflower.accounting.composition.compose import delta_after, epsilon_after
from coinflower.accounting.composition.tightness import realised_delta_after, realised_epsilon_after
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
D = Annotated[int, typer.Option("-d", help="The client's data-set size, at least 0.")]
Sigma = Annotated[float, typer.Option("--sigma", help="Noise multiplier (noise / clip norm).")]
Epsilon = Annotated[float, typer.Option("--epsilon", help="Privacy loss ε, at least 0.")]
Delta = Annotated[float, typer.Option("--delta", help="δ, strictly between 0 and 1.")]
RoundCount = Annotated[int, typer.Option("--rounds", help="Number of rounds.")]
SCHEME_HELP = "; ".join(f"{name}: {scheme.title}" for name, scheme in SCHEMES.items()) + "."
SchemeName = Annotated[str, typer.Option("--scheme", help=SCHEME_HELP)]
Plot = Annotated[
    Path | None,
    typer.Option(
        "--plot",
        help="Draw the curve asked about (.png, .svg or .pdf).",
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
    scheme: SchemeName = DEFAULT_SCHEME,
    plot: Plot = None,
    as_json: JsonFlag = False,
) -> None:
    """What ε do these rounds cost at this δ?"""
    terms = _terms(scheme, p, q, d, sigma)
    value = epsilon_after([(terms, rounds)], delta)
    if plot is not None:
        draw_epsilon_over_rounds(plot, terms, rounds, delta)
    _answer("epsilon", terms, rounds, value, delta, as_json)


def delta(
    p: P,
    q: Q,
    d: D,
    sigma: Sigma,
    epsilon: Epsilon,
    rounds: RoundCount = 1,
    scheme: SchemeName = DEFAULT_SCHEME,
    plot: Plot = None,
    as_json: JsonFlag = False,
) -> None:
    """What δ do these rounds reach at this ε?"""
    terms = _terms(scheme, p, q, d, sigma)
    value = delta_after([(terms, rounds)], epsilon)
    if plot is not None:
        draw_delta_over_epsilon(plot, terms, rounds, epsilon)
    _answer("delta", terms, rounds, epsilon, value, as_json)


def sigma(
    p: P,
    q: Q,
    d: D,
    epsilon: Epsilon,
    delta: Delta,
    rounds: RoundCount = 1,
    scheme: SchemeName = DEFAULT_SCHEME,
    plot: Plot = None,
    as_json: JsonFlag = False,
) -> None:
    """What is the least noise multiplier that keeps these rounds within (ε, δ)?"""
    least = least_sigma(
        scheme_class(scheme), p=p, q=q, d=d, epsilon=epsilon, delta=delta, rounds=rounds
    )
    terms = _terms(scheme, p, q, d, least)
    if plot is not None:
        draw_epsilon_over_sigma(plot, terms, rounds, delta)
    _answer("sigma", terms, rounds, epsilon, delta, as_json)


def rounds(
    p: P,
    q: Q,
    d: D,
    sigma: Sigma,
    epsilon: Epsilon,
    delta: Delta,
    scheme: SchemeName = DEFAULT_SCHEME,
    plot: Plot = None,
    as_json: JsonFlag = False,
) -> None:
    """How many rounds fit into (ε, δ)?"""
    terms = _terms(scheme, p, q, d, sigma)
    most = most_rounds(terms, epsilon=epsilon, delta=delta)
    if plot is not None:
        draw_epsilon_over_rounds(plot, terms, most, delta)
    _answer("rounds", terms, most, epsilon, delta, as_json)


def _terms(scheme: str, p: float, q: float, d: int, sigma: float) -> Scheme:
    return scheme_class(scheme)(p=p, q=q, d=d, noise_multiplier=sigma)


def warn_of_scheme(scheme: type[Scheme]) -> str | None:
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
    asked: str, terms: Scheme, rounds: int, epsilon: float, delta: float, as_json: bool
) -> None:
    """Print the figure asked for, with the lower bound beside it and a warning where due."""
    realised: dict[str, float] = {}
    figures: dict[str, object] = {
        "epsilon": epsilon,
        "delta": delta,
        "sigma": terms.noise_multiplier,
        "rounds": rounds,
        "scheme": terms.name,
        "p": terms.p,
        "q": terms.q,
        "d": terms.d,
        "upper_bound": terms.is_upper_bound,
    }
    if isinstance(terms, Certified):
        if asked == "delta":
            realised["realised_delta"] = realised_delta_after(terms, rounds, epsilon)
        else:
            realised["realised_epsilon"] = realised_epsilon_after(terms, rounds, delta)
    figures |= realised
    warning = warn_of_scheme(type(terms))
    if warning is not None:
        figures["warning"] = warning
    if as_json:
        print_json(figures)
        return
    console.print(f"[bold]{asked} = {number(figures[asked])}[/bold]   ({terms.title})")
    say(
        f"{rounds:,} round{'s' * (rounds != 1)} at p = {terms.p:g}, q = {terms.q:g}, "
        f"d = {terms.d:,}, σ = {number(terms.noise_multiplier)}: "
        f"ε = {number(epsilon)} at δ = {number(delta)}."
    )
    for key, unit in (("realised_epsilon", "ε"), ("realised_delta", "δ")):
        if key in realised:
            say(
                f"A concrete data set is known to lose {unit} ≥ {lower_bound(realised[key])}: "
                "the truth lies in between."
            )
