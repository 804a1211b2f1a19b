"""A witness: the last entry of a ledger, noted at a second place before a coin's outcome leaves.

A ledger that was set back, by a restored backup or a folder copied over it, is whole and in order;
it only lacks what came later. The witness lies elsewhere, best on another disk, and knows of it.
Order matters: first the ledger's commit, then the witness, then the outcome. A crash in between
leaves a witness that is behind, never one that the ledger does not contain; the next client
to open the ledger moves it forward.
"""

from __future__ import annotations

import json
import os
import secrets
import sqlite3
from dataclasses import asdict, dataclass
from pathlib import Path

from coinflower.accounting.ledger import file as ledger_file
from coinflower.accounting.ledger import rows as ledger_rows
from coinflower.accounting.ledger.errors import NOTHING_CHARGED, LedgerError, SetBackError

_MARK = "witness"


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


class Witness:
    """The file of a witness; used only while the ledger's write lock is held.

    Args:
        path: Where it lies.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._last: Testimony | None = None

    def confirm(self, connection: sqlite3.Connection, ledger: Path, *, anew: bool = False) -> None:
        """Refuse a ledger that was set back, else move the witness to its last entry.

        Args:
            connection: The ledger, in a transaction that can write.
            ledger: Its path.
            anew: The owner wants a new witness because the old one is gone.

        Raises:
            LedgerError: The ledger lacks what the witness saw, or the witness is gone.
        """
        if self.path.resolve() in {ledger.resolve(), ledger_file.beside(ledger, "-journal")}:
            raise LedgerError(f"The witness {self.path} must not be the ledger itself.")
        marked = _MARK in ledger_rows.read_about(connection, ledger)
        seen, now = self._read(), testify(connection, ledger)
        if seen is None and marked and now.entries and not anew:
            raise LedgerError(
                f"The ledger {ledger} has a witness, but there is none at {self.path}. Find it: is "
                "its disk there? If it is lost, and you are sure that this ledger is the newest, "
                f'make a new one with "coinflower ledger witness {ledger} {self.path}". '
                f"{NOTHING_CHARGED}"
            )
        if seen is not None:
            self._require_seen(connection, ledger, seen)
        self._write(now)
        # Only now: a mark without a file would refuse a sound ledger after a crash.
        connection.execute("INSERT OR IGNORE INTO about VALUES (?, ?)", (_MARK, ledger_file.now()))

    def look(self, connection: sqlite3.Connection, ledger: Path) -> None:
        """Refuse a ledger that was set back; change nothing.

        Raises:
            LedgerError: The ledger lacks what the witness saw, or there is none.
        """
        seen = self._read()
        if seen is None:
            raise LedgerError(f"There is no witness at {self.path}.")
        self._require_seen(connection, ledger, seen)

    def _require_seen(self, connection: sqlite3.Connection, ledger: Path, seen: Testimony) -> None:
        if seen.ledger != testify(connection, ledger).ledger:
            raise LedgerError(
                f"The ledger {ledger} is not the one that its witness {self.path} belongs to. "
                f"{NOTHING_CHARGED}"
            )
        require_seen(connection, ledger, seen, f"its witness {self.path}")

    def follow(self, connection: sqlite3.Connection, ledger: Path) -> None:
        """Write down the ledger's last entry, unless that was done before.

        Raises:
            LedgerError: It could not be written.
        """
        now = testify(connection, ledger)
        if now != self._last:
            self._write(now)

    def _read(self) -> Testimony | None:
        try:
            fields = json.loads(self.path.read_bytes())
            seen = Testimony(**fields)
            if list(map(type, fields.values())) != [str, int, str]:
                raise TypeError
        except FileNotFoundError:
            return None
        except OSError as error:
            raise LedgerError(f"The witness {self.path} cannot be read: {error}.") from None
        except (TypeError, ValueError, RecursionError):
            raise LedgerError(
                f"The witness {self.path} is damaged. If you are sure that the ledger is the "
                'newest, delete the witness and make a new one with "coinflower ledger witness".'
            ) from None
        return seen

    def _write(self, now: Testimony) -> None:
        draft = self.path.with_name(f".{self.path.name}.{secrets.token_hex(4)}")
        try:
            try:
                with os.fdopen(
                    os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w"
                ) as file:
                    file.write(json.dumps(asdict(now)) + "\n")
                    file.flush()
                    os.fsync(file.fileno())
                draft.replace(self.path)
                ledger_file.sync_folder(self.path.parent)
            finally:
                draft.unlink(missing_ok=True)
        except OSError as error:
            raise LedgerError(
                f"The witness {self.path} could not be written: {error.strerror}. What was charged "
                "stays charged; nothing leaves."
            ) from None
        self._last = now
