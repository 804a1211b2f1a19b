"""The ledger's SQLite file: making it, opening it, and converting one of an older format.

The file keeps a rollback journal and is synced on every commit: when a commit returns, the file by
itself holds everything. A copy of it that was taken in the middle of a write is found by
verification, since entries, their index and their sums lie in different places. Ledgers of format 1
kept a write-ahead log instead. Their file alone may lack the newest entries and show no sign of it,
so a copy that was made while a client ran, without the log, looks like a ledger that was closed.
`convert` ends that: the log is taken into the file, which older programs then refuse.
"""

from __future__ import annotations

import logging
import os
import secrets
import sqlite3
from datetime import UTC, datetime
from pathlib import Path

from coinflower.accounting.ledger.errors import (
    BUSY_SECONDS,
    KEEP_IT,
    NOTHING_CHARGED,
    LedgerCorruptError,
    LedgerError,
    explained,
    require_room,
    untrusted,
)
from coinflower.accounting.ledger.layout import (
    APPLICATION_ID,
    FORMAT,
    LAYOUT,
    LOGGED_AHEAD,
    STOPS_LAYOUT,
)

logger = logging.getLogger("coinflower.ledger")


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
    for remnant in (beside(path, "-journal"), beside(path, "-wal")):
        if not path.exists() and _holds_changes(remnant):
            raise LedgerError(
                f"{remnant} belongs to a ledger that lay here and was never closed; put that "
                "ledger back, or this file somewhere else."
            )
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        os.close(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        connection = sqlite3.connect(draft, isolation_level=None)
        try:
            connection.execute("PRAGMA synchronous = EXTRA")
            connection.executescript(LAYOUT)
            connection.executemany(
                "INSERT INTO about VALUES (?, ?)",
                [
                    ("data_set", data_set),
                    ("created", now()),
                    ("salt", secrets.token_hex(16)),
                    *identity(),
                ],
            )
        finally:
            connection.close()
        os.link(draft, path)
        sync_folder(path.parent)
    except FileExistsError:
        raise LedgerError(f"{path} exists already; a ledger is never overwritten.") from None
    except (OSError, sqlite3.Error) as error:
        raise LedgerError(f"The ledger {path} could not be created: {error}.") from None
    finally:
        for leftover in (draft, beside(draft, "-journal")):
            leftover.unlink(missing_ok=True)


def identity() -> list[tuple[str, str]]:
    """Return what distinguishes a ledger: a public name, and a key that it alone has."""
    return [("id", secrets.token_hex(16)), ("key", secrets.token_hex(32))]


def beside(path: Path, ending: str) -> Path:
    """Return where SQLite keeps a file that belongs to a ledger."""
    real = path.resolve()
    return real.with_name(real.name + ending)


def _holds_changes(remnant: Path) -> bool:
    """Return whether SQLite would replay this file; a journal that is done begins with 0."""
    try:
        with remnant.open("rb") as file:
            return file.read(1) not in (b"", b"\0")
    except OSError:
        return False


def sync_folder(folder: Path) -> None:
    """Make durable which names a folder holds."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def require_there(path: Path) -> None:
    """Refuse a path at which there is no file."""
    if not path.is_file():
        raise LedgerError(
            f"There is no ledger at {path}. If this data set never had one, create it; if it had, "
            "find the file: without it nobody knows what was already spent."
        )


def connect(path: Path, *, read_only: bool) -> sqlite3.Connection:
    """Open the file and check that it is a ledger of a version we know.

    Raises:
        LedgerError: The file is missing, not readable, or of a newer version.
        LedgerCorruptError: The file is empty, truncated or not a ledger.
    """
    require_there(path)
    if path.stat().st_size == 0:
        raise LedgerCorruptError(f"The ledger {path} is an empty file. {KEEP_IT}")
    with explained(path, "" if read_only else NOTHING_CHARGED):
        connection = _to_look(path) if read_only else _connection(path, "rw")
        try:
            version = _check_kind(connection, path)
            (mode,) = connection.execute("PRAGMA journal_mode").fetchone()
            if mode == "wal" and version != LOGGED_AHEAD:
                raise untrusted(
                    path,
                    "another program made it keep a write-ahead log, without which the file alone "
                    'may miss entries; with all clients stopped, undo it by "PRAGMA journal_mode = '
                    'DELETE"',
                )
            if not read_only:
                require_room(path)
                connection.execute("PRAGMA synchronous = EXTRA")
                if version != LOGGED_AHEAD:
                    keep_journal(connection, path)
        except BaseException:
            connection.close()
            raise
    return connection


def _to_look(path: Path) -> sqlite3.Connection:
    """Connect without the means to write entries.

    Where this user may write, SQLite may still undo what a killed process left half written.
    """
    writable = os.access(path, os.W_OK) and os.access(path.resolve().parent, os.W_OK)
    connection = _connection(path, "rw" if writable else "ro")
    try:
        connection.execute("PRAGMA query_only = ON")
        connection.execute("PRAGMA schema_version")
    except sqlite3.OperationalError as error:
        connection.close()
        if writable or "unable to open" not in str(error) or beside(path, "-wal").exists():
            raise
        # Format 1 in a folder where no log can be made, but none is there to be read either.
        return _connection(path, "ro&immutable=1")
    except BaseException:
        connection.close()
        raise
    return connection


def _connection(path: Path, mode: str) -> sqlite3.Connection:
    return sqlite3.connect(
        f"file:{_quoted(path)}?mode={mode}",
        uri=True,
        isolation_level=None,
        timeout=BUSY_SECONDS,
        check_same_thread=False,
    )


def keep_journal(connection: sqlite3.Connection, path: Path) -> None:
    """Undo by a journal that stays; each commit syncs its end, so nothing comes back after a crash.

    Deleting it instead would have to sync the folder with every commit.
    """
    (mode,) = connection.execute("PRAGMA journal_mode = PERSIST").fetchone()
    if mode != "persist":
        raise LedgerError(
            f"The ledger {path} cannot keep a journal there (SQLite stays in mode {mode!r}); put "
            f"it on a local disk. {NOTHING_CHARGED}"
        )


def _quoted(path: Path) -> str:
    return str(path.absolute()).replace("%", "%25").replace("?", "%3f").replace("#", "%23")


def _check_kind(connection: sqlite3.Connection, path: Path) -> int:
    (kind,) = connection.execute("PRAGMA application_id").fetchone()
    version = format_of(connection)
    if kind != APPLICATION_ID:
        raise LedgerCorruptError(f"{path} is not a ledger.")
    if version < 1:
        raise LedgerCorruptError(f"{path} has format {version}, which no ledger ever had.")
    if version > FORMAT:
        raise LedgerError(
            f"The ledger {path} has format {version}, this program knows up to {FORMAT}: "
            "use a newer Coinflower."
        )
    return version


def format_of(connection: sqlite3.Connection) -> int:
    """Return the number of the file's format."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    return int(version)


def convert(connection: sqlite3.Connection, path: Path, entries: int) -> None:
    """Give a verified ledger today's format, durably; a crash leaves it in one or the other.

    Raises:
        LedgerError: Another process uses it.
    """
    if format_of(connection) != LOGGED_AHEAD:
        return
    try:
        keep_journal(connection, path)
    except sqlite3.OperationalError as error:
        if "locked" not in str(error):
            raise
        raise LedgerError(
            f"The ledger {path} has an older format, and another process uses it; stop all clients "
            f"of it before this version opens it for the first time. {NOTHING_CHARGED}"
        ) from None
    connection.execute("BEGIN IMMEDIATE")
    try:
        if format_of(connection) == LOGGED_AHEAD:
            connection.executemany("INSERT INTO about VALUES (?, ?)", identity())
            if connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'stops'").fetchone():
                for statement in STOPS_LAYOUT:
                    connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {FORMAT}")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    logger.warning(
        "The ledger %s had an older format and was converted with its %d entries. If the file was "
        "copied while a client ran, it may miss some: then do not use it.",
        path,
        entries,
    )
