"""The rows of a ledger's tables and the chain of their hashes, within a caller's transaction."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

from coinflower.accounting.ledger.entries import COLUMNS, EntryKind, Tally, TallyRow
from coinflower.accounting.ledger.errors import untrusted

_CHAIN = 1  # how hashes are made; has not changed with the file's format


def read_about(connection: sqlite3.Connection, path: Path) -> dict[str, str]:
    """Return what the file says about itself.

    Raises:
        LedgerCorruptError: It does not say enough.
    """
    about = dict(connection.execute("SELECT key, value FROM about").fetchall())
    if not {"data_set", "created", "salt"} <= about.keys():
        raise untrusted(path, "it does not say which data set it guards")
    return about


def entries(connection: sqlite3.Connection) -> Iterable[tuple[Any, ...]]:
    """Return all entries in the order of ``COLUMNS``, oldest first."""
    return connection.execute(f"SELECT {', '.join(COLUMNS)} FROM entries ORDER BY seq")


def last(connection: sqlite3.Connection, path: Path) -> tuple[int, str]:
    """Return how many entries there are, and the head: the hash of the last."""
    found = connection.execute("SELECT seq, hash FROM entries ORDER BY seq DESC LIMIT 1").fetchone()
    return found or (0, genesis(read_about(connection, path)))


def contains(connection: sqlite3.Connection, path: Path, entries: int, head: str) -> bool:
    """Return whether this ledger has, or once had, that many entries with that head."""
    if entries == 0:
        return head == genesis(read_about(connection, path))
    query = "SELECT 1 FROM entries WHERE seq = ? AND hash = ?"
    return connection.execute(query, (entries, head)).fetchone() is not None


def append(connection: sqlite3.Connection, path: Path, values: tuple[object, ...]) -> None:
    """Add an entry; ``values`` are its columns between the number and the hash."""
    seq, previous = last(connection, path)
    row = (seq + 1, *values)
    connection.execute(
        f"INSERT INTO entries VALUES ({', '.join('?' * len(COLUMNS))})",
        (*row, chained(previous, row)),
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


def genesis(about: dict[str, str]) -> str:
    """Return the hash before the first entry, which seals what the file says about itself."""
    return _digest(
        ["coinflower ledger", _CHAIN, about["data_set"], about["created"], about["salt"]]
    )


def chained(previous: str, row: tuple[object, ...]) -> str:
    """Return the hash of an entry (all its columns but the hash) and of everything before it."""
    return _digest([previous, *row])


def _digest(parts: list[object]) -> str:
    text = json.dumps(parts, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
