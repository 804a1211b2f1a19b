"""Commands by which an owner stops a ledger: a pause, leaving an experiment, unplayed rounds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from coinflower.accounting.errors import UserError
from coinflower.accounting.ledger import stops
from coinflower.accounting.ledger.entries import Tally
from coinflower.accounting.ledger.ledger import Ledger
from coinflower.cli.output import JsonFlag, print_json
from coinflower.deploy.terminal import say

LedgerPath = Annotated[Path, typer.Argument(help="The ledger file.")]
ExperimentName = Annotated[
    str, typer.Argument(help="The experiment, or the beginning of its name.")
]


def release(
    path: LedgerPath,
    experiment: ExperimentName,
    as_json: JsonFlag = False,
) -> None:
    """Give back the rounds that an experiment reserved but never played; spent stays spent.

    For experiments that will not continue. One that asks again may reserve rounds again; to
    refuse it for good, use `leave`.
    """
    with Ledger.open(path) as ledger:
        tally = _named(ledger.tallies(), experiment)
        ledger.release(tally.experiment)
    given_back = tally.remaining_rounds
    if as_json:
        print_json({"experiment": tally.experiment, "released_rounds": given_back})
    else:
        say(f"{tally.experiment}: {given_back} rounds given back, {tally.charged} stay charged.")


def pause(path: LedgerPath, as_json: JsonFlag = False) -> None:
    """Refuse every round of every experiment until `resume`; a running client obeys at once."""
    _require_ledger(path)
    stops.pause(path)
    since = stops.read_stops(path).paused_since
    if as_json:
        print_json({"path": str(path), "paused_since": since})
    else:
        say(f"{path} is paused since {since}. To flip coins again: coinflower ledger resume {path}")


def resume(path: LedgerPath, as_json: JsonFlag = False) -> None:
    """End a pause; experiments that were left stay left."""
    _require_ledger(path)
    was_paused = stops.read_stops(path).paused_since is not None
    stops.resume(path)
    if as_json:
        print_json({"path": str(path), "was_paused": was_paused})
    else:
        say(f"{path} is resumed." if was_paused else f"{path} was not paused.")


def leave(
    path: LedgerPath,
    experiment: ExperimentName,
    yes: Annotated[bool, typer.Option("--yes", help="Confirm that this is for good.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Leave an experiment for good, whatever terms it asks for next; spent stays spent."""
    with Ledger.open(path, read_only=True) as ledger:
        name = stops.name_of(_named(ledger.tallies(), experiment).experiment)
    if not yes:
        raise UserError(
            f"Leaving {name!r} cannot be undone: this data set refuses every further round of it. "
            "To stop for a while, use: coinflower ledger pause. If you mean it, add --yes."
        )
    stops.leave(path, name)
    with Ledger.open(path) as ledger:
        for tally in ledger.tallies():
            if stops.name_of(tally.experiment) == name:
                ledger.release(tally.experiment)
    since = stops.read_stops(path).left[name]
    if as_json:
        print_json({"experiment": name, "left_since": since})
    else:
        say(f"{name}: left for good at {since}; its unplayed rounds are given back.")


def _require_ledger(path: Path) -> None:
    """Refuse a file that is no ledger before anything is written into it."""
    Ledger.open(path, read_only=True).close()


def _named(tallies: Sequence[Tally], name: str) -> Tally:
    exact = [tally for tally in tallies if tally.experiment == name]
    found = exact or [tally for tally in tallies if tally.experiment.startswith(name)]
    if len(found) == 1:
        return found[0]
    known = ", ".join(tally.experiment for tally in found or tallies) or "none"
    what = "More than one experiment begins" if found else "No experiment begins"
    raise UserError(f"{what} with {name!r}; the ledger has: {known}.")
