"""The command that says in plain sentences what a ledger's ε means."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from coinflower.accounting.errors import UserError
from coinflower.cli.output import JsonFlag, print_json
from coinflower.deploy.terminal import console, say

_DEFAULT_DELTA = 1e-5


def explain(
    ledger: Annotated[Path, typer.Argument(help="The ledger file.")],
    policy: Annotated[
        Path | None, typer.Option(help="The owner's policy: its budget, and its δ.")
    ] = None,
    delta: Annotated[
        float | None, typer.Option(help="δ at which to state ε (the policy's, else 1e-5).")
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Say what the ε that a data set has spent means, and what it does not."""
    from coinflower.accounting.ledger.ledger import Ledger
    from coinflower.protocol.policy import load_policy
    from coinflower.report.explanation import explain_ledger, sections

    budget = None if policy is None else load_policy(policy).budget
    if budget is not None and delta not in (None, budget.delta):
        raise UserError(f"The budget is at delta = {budget.delta:g}; leave out --delta.")
    chosen = delta if delta is not None else budget.delta if budget else _DEFAULT_DELTA
    with Ledger.open(ledger, read_only=True) as opened:
        told = explain_ledger(opened, chosen, budget)
        caveat, backup_made = opened.caveat, opened.backup_made
    if as_json:
        print_json(
            {
                "data_set": told.data_set,
                "backup_made": backup_made,
                "epsilon": told.epsilon,
                "delta": told.delta,
                "committed_epsilon": told.committed,
                "rounds": told.rounds,
                "secure": told.secure,
                "guessing_chance": told.guessing_chance,
                "detection_rate_at_1_percent": told.detection_rate,
                "groups": [vars(group) for group in told.groups],
                "budget_epsilon": None if budget is None else budget.epsilon,
                "left_epsilon": told.left,
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
