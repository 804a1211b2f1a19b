"""The tables, indexes and triggers of a ledger, and whether a file has them and no others.

Rows of ``entries`` are only ever added; each carries the hash of itself and of the row before it.
``tallies`` sums them up per experiment, so that asking what was spent does not read every round;
verification recomputes it, and its columns ``committed`` and ``joined`` count the rounds reserved
and those taken part in. ``about`` says whose ledger it is. ``stops`` is made by the first stop.
"""

from __future__ import annotations

import contextlib
import functools
import sqlite3

FORMAT = 2
LOGGED_AHEAD = 1
"""The format whose files kept a write-ahead log."""
APPLICATION_ID = 0x434F494E  # "COIN"

LAYOUT = f"""
PRAGMA application_id = {APPLICATION_ID};
PRAGMA user_version = {FORMAT};
CREATE TABLE about (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE entries (
    seq INTEGER PRIMARY KEY,
    kind TEXT NOT NULL CHECK (kind IN ('commit', 'charge', 'answer', 'release')),
    experiment TEXT NOT NULL,
    round INTEGER,
    terms TEXT NOT NULL,
    rounds INTEGER,
    coin INTEGER,
    secure INTEGER NOT NULL,
    at TEXT NOT NULL,
    hash TEXT NOT NULL
);
CREATE UNIQUE INDEX once_a_round ON entries (experiment, round, kind) WHERE round IS NOT NULL;
CREATE TABLE tallies (
    experiment TEXT PRIMARY KEY,
    terms TEXT NOT NULL,
    committed INTEGER NOT NULL,
    charged INTEGER NOT NULL,
    joined INTEGER NOT NULL,
    secure INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TRIGGER entries_are_never_changed BEFORE UPDATE ON entries
    BEGIN SELECT RAISE(ABORT, 'ledger entries are never changed'); END;
CREATE TRIGGER entries_are_never_deleted BEFORE DELETE ON entries
    BEGIN SELECT RAISE(ABORT, 'ledger entries are never deleted'); END;
"""

# No experiment has an empty name, so this one can stand for all of them.
ALL = ""


def _named(column: str) -> str:
    return f"substr({column}, 1, instr({column} || '#', '#') - 1)"


_STOPS_TABLE = (
    "CREATE TABLE IF NOT EXISTS stops (experiment TEXT PRIMARY KEY, at TEXT NOT NULL) WITHOUT ROWID"
)
_STOPS_END = "BEGIN SELECT RAISE(ABORT, 'its owner has stopped this experiment'); END"

STOPS_LAYOUT = (
    _STOPS_TABLE,
    # Made anew each time: an older one may look at the whole key.
    "DROP TRIGGER IF EXISTS stopped_is_stopped",
    "CREATE TRIGGER stopped_is_stopped BEFORE INSERT ON entries WHEN NEW.kind <> 'release' AND "
    f"EXISTS (SELECT 1 FROM stops WHERE {_named('experiment')} IN ('{ALL}', "
    f"{_named('NEW.experiment')})) {_STOPS_END}",
)
_OLDER_STOPS_LAYOUT = (
    _STOPS_TABLE,
    "CREATE TRIGGER stopped_is_stopped BEFORE INSERT ON entries WHEN NEW.kind <> 'release' "
    f"AND EXISTS (SELECT 1 FROM stops WHERE experiment IN ('{ALL}', NEW.experiment)) {_STOPS_END}",
)

Parts = frozenset[tuple[str, str, str]]


def has_layout(connection: sqlite3.Connection) -> bool:
    """Return whether a ledger's tables, indexes and triggers are as they were made, no others.

    One trigger more could take back every charge in silence.
    """
    return _layout_of(connection) in _made_layouts()


@functools.cache
def _made_layouts() -> frozenset[Parts]:
    made = []
    for extra in ((), STOPS_LAYOUT, _OLDER_STOPS_LAYOUT):
        with contextlib.closing(sqlite3.connect(":memory:")) as fresh:
            fresh.executescript(";\n".join((LAYOUT, *extra)))
            made.append(_layout_of(fresh))
    return frozenset(made)


def _layout_of(connection: sqlite3.Connection) -> Parts:
    # SQLite's own notes on how to search (ANALYZE) decide nothing.
    query = (
        "SELECT type, name, sql FROM sqlite_master WHERE sql IS NOT NULL "
        "AND NOT (type = 'table' AND name GLOB 'sqlite_stat[0-9]')"
    )
    return frozenset(connection.execute(query).fetchall())
