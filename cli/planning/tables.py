"""What `coinflower plan` shows: the choices with their prices, and the proposal."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from coinflower.accounting.rounding import rounded_up
from coinflower.cli.output import number, print_table
from coinflower.deploy.terminal import say
from coinflower.protocol.planning.choices import Choice
from coinflower.protocol.planning.evaluation_price import EvaluationPrice
from coinflower.protocol.planning.planner import Wishes
from coinflower.protocol.planning.proposal import Proposal

if TYPE_CHECKING:
    from coinflower.experiments.studies.proxy import Tried

_MEGABYTE = 1e6


def print_choices(wishes: Wishes, title: str, batch: float, found: list[Choice]) -> None:
    """Print the ways to reach a batch, the best first, each with its price."""
    best = found[0].signal_to_noise
    print_table(
        f"Mean batch {batch:g} from {wishes.clients:,} clients of {wishes.d:,} ({title})",
        ["p", "q", "cap", "σ", "ε", "messages", "MB", "signal", "noise / signal"],
        [
            [
                *_named(each),
                *(rounded_up(value) for value in (each.split.sigma, each.split.epsilon)),
                f"{each.messages:.3g}",
                f"{each.bytes_per_round / _MEGABYTE:.3g}",
                f"{each.signal:.0%}",
                f"×{best / each.signal_to_noise:.3g}",
            ]
            for each in found
        ],
    )


def print_batches(found: list[Choice]) -> None:
    """Print what other batches would cost at the largest p."""
    best = max(each.signal_to_noise for each in found)
    print_table(
        "Other batches at the largest p: larger ones take longer, smaller ones are noisier",
        ["batch", "q", "cap", "σ", "noise / signal"],
        [
            [
                f"{each.batch:.4g}",
                *_named(each)[1:],
                rounded_up(each.split.sigma),
                f"×{best / each.signal_to_noise:.3g}",
            ]
            for each in found
        ],
    )


def print_grid(name: str, grid: list[Tried]) -> None:
    """Print how well choices learned on public data."""
    print_table(
        f"Accuracy on {name}, which is public",
        ["p", "q", "cap", "learning rate", "accuracy"],
        [
            [*_named(each.choice), f"{each.learning_rate:g}", f"{each.accuracy:.2%}"]
            for each in grid
        ],
    )


def _named(choice: Choice) -> list[str]:
    split = choice.split
    cap = "none" if math.isinf(split.cap) else f"{split.cap:g}"
    return [f"{split.p:.3g}", f"{split.q:.3g}", cap]


def print_proposal(proposal: Proposal, written: list[str]) -> None:
    """Print terms, files and commands."""
    terms = proposal.terms
    capped = f"cap = {terms.cap:g}, " if terms.is_capped else ""
    least, largest = proposal.learning_rate_range
    say(
        f"Proposed: p = {terms.p:g}, q = {terms.q:g}, {capped}σ = {terms.noise_multiplier:g}: "
        f"ε = {number(proposal.epsilon)} at δ = {proposal.wishes.delta:g} after {terms.rounds:,} "
        f"rounds, as each client's ledger will say (scheme {proposal.wishes.scheme.name}), for "
        f"{terms.unit.facts.protected}."
    )
    if proposal.evaluation is not None:
        together = rounded_up(proposal.evaluation.together)
        say(f"With its evaluations, the ledger will say ε = {together}.")
    tuned = proposal.tuned_rate is not None
    advice = "was the best" if tuned else f"the best is likely between {least:g} and {largest:g}"
    say(
        f"A round has {proposal.batch:.4g} {terms.unit}s on average. Each coordinate of their mean "
        f"gradient, whose length is at most {terms.clip_norm:g}, carries noise of "
        f"{proposal.noise_share:.3g}. Start with a learning rate of {proposal.learning_rate:g} "
        f"({_stepping(proposal)}); {advice}."
    )
    if written:
        say(f"Written: {', '.join(written)}")
    else:
        for name, text in (("settings.toml", proposal.settings), ("policy.toml", proposal.policy)):
            say(f"\n# {name}\n{text}")
    headings = {
        "trial": "Try it on this machine first (its batches and ε are those of the trial's data):",
        "server": "At the server, with settings.toml; allow each client once its key is there:",
        "notary": "At the notary, before all else; count each client's key once it is there:",
        "client": "At each client, with policy.toml (fill in your names) and the server's ca.pem:",
    }
    for part, lines in proposal.commands.items():
        say(f"\n{headings[part]}")
        for line in lines:
            say(f"  {line}")


def print_evaluations(price: EvaluationPrice, best: Choice) -> None:
    """Print what evaluations on clients' records cost, in ε and in noise of the training."""
    say(
        f"{price.times} evaluations on clients' records, every {price.every} rounds, at "
        f"σ = {rounded_up(price.sigma)} cost ε = {rounded_up(price.epsilon)} on their own. The "
        f"training then needs σ = {rounded_up(price.training_sigma)} instead of "
        f"{rounded_up(best.split.sigma)}; together ε = {rounded_up(price.together)}."
    )


def _stepping(proposal: Proposal) -> str:
    others = {key: value for key, value in proposal.update.items() if key != "learning_rate"}
    return ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in others.items())
