"""Commands that answer what a run costs, before anybody starts one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from accounting.calibration import least_sigma, most_rounds, splits_for_batch
from accounting.composition import delta_after, epsilon_after
from accounting.schemes import DEFAULT_SCHEME, SCHEMES, Certified, Scheme, scheme_class
from accounting.tightness import realised_delta_after, realised_epsilon_after
from deploy.cli_output import (
    NOT_AN_UPPER_BOUND,
    JsonFlag,
    console,
    number,
    print_json,
    print_table,
    warn,
)

P = Annotated[float, typer.Option("-p", help="Participation probability, in (0, 1].")]
Q = Annotated[float, typer.Option("-q", help="Local sampling rate, in (0, 1].")]
D = Annotated[int, typer.Option("-d", help="The client's data-set size, at least 0.")]
Sigma = Annotated[float, typer.Option("--sigma", help="Noise multiplier (noise / clip norm).")]
Epsilon = Annotated[float, typer.Option("--epsilon", help="Privacy loss ε, at least 0.")]
Delta = Annotated[float, typer.Option("--delta", help="δ, strictly between 0 and 1.")]
RoundCount = Annotated[int, typer.Option("--rounds", help="Number of rounds.")]
SchemeName = Annotated[
    str,
    typer.Option(
        "--scheme",
        help="; ".join(f"{name}: {scheme.title}" for name, scheme in SCHEMES.items()) + ".",
    ),
]
Plot = Annotated[
    Path | None, typer.Option("--plot", help="Draw the curve asked about (.png, .svg or .pdf).")
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
    _answer("epsilon", terms, rounds, value, delta, as_json)
    if plot is not None:
        from experiments.curves import draw_epsilon_over_rounds

        draw_epsilon_over_rounds(plot, terms, rounds, delta)


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
    _answer("delta", terms, rounds, epsilon, value, as_json)
    if plot is not None:
        from experiments.curves import draw_delta_over_epsilon

        draw_delta_over_epsilon(plot, terms, rounds, epsilon)


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
    _answer("sigma", terms, rounds, epsilon, delta, as_json)
    if plot is not None:
        from experiments.curves import draw_epsilon_over_sigma

        draw_epsilon_over_sigma(plot, terms, rounds, delta)


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
    _answer("rounds", terms, most, epsilon, delta, as_json)
    if plot is not None:
        from experiments.curves import draw_epsilon_over_rounds

        draw_epsilon_over_rounds(plot, terms, most, delta)


def _terms(scheme: str, p: float, q: float, d: int, sigma: float) -> Scheme:
    return scheme_class(scheme)(p=p, q=q, d=d, noise_multiplier=sigma)


def _answer(
    asked: str, terms: Scheme, rounds: int, epsilon: float, delta: float, as_json: bool
) -> None:
    """Print the figure asked for, with the lower bound beside it and a warning where due."""
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
            figures["realised_delta"] = realised_delta_after(terms, rounds, epsilon)
        else:
            figures["realised_epsilon"] = realised_epsilon_after(terms, rounds, delta)
    if not terms.is_upper_bound:
        figures["warning"] = NOT_AN_UPPER_BOUND
        warn(f"scheme {terms.name!r} is {NOT_AN_UPPER_BOUND}; never report its figures as such.")
    if as_json:
        print_json(figures)
        return
    console.print(f"[bold]{asked} = {number(figures[asked])}[/bold]   ({terms.title})")
    console.print(
        f"{rounds:,} round{'s' * (rounds != 1)} at p = {terms.p:g}, q = {terms.q:g}, "
        f"d = {terms.d:,}, σ = {number(terms.noise_multiplier)}: "
        f"ε = {number(epsilon)} at δ = {number(delta)}."
    )
    for key, unit in (("realised_epsilon", "ε"), ("realised_delta", "δ")):
        if key in figures:
            console.print(
                f"A concrete data set is known to lose {unit} ≥ {number(figures[key])}: "
                "the truth lies in between."
            )


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
    if [sigma, epsilon, delta].count(None) != 1:
        raise ValueError("Give exactly two of --sigma, --epsilon and --delta; the third is asked.")
    asked = "sigma" if sigma is None else "epsilon" if epsilon is None else "delta"
    results: list[dict[str, object]] = []
    for name, kind in SCHEMES.items():
        value: float
        if sigma is None:
            assert epsilon is not None
            assert delta is not None
            value = least_sigma(kind, p=p, q=q, d=d, epsilon=epsilon, delta=delta, rounds=rounds)
        elif epsilon is None:
            assert delta is not None
            value = epsilon_after([(_terms(name, p, q, d, sigma), rounds)], delta)
        else:
            value = delta_after([(_terms(name, p, q, d, sigma), rounds)], epsilon)
        results.append(
            {"scheme": name, asked: value, "upper_bound": kind.is_upper_bound, "title": kind.title}
        )
    if sigma is not None:
        certified = Certified(p=p, q=q, d=d, noise_multiplier=sigma)
        lower = (
            realised_epsilon_after(certified, rounds, delta)
            if delta is not None
            else realised_delta_after(certified, rounds, epsilon or 0.0)
        )
        title = "realised by a concrete data set (lower bound)"
        results.append({"scheme": "realised", asked: lower, "upper_bound": False, "title": title})
    given = {"p": p, "q": q, "d": d, "sigma": sigma, "epsilon": epsilon, "delta": delta}
    if as_json:
        print_json({**given, "rounds": rounds, "asked": asked, "schemes": results})
    else:
        known = ", ".join(
            f"{key} = {number(value)}" for key, value in given.items() if value is not None
        )
        print_table(
            f"{asked} by scheme ({known}, rounds = {rounds:,})",
            ["scheme", asked, "what it is"],
            [[row["scheme"], row[asked], row["title"]] for row in results],
        )
    if plot is not None:
        from experiments.curves import draw_schemes

        draw_schemes(plot, p=p, q=q, d=d, rounds=rounds, sigma=sigma, delta=delta)


def plan(
    batch: Annotated[float, typer.Option("--batch", help="Mean number of samples in a round.")],
    clients: Annotated[int, typer.Option("--clients", help="Number of clients.")],
    d: Annotated[int, typer.Option("-d", help="Samples of each client.")],
    epsilon: Epsilon,
    delta: Delta,
    rounds: RoundCount,
    largest_p: Annotated[
        float, typer.Option("--largest-p", help="How often a client can take part at most.")
    ] = 1.0,
    scheme: SchemeName = DEFAULT_SCHEME,
    as_json: JsonFlag = False,
) -> None:
    """From a batch size to p, q and σ: the split that needs the least noise comes first."""
    kind = scheme_class(scheme)
    found = splits_for_batch(
        kind,
        batch_size=batch,
        clients=clients,
        d=d,
        epsilon=epsilon,
        delta=delta,
        rounds=rounds,
        largest_p=largest_p,
    )
    if not kind.is_upper_bound:
        warn(f"scheme {kind.name!r} is {NOT_AN_UPPER_BOUND}.")
    best = found[0]
    if as_json:
        print_json(
            {
                **{"p": best.p, "q": best.q, "sigma": best.sigma, "epsilon": best.epsilon},
                **{"delta": delta, "rounds": rounds, "scheme": scheme, "d": d},
                **{"batch": batch, "clients": clients, "largest_p": largest_p},
                "splits": [vars(split) for split in found],
            }
        )
        return
    print_table(
        f"Mean batch {batch:g} from {clients:,} clients of {d:,} ({kind.title})",
        ["p", "q", "σ", "ε", "clients a round", "noise / batch"],
        [
            [split.p, split.q, split.sigma, split.epsilon, split.p * clients, split.sigma / batch]
            for split in found
        ],
    )
