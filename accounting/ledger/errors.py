"""A ledger's errors: each says in words what is wrong with the file, and what that means."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path

BUSY_SECONDS = 60.0
"""So long one process waits for another."""
_LEAST_ROOM = 1 << 16  # bytes; a charge changes a few pages, which the journal holds once more
_FULL = "the disk is full; free some space"
_READ_ONLY = "the file or its folder is read-only; make it writable for this user"

NOTHING_CHARGED = "Nothing was charged."
KEEP_IT = (
    "Keep the file. A backup that misses rounds understates what was spent: unless one is known to "
    "be complete, count the budget as spent (docs/data-owners.md)."
)


class LedgerError(Exception):
    """The ledger could not do what was asked. The message says why, and what that means."""


class LedgerCorruptError(LedgerError):
    """The file is not what this program wrote: truncated, edited, or not a ledger at all."""


class SetBackError(LedgerError):
    """The ledger lacks what somebody has seen in it: an older copy is in its place."""


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
            reason = f"another process has held it for {BUSY_SECONDS:.0f} s"
        elif "unable to open" in text:
            reason = "it cannot be opened; check the permissions of the file and its folder"
        elif "closed database" in text:
            reason = "this program has closed it, as it stops"
        elif "disk I/O" in text:
            reason = _disk_trouble(path.resolve().parent) or text
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
        raise _damaged(path, "it holds bytes that are not text", consequence) from None


def require_room(path: Path) -> None:
    """Refuse a disk so full that the next charge might fail."""
    if _disk_trouble(path.resolve().parent) == _FULL:
        raise LedgerError(f"The ledger {path} failed: {_FULL}. {NOTHING_CHARGED}")


def _damaged(path: Path, reason: str, consequence: str) -> LedgerCorruptError:
    return LedgerCorruptError(
        f"The ledger {path} is damaged ({reason}). {KEEP_IT} {consequence}".rstrip()
    )


def untrusted(path: Path, what: str) -> LedgerCorruptError:
    """Return the error of a file that can be read but is not what was written."""
    return LedgerCorruptError(f"The ledger {path} cannot be trusted: {what}. {KEEP_IT}")


def _disk_trouble(folder: Path) -> str:
    """Say what is wrong with a disk that SQLite only calls an error; empty if nothing shows."""
    try:
        disk = os.statvfs(folder)
    except OSError:  # the folder is gone
        return ""
    if disk.f_bavail * disk.f_frsize < _LEAST_ROOM:
        return _FULL
    return "" if os.access(folder, os.W_OK) else _READ_ONLY
