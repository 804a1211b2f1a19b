"""Ledgers of format 1 become ledgers of today, and keep every entry.

They kept a write-ahead log. Their file alone may lack the newest entries and show no sign of it, so
a copy of it that was made while a client ran, without the log, cannot be told from a ledger that
was closed. The new format ends that: the log is taken into the file, which older programs then
refuse.
"""

from __future__ import annotations

import logging
import sqlite3
from pathlib import Path

from coinflower.accounting.ledger import file as ledger_file
from coinflower.accounting.ledger.file import NOTHING_CHARGED, LedgerError
from coinflower.accounting.ledger.layout import FORMAT, LOGGED_AHEAD, STOPS_LAYOUT

logger = logging.getLogger("coinflower.ledger")


def convert(connection: sqlite3.Connection, path: Path, entries: int) -> None:
    """Give a verified ledger today's format, durably; a crash leaves it in one or the other.

    Raises:
        LedgerError: Another process uses it.
    """
    if ledger_file.format_of(connection) != LOGGED_AHEAD:
        return
    try:
        ledger_file.keep_journal(connection, path)
    except sqlite3.OperationalError as error:
        if "locked" not in str(error):
            raise
        raise LedgerError(
            f"The ledger {path} has an older format, and another process uses it; stop all clients "
            f"of it before this version opens it for the first time. {NOTHING_CHARGED}"
        ) from None
    connection.execute("BEGIN IMMEDIATE")
    try:
        if ledger_file.format_of(connection) == LOGGED_AHEAD:
            connection.executemany("INSERT INTO about VALUES (?, ?)", ledger_file.identity())
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
