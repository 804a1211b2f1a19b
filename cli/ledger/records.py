"""Commands that create, show, check, copy and export a data set's ledger."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from coinflower.accounting.errors import UserError
from coinflower.accounting.ledger import stops
from coinflower.accounting.ledger.backup import adopt as adopt_backup
from coinflower.accounting.ledger.backup import back_up
from coinflower.accounting.ledger.entries import to_csv, to_json
from coinflower.accounting.ledger.errors import LedgerError
from coinflower.accounting.ledger.ledger import Ledger
from coinflower.cli.ledger.stops import LedgerPath, leave, pause, release, resume
from coinflower.cli.output import JsonFlag, lower_bound, number, print_json, print_table
from coinflower.cli.stated import delta_of
from coinflower.deploy.terminal import say
from coinflower.protocol.agreed import query_of, terms_of, unit_of
from coinflower.protocol.policy import load_policy
from coinflower.protocol.unit import protected_by, unit_name

app = typer.Typer(no_args_is_help=True, add_completion=False)

PolicyPath = Annotated[
    Path | None, typer.Option("--policy", help="The owner's policy, for its budget and δ.")
]
StatedDelta = Annotated[
    float | None,
    typer.Option("--delta", help="State ε at this δ (default: the policy's, else 1e-5)."),
]


class ExportFormat(StrEnum):
    """What a ledger can be exported to."""

    CSV = "csv"
    JSON = "json"


@app.command()
def create(
    path: LedgerPath,
    data_set: Annotated[
        str, typer.Option("--data-set", help="Name of the data set that it guards.")
    ],
    as_json: JsonFlag = False,
) -> None:
    """Create the ledger of a data set that never had one."""
    Ledger.create(path, data_set).close()
    if as_json:
        print_json({"path": str(path), "data_set": data_set})
    else:
        say(f"Created {path} for data set {data_set!r}.")


@app.command()
def show(
    path: LedgerPath,
    policy: PolicyPath = None,
    delta: StatedDelta = None,
    as_json: JsonFlag = False,
) -> None:
    """Print what was spent, per experiment and in total."""
    rules = None if policy is None else load_policy(policy)
    delta = delta_of(rules, delta)
    with Ledger.open(path, read_only=True) as ledger:
        stopped = stops.read_stops(path)
        stated = ledger.statement(delta, None if rules is None else rules.budget)
        units = {unit_of(tally) for tally in stated.tallies}
        if as_json:
            print_json(
                {
                    "data_set": ledger.data_set,
                    "backup_made": ledger.backup_made,
                    "epsilon": stated.spent,
                    "committed_epsilon": stated.reserved_epsilon,
                    "delta": delta,
                    "unit": unit_name(units),
                    **({} if rules is None else {"budget_epsilon": rules.budget.epsilon}),
                    "paused_since": stopped.paused_since,
                    "left": dict(stopped.left),
                    "secure": stated.secure,
                    "rounds": stated.rounds,
                    "experiments": [
                        {
                            "experiment": tally.experiment,
                            "rounds": tally.charged,
                            "participated_rounds": tally.took_part,
                            "committed_rounds": tally.reserved_rounds,
                            "secure": tally.secure,
                            "mode": None if terms is None else str(terms.mode),
                            "unit": str(unit_of(tally)),
                            "query": query_of(tally),
                            "scheme": tally.terms.name,
                            "p": tally.terms.round.p,
                            "q": tally.terms.round.q,
                            "d": tally.terms.round.d,
                            "sigma": tally.terms.round.noise_multiplier,
                            "cap": tally.terms.round.cap if tally.terms.round.is_capped else None,
                        }
                        for tally in stated.tallies
                        for terms in [terms_of(tally)]
                    ],
                }
            )
            return
        print_table(
            f"Ledger of data set {ledger.data_set!r}",
            ["experiment", "rounds charged", "taken part", "reserved", "terms"],
            [
                [
                    row.experiment,
                    row.charged,
                    row.took_part,
                    row.reserved_rounds,
                    f"{row.terms.round}; {row.terms.ledger_name}",
                ]
                for row in stated.tallies
            ],
        )
        say(
            f"Spent: ε = {number(stated.spent)} at δ = {delta:g}; "
            f"with all reserved rounds: ε = {number(stated.reserved_epsilon)}. "
            f"All of this is for {protected_by(units)}."
        )
        if stated.budget is not None and stated.left is not None:
            left = lower_bound(stated.left)
            say(f"Budget: ε = {number(stated.budget.epsilon)}; left: ε = {left}.")
        if stopped.paused_since is not None:
            say(f"Paused since {stopped.paused_since}: no coin is flipped.", style="yellow")
        for name, since in stopped.left.items():
            say(f"{name}: left for good at {since}.", style="yellow")
        if not stated.secure:
            say("INSECURE: coins or noise of at least one experiment were seeded.", style="red")
        _say_caveat(ledger)


def _say_caveat(ledger: Ledger) -> None:
    if ledger.caveat:
        say(ledger.caveat, style="yellow")


@app.command()
def verify(
    path: LedgerPath,
    witness: Annotated[
        Path | None,
        typer.Option(help="Also check against this witness that the ledger is no older copy."),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Check the file, its tables and triggers, its hash chain and its sums."""
    with Ledger.open(path, read_only=True) as ledger:
        result = ledger.verify()
        if witness is not None:
            ledger.require_witnessed(witness)
        if as_json:
            figures = {"valid": True, "entries": result.entries, "head": result.head}
            print_json({**figures, "backup_made": ledger.backup_made})
        else:
            say(f"{path}: {result.entries} entries, all in order. Head {result.head}")
            _say_caveat(ledger)


@app.command()
def backup(
    path: LedgerPath,
    target: Annotated[Path, typer.Argument(help="File to write; never overwritten.")],
    as_json: JsonFlag = False,
) -> None:
    """Copy a ledger, even one in use; the copy is marked as a backup and cannot be charged."""
    back_up(path, target)
    with Ledger.open(target, read_only=True) as copy:
        entries, made = copy.verify().entries, copy.backup_made
    if as_json:
        print_json({"path": str(target), "entries": entries, "backup_made": made})
    else:
        say(f"{target}: a backup of {path} with {entries} entries, made at {made}.")


@app.command()
def adopt(
    path: Annotated[Path, typer.Argument(help="The backup that becomes the ledger.")],
    yes: Annotated[
        bool, typer.Option("--yes", help="Confirm that you know what may be lost.")
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """Turn a backup into the ledger, after the ledger itself was lost."""
    with Ledger.open(path, read_only=True) as ledger:
        made, entries = ledger.backup_made, ledger.verify().entries
    if made is not None and not yes:
        raise UserError(
            f"{path} has {entries} entries and knows nothing of what was charged after {made}. If "
            "anything was, its ε is too small, a round may be answered twice, and the budget has "
            "to be counted as spent. If the ledger is still there, use that. If you are sure "
            "that this backup is complete, add --yes."
        )
    adopted = adopt_backup(path)
    if as_json:
        print_json({"path": str(path), "entries": entries, "backup_made": adopted})
    else:
        say(f"{path} is now a ledger; it holds what was charged until {adopted}.")


@app.command()
def witness(
    path: LedgerPath,
    target: Annotated[Path, typer.Argument(help="File of the witness, best on another disk.")],
    as_json: JsonFlag = False,
) -> None:
    """Note a ledger's last entry in a second place; also replaces a lost witness.

    Name that place in the policy (witness = "PATH"): the client then updates it, and refuses a
    ledger that lacks what the witness has seen.
    """
    with Ledger.open(path) as ledger:
        ledger.bear_witness(target)
        entries = ledger.verify().entries
    if as_json:
        print_json({"path": str(path), "witness": str(target), "entries": entries})
    else:
        say(f"{target} has seen the {entries} entries of {path}.")


@app.command()
def export(
    path: LedgerPath,
    form: Annotated[ExportFormat, typer.Option("--format", help="csv or json.")] = ExportFormat.CSV,
    out: Annotated[
        Path | None, typer.Option("--out", help="File to write (default: print).")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Same as --format json.")] = False,
) -> None:
    """Write every entry as CSV or JSON."""
    with Ledger.open(path, read_only=True) as ledger:
        as_json = as_json or form is ExportFormat.JSON
        text = (
            to_json(ledger.data_set, ledger.history()) + "\n"
            if as_json
            else to_csv(ledger.history())
        )
    if out is None:
        typer.echo(text, nl=False)
    else:
        out.write_text(text)


@app.command()
def page(
    path: LedgerPath,
    port: Annotated[int, typer.Option(help="Port on this machine; 0 picks a free one.")] = 0,
    policy: PolicyPath = None,
    delta: StatedDelta = None,
) -> None:
    """Show the ledger as a web page on this machine until Ctrl-C; read-only."""
    from coinflower.client.page.ledger_snapshot import Reader
    from coinflower.client.page.server import PageServer
    from coinflower.client.page.view import Subject
    from coinflower.deploy.machines.page_link import told_link
    from coinflower.deploy.signals import stop_on_signals

    if not path.is_file():
        raise LedgerError(f"There is no ledger at {path}.")
    rules = None if policy is None else load_policy(policy)
    subject = Subject(reader=Reader(path=path), delta=delta_of(rules, delta), policy=rules)
    with (
        stop_on_signals() as stop,
        PageServer(f"127.0.0.1:{port}", subject) as server,
        told_link(server, path),
    ):
        stop.wait()


for stop in (pause, resume, leave, release):
    app.command()(stop)
