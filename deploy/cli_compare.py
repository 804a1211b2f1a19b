"""Commands that put alternatives side by side: schemes, and splits of a batch."""

from __future__ import annotations

from typing import Annotated

import typer

from accounting.calibration import least_sigma, splits_for_batch
from accounting.composition import delta_after, epsilon_after
from accounting.realised import Realised
from accounting.schemes import DEFAULT_SCHEME, SCHEMES, Certified, scheme_class
from accounting.tightness import (
    realised_delta_after,
    realised_epsilon_after,
    realised_sigma_after,
)
from deploy.cli_output import NOT_AN_UPPER_BOUND, JsonFlag, number, print_json, print_table, warn
from deploy.cli_privacy import D, Delta, Epsilon, P, Plot, Q, RoundCount, SchemeName
from experiments.curves import draw_schemes_over_epsilon, draw_schemes_over_sigma


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
