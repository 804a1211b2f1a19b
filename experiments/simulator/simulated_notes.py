"""What a reader of a simulation's figures must know beforehand."""

from __future__ import annotations

import math
from collections.abc import Iterator

from coinflower.accounting.analyses.names import SCHEMES
from coinflower.accounting.rounding import rounded_up
from coinflower.experiments.simulator.request import Request
from coinflower.experiments.simulator.scenarios import (
    MEAN_BATCH,
    SETTINGS,
    Federation,
    analysis_of,
    gains_nothing_by_coins,
    takes_everybody,
    upper_epsilon,
)
from coinflower.experiments.simulator.simulator import parse_noise


def notes_on(request: Request, federation: Federation) -> Iterator[str]:
    """Yield a sentence for all that is not as in the paper, or not as one might think."""
    changes = list(_changes(request, federation))
    if changes:
        yield f"{request.scenario} differs from the paper's: {'; '.join(changes)}."
    batch = request.availability * federation.mean_batch
    if batch < 1:
        yield (
            f"an iteration has {batch:.2g} {request.unit}s on average: most iterations are pure "
            "noise. "
            "Raise p or q, or use more data."
        )
    if request.seed is not None:
        yield "INSECURE: coins, samples and noise are seeded."
    if request.sigma is None and not chosen_by_a_bound(request):
        name = request.chosen_scheme
        yield f"scheme {name!r} is not an upper bound; epsilon is the one that holds."


def chosen_by_a_bound(request: Request) -> bool:
    """Return whether the analysis that chooses the noise bounds what it costs."""
    scheme = SCHEMES.get(request.chosen_scheme)
    return scheme is None or scheme.is_chargeable or scheme is _analysis(request)


def excess_over(
    request: Request, federation: Federation, sigma: float, iterations: int, total: float | None
) -> str | None:
    """Return how far iterations exceed a stated total, as half a sentence; None if they do not."""
    costs = upper_epsilon(federation, parse_noise(request.noise), sigma, iterations, request.delta)
    if total is None or costs is None or costs <= total:
        return None
    return (
        f"{iterations:,} iterations with sigma = {rounded_up(sigma, 6)} cost epsilon = "
        f"{rounded_up(costs, 6)}, more than the total of {total:g} that was asked for"
    )


def _analysis(request: Request) -> object:
    return analysis_of(parse_noise(request.noise))


def _changes(request: Request, federation: Federation) -> Iterator[str]:
    paper, clients = SETTINGS[request.scenario], len(federation.sizes)
    fitted = f"for a mean batch of {MEAN_BATCH:g}"
    if clients != paper.clients:
        why = "as the data allows" if request.clients is None else "as asked for"
        yield f"{clients:,} clients instead of {paper.clients:,}, {why}"
    if request.d not in (None, paper.d):
        yield f"{request.d:,} records each instead of {paper.d:,}, as asked for"
    if federation.p != paper.p:
        why = fitted if request.p is None else "as asked for"
        noise = parse_noise(request.noise)
        if request.p is None and takes_everybody(noise):
            why = "because everybody takes part"
        elif request.p is None and request.q is None and gains_nothing_by_coins(noise):
            why = "because everybody answers whatever a coin says, so coins would only cost noise"
        yield f"p = {federation.p:.4g} instead of {paper.p:g}, {why}"
    if federation.q != paper.q:
        why = fitted if request.q is None else "as asked for"
        yield f"q = {federation.q:.4g} instead of {paper.q:g}, {why}"
    if math.isfinite(federation.cap):
        yield f"each client's sum is capped at {federation.cap:g} clip norms"
