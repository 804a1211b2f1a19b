"""The command that audits the guarantee."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from coinflower.accounting.rounding import rounded_down, rounded_up
from coinflower.cli.output import JsonFlag, print_json, print_table
from coinflower.deploy.terminal import errors, say, warn

_EXIT_REFUTED = 1
_COLUMNS = ("audited", "δ", "claimed ε", "proven ε", "the paper's ε", "verdict")


def audit(
    full: Annotated[
        bool, typer.Option("--full/--quick", help="Run ten times the trials (default: quick).")
    ] = False,
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder for the results as JSON and PNG.")
    ] = None,
    fault: Annotated[
        str | None, typer.Option(help="Plant this fault, to check that the audit finds it.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Seed all randomness. INSECURE: for tests only.")
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Attack the shipped client and server to find a lower bound on their privacy loss.

    Runs them on neighbouring data sets, in every mode. Exits with 1 if they lose more than claimed.
    """
    from coinflower.experiments.audit.audit import run_audit, standard_plan
    from coinflower.experiments.audit.faults import planted

    with planted(fault):  # an unknown name is told at once
        pass
    if seed is not None:
        warn("INSECURE: coins, samples and noise of this audit are seeded.")
    with _bar() as progress:
        figures = run_audit(standard_plan(full=full), seed=seed, fault=fault, progress=progress)
    if out is not None:
        _write(figures, out)
    if as_json:
        print_json(figures)
    else:
        _print_report(figures)
    if not figures["holds"]:
        raise typer.Exit(_EXIT_REFUTED)


@contextlib.contextmanager
def _bar() -> Iterator[Callable[[int, int], None]]:
    columns = (TextColumn("auditing"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    # On standard error, so that it never mixes with figures.
    with Progress(*columns, console=errors, transient=True) as bar:
        task = bar.add_task("auditing", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _write(figures: dict[str, Any], out: Path) -> None:
    from coinflower.experiments.audit.drawing import draw_audit

    out.mkdir(parents=True, exist_ok=True)
    (out / "audit.json").write_text(json.dumps(figures, indent=1, ensure_ascii=False) + "\n")
    draw_audit(figures, out / "audit.png")


def _print_report(figures: dict[str, Any]) -> None:
    rows = [
        (
            claim["name"],
            f"{claim['delta']:g}",
            rounded_up(claim["claimed_epsilon"]),
            rounded_down(claim["audited_epsilon"]),
            None if claim["paper_epsilon"] is None else rounded_up(claim["paper_epsilon"]),
            "holds" if claim["holds"] else "REFUTED",
        )
        for claim in figures["claims"]
    ]
    print_table(f"Audit of {len(rows)} claims", _COLUMNS, rows)
    rate = figures["trials"] / figures["cpu_seconds"]
    say(
        f"{figures['trials']:,} trials in {figures['seconds']:.0f} s, {rate:,.0f} per CPU "
        "second. Proven ε is what an observer's guesses show to be lost, so a claim below it is "
        "false. If all claims are true, the probability that any is refuted by chance is "
        f"{1 - figures['family_confidence']:.1g} at most."
    )
    refuted = [claim["name"] for claim in figures["claims"] if not claim["holds"]]
    if refuted:
        say(f"{len(refuted)} claims are REFUTED: {'; '.join(refuted)}.", style="bold red")
    else:
        say("No claim is refuted. This does not prove the bound; it failed to refute it.")
    false = [claim["name"] for claim in figures["paper_claims"] if not claim["holds"]]
    if false:
        say(f"The source paper's ε is refuted for: {'; '.join(false)}. Nothing is charged by it.")
