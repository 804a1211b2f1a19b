"""Whether a ledger's file is what this program wrote: its layout, its chain of hashes, its sums."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coinflower.accounting.ledger import file as ledger_file
from coinflower.accounting.ledger import rows as ledger_rows
from coinflower.accounting.ledger.entries import EntryKind, TallyRow
from coinflower.accounting.ledger.errors import untrusted
from coinflower.accounting.ledger.layout import LOGGED_AHEAD, has_layout


@dataclass(frozen=True, kw_only=True)
class Verification:
    """A ledger that passed: how many entries, and the last hash, worth noting elsewhere."""

    entries: int
    head: str


@dataclass(frozen=True, kw_only=True)
class Chain:
    """What the entries of a ledger imply.

    Attributes:
        entries: How many there are.
        head: The last hash.
        sums: The row of every experiment's tally.
        answered_with_seeds: Experiments with an answer whose noise was seeded.
    """

    entries: int
    head: str
    sums: Mapping[str, TallyRow]
    answered_with_seeds: frozenset[str]


def follow_chain(rows: Iterable[tuple[Any, ...]], start: str) -> Chain:
    """Check the hashes of all rows and add them up.

    Args:
        rows: Database rows in the order of ``COLUMNS``, oldest first.
        start: The hash before the first row.

    Raises:
        ValueError: A row does not belong where it stands.
    """
    count, head = 0, start
    sums: dict[str, TallyRow] = {}
    seeded: set[str] = set()
    for row in rows:
        count += 1
        head = ledger_rows.chained(head, row[:-1])
        if row[0] != count or row[-1] != head:
            raise ValueError(f"entry {row[0]} was changed, or one before it is missing")
        _, kind, experiment, _, written, rounds, coin, secure, *_ = row
        before = sums.get(experiment, (experiment, written, 0, 0, 0, 1))
        _, terms, reserved, charged, took_part, was_secure = before
        if kind == EntryKind.FLIP:
            charged, took_part = charged + 1, took_part + coin
        elif kind == EntryKind.ANSWER:
            seeded.update([] if secure else [experiment])
        else:
            reserved = rounds
            # Only a reservation says what was agreed to.
            terms = written if kind == EntryKind.RESERVE else terms
        if kind != EntryKind.RELEASE:  # which takes no randomness
            was_secure = min(was_secure, secure)
        sums[experiment] = (experiment, terms, reserved, charged, took_part, was_secure)
    return Chain(entries=count, head=head, sums=sums, answered_with_seeds=frozenset(seeded))


def verify_file(connection: sqlite3.Connection, path: Path) -> Chain:
    """Check the file and return what its entries imply; within a transaction.

    Raises:
        LedgerCorruptError: Something was changed, cut off or put in from outside.
    """
    # Not quick_check, which trusts the index that tells whether a coin was flipped before.
    (sound,) = connection.execute("PRAGMA integrity_check(1)").fetchone()
    if sound != "ok":
        raise untrusted(path, f"SQLite finds it damaged: {sound}")
    if not has_layout(connection):
        what = "its tables, indexes or triggers are not those of a ledger, or there are others"
        raise untrusted(path, what)
    about = ledger_rows.read_about(connection, path)
    if ledger_file.format_of(connection) != LOGGED_AHEAD and not {"id", "key"} <= about.keys():
        raise untrusted(path, "it lacks its own name or key")
    _check_stops(connection, path)
    try:
        found = follow_chain(ledger_rows.entries(connection), ledger_rows.genesis(about))
    except (TypeError, ValueError) as error:  # a value of another type than was written
        raise untrusted(path, str(error)) from None
    tallies = connection.execute("SELECT * FROM tallies").fetchall()
    stamped = ledger_rows.restamp(tallies, found.answered_with_seeds)
    if {row[0]: row for row in stamped} != found.sums:
        raise untrusted(path, "its sums do not agree with its entries")
    return found


def _check_stops(connection: sqlite3.Connection, path: Path) -> None:
    """Refuse stops that are not texts: what holds a client back has to be readable."""
    if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'stops'").fetchone():
        return
    for experiment, at in connection.execute("SELECT experiment, at FROM stops"):
        if not isinstance(experiment, str) or not isinstance(at, str):
            raise untrusted(path, "its table of stops holds something other than text")
