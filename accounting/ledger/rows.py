"""The rows of a ledger's tables, read and added within a transaction of whoever asks."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

from coinflower.accounting.ledger import file as ledger_file
from coinflower.accounting.ledger.entries import COLUMNS, EntryKind, Tally, TallyRow


def read_about(connection: sqlite3.Connection, path: Path) -> dict[str, str]:
    """Return what the file says about itself.

    Raises:
        LedgerCorruptError: It does not say enough.
    """
    about = dict(connection.execute("SELECT key, value FROM about").fetchall())
    if not {"data_set", "created", "salt"} <= about.keys():
        raise ledger_file.untrusted(path, "it does not say which data set it guards")
    return about


def entries(connection: sqlite3.Connection) -> Iterable[tuple[Any, ...]]:
    """Return all entries in the order of ``COLUMNS``, oldest first."""
    return connection.execute(f"SELECT {', '.join(COLUMNS)} FROM entries ORDER BY seq")


def last(connection: sqlite3.Connection, path: Path) -> tuple[int, str]:
    """Return how many entries there are, and the head: the hash of the last."""
    found = connection.execute("SELECT seq, hash FROM entries ORDER BY seq DESC LIMIT 1").fetchone()
    return found or (0, ledger_file.genesis(read_about(connection, path)))


def contains(connection: sqlite3.Connection, path: Path, entries: int, head: str) -> bool:
    """Return whether this ledger had so many entries with that head once, or has them now."""
    if entries == 0:
        return head == ledger_file.genesis(read_about(connection, path))
    query = "SELECT 1 FROM entries WHERE seq = ? AND hash = ?"
    return connection.execute(query, (entries, head)).fetchone() is not None


def append(connection: sqlite3.Connection, path: Path, values: tuple[object, ...]) -> None:
    """Add an entry; ``values`` are its columns between the number and the hash."""
    seq, previous = last(connection, path)
    row = (seq + 1, *values)
    connection.execute(
        f"INSERT INTO entries VALUES ({', '.join('?' * len(COLUMNS))})",
        (*row, ledger_file.chained(previous, row)),
    )


def tally_of(connection: sqlite3.Connection, experiment: str) -> Tally | None:
    """Return an experiment's tally, None if it has none."""
    row = connection.execute("SELECT * FROM tallies WHERE experiment = ?", (experiment,)).fetchone()
    return None if row is None else Tally.from_row(row)


def coin_of(connection: sqlite3.Connection, experiment: str, round_: int) -> bool | None:
    """Return the coin of a round, None if none was flipped."""
    row = connection.execute(
        "SELECT coin FROM entries WHERE experiment = ? AND round = ? AND kind = ?",
        (experiment, round_, EntryKind.FLIP),
    ).fetchone()
    return None if row is None else bool(row[0])


def was_answered(connection: sqlite3.Connection, experiment: str, round_: int) -> bool:
    """Return whether a round was answered."""
    row = connection.execute(
        "SELECT 1 FROM entries WHERE experiment = ? AND round = ? AND kind = ?",
        (experiment, round_, EntryKind.ANSWER),
    ).fetchone()
    return row is not None


def restamp(rows: Iterable[TallyRow], seeded: Collection[str]) -> list[TallyRow]:
    """Return tallies as insecure where an answer was: ledgers may be older than that rule."""
    return [(*row[:-1], 0) if row[0] in seeded else row for row in rows]
