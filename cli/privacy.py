"""Commands that answer what a run costs, before anybody starts one."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

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


@dataclass(frozen=True)
class Question:
    """What every question about rounds names: a client, an analysis, and how to answer."""

    p: P
    q: Q
    d: D
    cap: Cap = math.inf
    scheme: SchemeName = DEFAULT_SCHEME
    plot: Plot = None
    as_json: JsonFlag = False

    def cost(self, noise_multiplier: float) -> Analysis:
        """Return what a round costs with this noise."""
        return scheme_class(self.scheme)(Round(self.p, self.q, self.d, noise_multiplier, self.cap))

    def draw(self, curve: Callable[..., None], *args: object) -> None:
        """Draw a curve if one is asked for."""
        if self.plot is not None:
            curve(self.plot, *args)


def _command(ask: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of a `Question` beside its own."""
    shared = inspect.signature(Question, eval_str=True).parameters
    _, *own = inspect.signature(ask, eval_str=True).parameters.values()

    @functools.wraps(ask)
    def command(**given: Any) -> None:
        ask(Question(**{name: given.pop(name) for name in shared}), **given)

    needed = [each for each in shared.values() if each.default is each.empty]
    optional = [each for each in shared.values() if each.default is not each.empty]
    command.__signature__ = inspect.Signature([*needed, *own, *optional])  # type: ignore[attr-defined]
    return command


@_command
def epsilon(question: Question, sigma: Sigma, delta: Delta, rounds: RoundCount = 1) -> None:
    """Print the ε that these rounds cost at this δ."""
    cost = question.cost(sigma)
    value = epsilon_after([(cost, rounds)], delta)
    question.draw(draw_epsilon_over_rounds, cost, rounds, delta)
    _answer(question, "epsilon", cost, rounds, value, delta)


@_command
def delta(question: Question, sigma: Sigma, epsilon: Epsilon, rounds: RoundCount = 1) -> None:
    """Print the δ that these rounds reach at this ε."""
    cost = question.cost(sigma)
    value = delta_after([(cost, rounds)], epsilon)
    question.draw(draw_delta_over_epsilon, cost, rounds, epsilon)
    _answer(question, "delta", cost, rounds, epsilon, value)


@_command
def sigma(question: Question, epsilon: Epsilon, delta: Delta, rounds: RoundCount = 1) -> None:
    """Print the least noise multiplier that keeps these rounds within (ε, δ)."""
    least = least_sigma(
        scheme_class(question.scheme),
        p=question.p,
        q=question.q,
        d=question.d,
        cap=question.cap,
        epsilon=epsilon,
        delta=delta,
        rounds=rounds,
    )
    cost = question.cost(least)
    question.draw(draw_epsilon_over_sigma, cost, rounds, delta)
    _answer(question, "sigma", cost, rounds, epsilon, delta)


@_command
def rounds(question: Question, sigma: Sigma, epsilon: Epsilon, delta: Delta) -> None:
    """Print how many rounds fit into (ε, δ)."""
    cost = question.cost(sigma)
    most = most_rounds(cost, epsilon=epsilon, delta=delta)
    question.draw(draw_epsilon_over_rounds, cost, most, delta)
    _answer(question, "rounds", cost, most, epsilon, delta)


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
    question: Question, asked: str, cost: Analysis, rounds: int, epsilon: float, delta: float
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
    if question.as_json:
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
