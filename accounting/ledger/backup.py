"""Backups of a ledger: consistent copies that know what they are and take no charge.

A copy that could be charged would be a second ledger of the same records, each with half the truth.
Only a deliberate act (`adopt`) makes a backup a ledger again.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import sqlite3
from pathlib import Path

from coinflower.accounting.ledger import file as ledger_file
from coinflower.accounting.ledger import rows as ledger_rows
from coinflower.accounting.ledger.errors import LedgerError, explained
from coinflower.accounting.ledger.file import convert
from coinflower.accounting.ledger.verification import verify_file

_MARK = "backup"


def backup_made(connection: sqlite3.Connection, path: Path) -> str | None:
    """Return when this file was made as a backup; None if it is a ledger."""
    return ledger_rows.read_about(connection, path).get(_MARK)


def back_up(path: Path, target: Path) -> None:
    """Copy a ledger, also one in use, to ``target``; all of it appears there, or nothing.

    Raises:
        LedgerError: Something lies at ``target`` already, it cannot be written, or the ledger is
            not in order.
    """
    draft = target.with_name(f".{target.name}.{secrets.token_hex(8)}")
    try:
        os.close(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        with (
            contextlib.closing(ledger_file.connect(path, read_only=True)) as source,
            contextlib.closing(sqlite3.connect(draft, isolation_level=None)) as copy,
        ):
            with explained(path):
                source.backup(copy)
            with explained(target):
                copy.execute("PRAGMA synchronous = EXTRA")
                convert(copy, target, verify_file(copy, path).entries)
                copy.execute(
                    "INSERT OR IGNORE INTO about VALUES (?, ?)", (_MARK, ledger_file.now())
                )
        os.link(draft, target)
        ledger_file.sync_folder(target.parent)
    except FileExistsError:
        raise LedgerError(f"{target} exists already; a backup overwrites nothing.") from None
    except OSError as error:
        raise LedgerError(f"The backup {target} could not be made: {error}.") from None
    finally:
        for leftover in ("", "-journal", "-wal", "-shm"):
            draft.with_name(draft.name + leftover).unlink(missing_ok=True)


def adopt(path: Path) -> str:
    """Make a backup a ledger, and return when it was made; on disk when this returns.

    Raises:
        LedgerError: It is none, or not in order.
    """
    with (
        contextlib.closing(ledger_file.connect(path, read_only=False)) as connection,
        explained(path),
    ):
        connection.execute("BEGIN IMMEDIATE")
        verify_file(connection, path)
        made = backup_made(connection, path)
        if made is None:
            raise LedgerError(f"{path} is a ledger already, not a backup of one.")
        connection.execute("DELETE FROM about WHERE key = ?", (_MARK,))
        connection.execute("COMMIT")
    return made
