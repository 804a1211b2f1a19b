"""Commands that start, look at, tidy and back up a data set's ledger. None of them charges it."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from coinflower.accounting import validation
from coinflower.accounting.errors import UserError
from coinflower.accounting.ledger.backup import adopt as adopt_backup
from coinflower.accounting.ledger.backup import back_up
from coinflower.accounting.ledger.entries import Tally, terms_to_json
from coinflower.accounting.ledger.exports import to_csv, to_json
from coinflower.accounting.ledger.file import LedgerError
from coinflower.accounting.ledger.ledger import Ledger
from coinflower.cli.output import JsonFlag, number, print_json, print_table
from coinflower.deploy.terminal import say
from coinflower.protocol.policy import load_policy
from coinflower.protocol.terms import terms_of

app = typer.Typer(no_args_is_help=True, help="Start or look at a data set's privacy ledger.")

_DELTA = 1e-5

LedgerPath = Annotated[Path, typer.Argument(help="The ledger file.")]


class ExportFormat(StrEnum):
    """What a ledger can be exported to."""

    CSV = "csv"
    JSON = "json"


@app.command()
def create(
    path: LedgerPath,
    data_set: Annotated[str, typer.Option("--data-set", help="Name of the data set it guards.")],
    as_json: JsonFlag = False,
) -> None:
    """Start the ledger of a data set that never had one."""
    Ledger.create(path, data_set).close()
    if as_json:
        print_json({"path": str(path), "data_set": data_set})
    else:
        say(f"Created {path} for data set {data_set!r}.")


@app.command()
def show(
    path: LedgerPath,
    delta: Annotated[float, typer.Option("--delta", help="δ at which to state ε.")] = _DELTA,
    as_json: JsonFlag = False,
) -> None:
    """Print what was spent, by experiment and in all."""
    with Ledger.open(path, read_only=True) as ledger:
        tallies = ledger.tallies()
        spent, committed = ledger.spent(delta), ledger.committed(delta)
        secure = all(tally.secure for tally in tallies)
        if as_json:
            print_json(
                {
                    "data_set": ledger.data_set,
                    "backup_made": ledger.backup_made,
                    "epsilon": spent,
                    "committed_epsilon": committed,
                    "delta": delta,
                    "secure": secure,
                    "rounds": sum(tally.charged for tally in tallies),
                    "experiments": [
                        {
                            "experiment": tally.experiment,
                            "rounds": tally.charged,
                            "participated_rounds": tally.joined,
                            "committed_rounds": tally.committed,
                            "secure": tally.secure,
                            "mode": None if terms is None else str(terms.mode),
                            "scheme": tally.terms.name,
                            "p": tally.terms.p,
                            "q": tally.terms.q,
                            "d": tally.terms.d,
                            "sigma": tally.terms.noise_multiplier,
                        }
                        for tally in tallies
                        for terms in [terms_of(tally)]
                    ],
                }
            )
            return
        print_table(
            f"Ledger of data set {ledger.data_set!r}",
            ["experiment", "rounds charged", "taken part", "committed", "terms"],
            [
                [row.experiment, row.charged, row.joined, row.committed, terms_to_json(row.terms)]
                for row in tallies
            ],
        )
        say(
            f"Spent: ε = {number(spent)} at δ = {delta:g}; "
            f"with all committed rounds: ε = {number(committed)}."
        )
        if not secure:
            say("INSECURE: coins or noise of at least one experiment were seeded.", style="red")
        _say_caveat(ledger)


def _say_caveat(ledger: Ledger) -> None:
    if ledger.caveat:
        say(ledger.caveat, style="yellow")


@app.command()
def verify(
    path: LedgerPath,
    witness: Annotated[
        Path | None, typer.Option(help="Its witness: was the ledger set back?")
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Check the file, its tables and triggers, its chain of hashes and its sums."""
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
    target: Annotated[Path, typer.Argument(help="The file to write; nothing is overwritten.")],
    as_json: JsonFlag = False,
) -> None:
    """Copy a ledger, also one in use; the copy knows what it is and takes no charge."""
    back_up(path, target)
    with Ledger.open(target, read_only=True) as copy:
        entries, made = copy.verify().entries, copy.backup_made
    if as_json:
        print_json({"path": str(target), "entries": entries, "backup_made": made})
    else:
        say(f"{target}: a backup of {path} with {entries} entries, made at {made}.")


@app.command()
def adopt(
    path: Annotated[Path, typer.Argument(help="The backup that is to become a ledger.")],
    yes: Annotated[bool, typer.Option("--yes", help="You have read what is lost.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Make a backup the ledger, after the ledger itself was lost."""
    with Ledger.open(path, read_only=True) as ledger:
        made, entries = ledger.backup_made, ledger.verify().entries
    if made is not None and not yes:
        raise UserError(
            f"{path} has {entries} entries and knows nothing of what was charged after {made}. If "
            "anything was, its ε is too small, a round may be answered twice, and the budget has "
            "to be counted as spent. If the ledger is still there, use that. If this backup is "
            "surely complete, say --yes."
        )
    adopted = adopt_backup(path)
    if as_json:
        print_json({"path": str(path), "entries": entries, "backup_made": adopted})
    else:
        say(f"{path} is a ledger now, with what was charged until {adopted}.")


@app.command()
def witness(
    path: LedgerPath,
    target: Annotated[Path, typer.Argument(help="The witness, best on another disk.")],
    as_json: JsonFlag = False,
) -> None:
    """Note a ledger's last entry at a second place, anew if the witness there was lost.

    Name the place in the policy (witness = "PATH"): a client then keeps it, and refuses a ledger
    that lacks what it has seen.
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
    out: Annotated[Path | None, typer.Option("--out", help="File to write; else print.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Same as --format json.")] = False,
) -> None:
    """Write every entry as CSV or JSON."""
    with Ledger.open(path, read_only=True) as ledger:
        as_json = as_json or form is ExportFormat.JSON
        text = to_json(ledger) + "\n" if as_json else to_csv(ledger)
    if out is None:
        typer.echo(text, nl=False)
    else:
        out.write_text(text)


@app.command()
def release(
    path: LedgerPath,
    experiment: Annotated[str, typer.Argument(help="The experiment, or how its name begins.")],
    as_json: JsonFlag = False,
) -> None:
    """Give back the rounds that an experiment committed and never played; spent stays spent.

    For experiments that will not go on. One that asks again may commit anew; to refuse it for good,
    leave it on the owner's page.
    """
    with Ledger.open(path) as ledger:
        tally = _named(ledger.tallies(), experiment)
        ledger.release(tally.experiment)
    given_back = tally.committed - tally.charged
    if as_json:
        print_json({"experiment": tally.experiment, "released_rounds": given_back})
    else:
        say(f"{tally.experiment}: {given_back} rounds given back, {tally.charged} stay charged.")


def _named(tallies: Sequence[Tally], name: str) -> Tally:
    exact = [tally for tally in tallies if tally.experiment == name]
    found = exact or [tally for tally in tallies if tally.experiment.startswith(name)]
    if len(found) == 1:
        return found[0]
    known = ", ".join(tally.experiment for tally in found or tallies) or "none"
    what = "More than one experiment begins" if found else "No experiment begins"
    raise UserError(f"{what} with {name!r}; the ledger has: {known}.")


@app.command()
def page(
    path: LedgerPath,
    port: Annotated[int, typer.Option(help="Port on this machine; 0 for any that is free.")] = 0,
    policy: Annotated[
        Path | None, typer.Option(help="The owner's policy, for the budget and its δ.")
    ] = None,
    delta: Annotated[
        float | None,
        typer.Option("--delta", help="δ at which to state ε (the policy's, else 1e-5)."),
    ] = None,
) -> None:
    """Show the ledger as a web page on this machine until Ctrl-C; it only looks."""
    from coinflower.client.page.ledger_snapshot import Reader
    from coinflower.client.page.server import PageServer
    from coinflower.client.page.view import Subject
    from coinflower.deploy.machines.page_link import told_link
    from coinflower.deploy.signals import stop_on_signals

    if not path.is_file():
        raise LedgerError(f"There is no ledger at {path}.")
    if delta is not None:
        validation.require_delta(delta)
    rules = None if policy is None else load_policy(policy)
    if rules is not None and delta not in (None, rules.budget.delta):
        raise UserError(f"The budget is at delta = {rules.budget.delta:g}; leave out --delta.")
    chosen = delta if delta is not None else rules.budget.delta if rules else _DELTA
    subject = Subject(reader=Reader(path=path), delta=chosen, policy=rules)
    with (
        stop_on_signals() as stop,
        PageServer(f"127.0.0.1:{port}", subject) as server,
        told_link(server, path),
    ):
        stop.wait()
