"""The ledger's SQLite file: layout, opening, and the chain of hashes.

The file is write-ahead logged and synced on every commit. Rows of ``entries`` are only ever added;
each carries the hash of itself and of the row before it. ``tallies`` sums them up per experiment,
so that asking what was spent does not read every round; verification recomputes it.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import secrets
import sqlite3
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

FORMAT = 1
_APPLICATION_ID = 0x434F494E  # "COIN"
_BUSY_SECONDS = 60.0
_LEAST_ROOM = 1 << 16  # bytes; the index of a write-ahead log takes half of it
_FULL = "the disk is full; free some space"
_READ_ONLY = "the file or its folder is read-only; make it writable for this user"

NOTHING_CHARGED = "Nothing was charged."
KEEP_IT = (
    "Keep the file. A backup that misses rounds understates what was spent: unless one is known to "
    "be complete, count the budget as spent (docs/data-owners.md)."
)

_LAYOUT = f"""
PRAGMA application_id = {_APPLICATION_ID};
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


class LedgerError(Exception):
    """The ledger could not do what was asked. The message says why, and what that means."""


class LedgerCorruptError(LedgerError):
    """The file is not what this program wrote: truncated, edited, or not a ledger at all."""


def now() -> str:
    """Return the time as ISO 8601 in UTC."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def create_file(path: Path, data_set: str) -> None:
    """Write an empty ledger for ``data_set``; all of it appears under ``path``, or nothing.

    Raises:
        LedgerError: Something lies at ``path`` already, or it cannot be written.
    """
    if not data_set:
        raise LedgerError("A ledger needs the name of the data set that it guards.")
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        os.close(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        connection = sqlite3.connect(draft, isolation_level=None)
        try:
            connection.execute("PRAGMA synchronous = FULL")
            connection.executescript(_LAYOUT)
            connection.executemany(
                "INSERT INTO about VALUES (?, ?)",
                [("data_set", data_set), ("created", now()), ("salt", secrets.token_hex(16))],
            )
            _log_ahead(connection, path)
        finally:
            connection.close()
        os.link(draft, path)
        _sync_folder(path.parent)
    except FileExistsError:
        raise LedgerError(f"{path} exists already; a ledger is never overwritten.") from None
    except (OSError, sqlite3.Error) as error:
        raise LedgerError(f"The ledger {path} could not be created: {error}.") from None
    finally:
        for leftover in (draft, *(draft.with_name(draft.name + end) for end in ("-wal", "-shm"))):
            leftover.unlink(missing_ok=True)


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def connect(path: Path, *, read_only: bool) -> sqlite3.Connection:
    """Open the file and check that it is a ledger of a version we know.

    Raises:
        LedgerError: The file is missing, not readable, or of a newer version.
        LedgerCorruptError: The file is empty, truncated or not a ledger.
    """
    if not path.is_file():
        raise LedgerError(
            f"There is no ledger at {path}. If this data set never had one, create it; if it had, "
            "find the file: without it nobody knows what was already spent."
        )
    if path.stat().st_size == 0:
        raise LedgerCorruptError(f"The ledger {path} is an empty file. {KEEP_IT}")
    with explained(path, "" if read_only else NOTHING_CHARGED):
        connection = _connection(path, read_only)
        try:
            _check_kind(connection, path)
            if not read_only:
                _log_ahead(connection, path)
                connection.execute("PRAGMA synchronous = FULL")
        except BaseException:
            connection.close()
            raise
    return connection


def _connection(path: Path, read_only: bool) -> sqlite3.Connection:
    mode = "ro" if read_only else "rw"
    if read_only and not os.access(path.parent, os.W_OK) and not _log_of(path).exists():
        # Without a write-ahead log there is nothing to coordinate with, and no way to either.
        mode = "ro&immutable=1"
    return sqlite3.connect(
        f"file:{_quoted(path)}?mode={mode}",
        uri=True,
        isolation_level=None,
        timeout=_BUSY_SECONDS,
        check_same_thread=False,
    )


def _log_ahead(connection: sqlite3.Connection, path: Path) -> None:
    """Keep a write-ahead log; SQLite goes on without one and only says so."""
    (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
    if mode != "wal":
        raise LedgerError(
            f"The ledger {path} cannot keep a write-ahead log there (SQLite stays in mode "
            f"{mode!r}); put it on a local disk. {NOTHING_CHARGED}"
        )


def _quoted(path: Path) -> str:
    return str(path.absolute()).replace("%", "%25").replace("?", "%3f").replace("#", "%23")


def _log_of(path: Path) -> Path:
    return path.with_name(path.name + "-wal")


def _check_kind(connection: sqlite3.Connection, path: Path) -> None:
    (kind,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if kind != _APPLICATION_ID:
        raise LedgerCorruptError(f"{path} is not a ledger.")
    if version < 1:
        raise LedgerCorruptError(f"{path} has format {version}, which no ledger ever had.")
    if version > FORMAT:
        raise LedgerError(
            f"The ledger {path} has format {version}, this program knows up to {FORMAT}: "
            "use a newer Coinflower."
        )


def has_layout(connection: sqlite3.Connection) -> bool:
    """Whether every table, index and trigger of a ledger is there as it was made."""
    return _layout_of(connection) >= _made_layout()


@functools.cache
def _made_layout() -> frozenset[tuple[str, str, str]]:
    with contextlib.closing(sqlite3.connect(":memory:")) as fresh:
        fresh.executescript(_LAYOUT)
        return _layout_of(fresh)


def _layout_of(connection: sqlite3.Connection) -> frozenset[tuple[str, str, str]]:
    query = "SELECT type, name, sql FROM sqlite_master WHERE sql IS NOT NULL"
    return frozenset(connection.execute(query).fetchall())


@contextlib.contextmanager
def explained(path: Path, consequence: str = "") -> Iterator[None]:
    """Turn SQLite's errors into sentences for people, the last of which says what follows."""
    try:
        yield
    except sqlite3.Error as error:
        text = str(error)
        if "full" in text:
            reason = _FULL
        elif "readonly" in text or "read-only" in text:
            reason = _READ_ONLY
        elif "locked" in text:
            reason = f"another process has held it for {_BUSY_SECONDS:.0f} s"
        elif "unable to open" in text:
            reason = "it cannot be opened; check the permissions of the file and its folder"
        elif "disk I/O" in text:
            reason = _disk_trouble(path.absolute().parent) or text
        elif isinstance(error, sqlite3.IntegrityError):
            reason = text
        elif isinstance(error, sqlite3.DatabaseError) and not isinstance(
            error, sqlite3.OperationalError
        ):
            raise _damaged(path, text, consequence) from None
        else:
            reason = text
        raise LedgerError(f"The ledger {path} failed: {reason}. {consequence}".rstrip()) from None
    except UnicodeDecodeError:  # of SQLite's own message, which quotes what it could not read
        raise _damaged(path, "it holds bytes that are no text", consequence) from None


def _damaged(path: Path, reason: str, consequence: str) -> LedgerCorruptError:
    return LedgerCorruptError(
        f"The ledger {path} is damaged ({reason}). {KEEP_IT} {consequence}".rstrip()
    )


def untrusted(path: Path, what: str) -> LedgerCorruptError:
    """Return the error of a file that can be read but is not what was written."""
    return LedgerCorruptError(f"The ledger {path} cannot be trusted: {what}. {KEEP_IT}")


def _disk_trouble(folder: Path) -> str:
    """Say what is wrong with a disk that SQLite only calls an error; empty if nothing shows."""
    disk = os.statvfs(folder)
    if disk.f_bavail * disk.f_frsize < _LEAST_ROOM:
        return _FULL
    return "" if os.access(folder, os.W_OK) else _READ_ONLY


def genesis(about: dict[str, str]) -> str:
    """Return the hash before the first entry, which seals what the file says about itself."""
    return _digest(
        ["coinflower ledger", FORMAT, about["data_set"], about["created"], about["salt"]]
    )


def chained(previous: str, row: tuple[object, ...]) -> str:
    """Return the hash of an entry (all its columns but the hash) and of everything before it."""
    return _digest([previous, *row])


def _digest(parts: list[object]) -> str:
    text = json.dumps(parts, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
