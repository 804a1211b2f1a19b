"""What somebody has seen of a ledger: by it, a ledger that was set back is known."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from pathlib import Path

from coinflower.accounting.ledger import rows as ledger_rows
from coinflower.accounting.ledger.file import NOTHING_CHARGED, LedgerError


class SetBackError(LedgerError):
    """The ledger lacks what somebody has seen in it: an older copy is in its place."""


@dataclass(frozen=True, kw_only=True)
class Testimony:
    """A state that a ledger was in.

    Attributes:
        ledger: The ledger's public name.
        entries: How many entries it had.
        head: The hash of the last.
    """

    ledger: str
    entries: int
    head: str


def testify(connection: sqlite3.Connection, ledger: Path) -> Testimony:
    """Return the state that a ledger is in."""
    name = ledger_rows.read_about(connection, ledger)["id"]
    entries, head = ledger_rows.last(connection, ledger)
    return Testimony(ledger=name, entries=entries, head=head)


def require_seen(connection: sqlite3.Connection, ledger: Path, seen: Testimony, whose: str) -> None:
    """Refuse a ledger that was never in the state that was seen.

    Args:
        connection: The ledger, within a transaction.
        ledger: Its path.
        seen: A state of this very ledger.
        whose: Who has seen it, in words.

    Raises:
        SetBackError: Entries are missing.
    """
    if not ledger_rows.contains(connection, ledger, seen.entries, seen.head):
        raise SetBackError(
            f"The ledger {ledger} was set back: it lacks an entry that {whose} has seen. Put the "
            "newer ledger back in its place; if that is lost, count the budget as spent "
            f"(docs/data-owners.md). {NOTHING_CHARGED}"
        )
