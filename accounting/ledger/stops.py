"""What is stopped: everything for a while or one experiment for good, by the owner, or all of it.

It stands in a table of the ledger's own file. So it is as durable as a charge, goes along when the
file is moved or restored, and holds for every process that uses the ledger. A trigger keeps it: an
entry that would reserve, charge or answer a round that is stopped is refused by SQLite, in the very
transaction that would have flipped the coin. Once a stop is on disk, no coin falls after it.

An experiment is left by its name alone, the part of a ledger's key before the ``#``: a server that
asks again with other terms is refused all the same.

A ledger that was found to be an older copy of itself is stopped as a whole, and nothing resumes it:
the newer one, which was not stopped, has to be put back.

Neither the chain of hashes nor the format of the file is touched: the table is made when the first
stop is, and programs that do not know it are held by its trigger all the same.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from coinflower.accounting.ledger import file as ledger_file
from coinflower.accounting.ledger.errors import LedgerError, explained
from coinflower.accounting.ledger.layout import ALL, STOPS_LAYOUT

# Has an empty name too, so that it stands for all; the owner's `resume` does not lift it.
_SET_BACK = "#set-back"


@dataclass(frozen=True, kw_only=True)
class Stops:
    """What is stopped.

    Attributes:
        paused_since: When the owner paused everything; None if nothing is paused.
        left: Names of the experiments that were left for good, and when.
        set_back_since: When this ledger was found to be an older copy; None if it never was.
    """

    paused_since: str | None
    left: Mapping[str, str]
    set_back_since: str | None = None


def name_of(experiment: str) -> str:
    """Return an experiment's name: its key in a ledger without the hash of its terms."""
    return experiment.partition("#")[0]


def read_stops(path: Path) -> Stops:
    """Return what is stopped in the ledger at ``path``.

    Raises:
        LedgerError: The ledger cannot be read.
    """
    with _opened(path, read_only=True) as connection:
        query = "SELECT 1 FROM sqlite_master WHERE name = 'stops'"
        known = connection.execute(query).fetchone()
        rows = connection.execute("SELECT experiment, at FROM stops").fetchall() if known else []
    stops: dict[str, str] = dict(rows)
    paused_since, set_back_since = stops.pop(ALL, None), stops.pop(_SET_BACK, None)
    return Stops(
        paused_since=paused_since,
        left={name_of(one): since for one, since in stops.items()},
        set_back_since=set_back_since,
    )


def pause(path: Path) -> None:
    """Stop every experiment until `resume`; on disk when this returns."""
    _stop(path, ALL)


def stop_set_back(path: Path) -> None:
    """Stop for good a ledger that was found to be an older copy; on disk when this returns."""
    _stop(path, _SET_BACK)


def resume(path: Path) -> None:
    """Let the experiments that were not left continue."""
    with _opened(path, read_only=False) as connection:
        for statement in (*STOPS_LAYOUT, f"DELETE FROM stops WHERE experiment = '{ALL}'"):
            connection.execute(statement)


def leave(path: Path, experiment: str) -> None:
    """Stop one experiment for good, whatever its terms; on disk when this returns.

    What was charged stays.
    """
    if not name_of(experiment):
        raise LedgerError("An experiment needs a name.")
    _stop(path, name_of(experiment))


def _stop(path: Path, experiment: str) -> None:
    with _opened(path, read_only=False) as connection:
        for statement in STOPS_LAYOUT:
            connection.execute(statement)
        connection.execute(
            "INSERT INTO stops VALUES (?, ?) ON CONFLICT DO NOTHING",
            (experiment, ledger_file.now()),
        )


@contextlib.contextmanager
def _opened(path: Path, *, read_only: bool) -> Iterator[sqlite3.Connection]:
    connection = ledger_file.connect(path, read_only=read_only)
    with contextlib.closing(connection), explained(path):
        connection.execute("BEGIN" if read_only else "BEGIN IMMEDIATE")
        yield connection
        connection.execute("COMMIT")
