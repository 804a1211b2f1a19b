"""The command that says in plain sentences what a ledger's ε means."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from coinflower.cli.output import JsonFlag, print_json
from coinflower.cli.stated import delta_of
from coinflower.deploy.terminal import console, say


def explain(
    ledger: Annotated[Path, typer.Argument(help="The ledger file.")],
    policy: Annotated[
        Path | None, typer.Option(help="The owner's policy, for its budget and δ.")
    ] = None,
    delta: Annotated[
        float | None, typer.Option(help="State ε at this δ (default: the policy's, else 1e-5).")
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Explain what the ε that a data set has spent means, and what it does not."""
    from coinflower.accounting.ledger.ledger import Ledger
    from coinflower.protocol.policy import load_policy
    from coinflower.protocol.unit import unit_name
    from coinflower.report.explanation import explain_ledger, sections

    rules = None if policy is None else load_policy(policy)
    budget = None if rules is None else rules.budget
    with Ledger.open(ledger, read_only=True) as opened:
        told = explain_ledger(opened, delta_of(rules, delta), budget)
        caveat, backup_made = opened.caveat, opened.backup_made
    if as_json:
        print_json(
            {
                "data_set": told.data_set,
                "backup_made": backup_made,
                "epsilon": told.spent,
                "delta": told.delta,
                "committed_epsilon": told.reserved_epsilon,
                "unit": unit_name(told.units),
                "rounds": told.rounds,
                "secure": told.secure,
                "guessing_chance": told.guessing_chance,
                "detection_rate_at_1_percent": told.detection_rate,
                "groups": [
                    {"samples": group.count, "epsilon": group.epsilon, "delta": group.delta}
                    for group in told.groups
                ],
                "client_epsilon": told.client_epsilon,
                "budget_epsilon": None if budget is None else budget.epsilon,
                "left_epsilon": None if told.left is None else max(0.0, told.left),
                "experiments": [tally.experiment for tally in told.tallies],
                "sections": sections(told),
            }
        )
        return
    if caveat:
        say(caveat, style="yellow")
    for heading, sentences in sections(told).items():
        console.print(f"\n[bold]{heading}[/bold]")
        for sentence in sentences:
            say(sentence, style="red" if sentence.startswith("INSECURE") else None)
