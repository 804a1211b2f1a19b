"""An open ledger's file: verified, watched, and written in transactions that nothing outruns.

Before anything that rests on a transaction leaves the client, the file is still the one that was
opened, holds what this client has seen of it, and the witness, if there is one, has noted its last
entry.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

from coinflower.accounting.coin import CoinSource, SecureCoin
from coinflower.accounting.ledger import echo as ledger_echo
from coinflower.accounting.ledger import file as ledger_file
from coinflower.accounting.ledger import rows as ledger_rows
from coinflower.accounting.ledger import stops as ledger_stops
from coinflower.accounting.ledger.backup import backup_made
from coinflower.accounting.ledger.errors import (
    NOTHING_CHARGED,
    LedgerError,
    SetBackError,
    explained,
)
from coinflower.accounting.ledger.file import convert
from coinflower.accounting.ledger.layout import LOGGED_AHEAD
from coinflower.accounting.ledger.place import Place
from coinflower.accounting.ledger.verification import Verification, verify_file
from coinflower.accounting.ledger.witness import Testimony, Witness, require_seen, testify


class OpenLedgerFile:
    """The file of an open ledger; `coinflower.accounting.ledger.ledger.Ledger` charges to it."""

    def __init__(
        self,
        path: Path,
        connection: sqlite3.Connection,
        coins: CoinSource | None = None,
        place: Place | None = None,
    ) -> None:
        self.path = path
        self._place = place
        self._witness: Witness | None = None
        self._seen: Testimony | None = None
        self._connection = connection
        self._coins = coins or SecureCoin()
        self._lock = threading.RLock()
        self._process = os.getpid()
        self._answered_with_seeds: frozenset[str] = frozenset()

    @classmethod
    def create(cls, path: Path, data_set: str, *, coins: CoinSource | None = None) -> Self:
        """Write a new ledger for ``data_set`` and open it; refuse if anything is at ``path``."""
        ledger_file.create_file(Path(path), data_set)
        return cls.open(path, coins=coins)

    @classmethod
    def open(
        cls,
        path: Path,
        *,
        data_set: str | None = None,
        coins: CoinSource | None = None,
        witness: Path | None = None,
        read_only: bool = False,
    ) -> Self:
        """Open and verify an existing ledger; a missing or damaged one is an error.

        Args:
            path: The file.
            data_set: If given, the name that the ledger must bear.
            coins: Where coins come from; secure ones by default.
            witness: Where the last entry is noted, too, before a coin's outcome leaves.
            read_only: For looking only.
        """
        path = Path(path)
        # Before the file is opened: what replaces it meanwhile must not be taken for it.
        place = None if read_only else Place.of(path)
        connection = ledger_file.connect(path, read_only=read_only)
        try:
            ledger = cls(path, connection, coins, place)
            entries = ledger.verify().entries
            if data_set is not None and ledger.data_set != data_set:
                raise LedgerError(
                    f"The ledger {path} belongs to data set {ledger.data_set!r}, not {data_set!r}."
                )
            if not read_only:
                ledger._begin(entries, witness)
        except BaseException:
            connection.close()
            raise
        return ledger

    def _begin(self, entries: int, witness: Path | None) -> None:
        """Make a verified ledger ready for charges, or refuse it."""
        made = backup_made(self._connection, self.path)
        if made is not None:
            raise LedgerError(
                f"{self.path} is a backup, made at {made}, and takes no charge. If the ledger is "
                f'lost, run "coinflower ledger adopt {self.path}", which says what that means.'
            )
        with explained(self.path, NOTHING_CHARGED):
            convert(self._connection, self.path, entries)
        if witness is not None:
            self._take_witness(witness)

    def close(self) -> None:
        """Close the file, once whoever uses it is done: SQLite crashes if it is closed in use."""
        with self._lock:
            self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def data_set(self) -> str:
        """Name of the data set that this ledger guards."""
        with self._lock, explained(self.path):
            return ledger_rows.read_about(self._connection, self.path)["data_set"]

    @property
    def caveat(self) -> str:
        """What to know before trusting the figures; empty if nothing."""
        made = self.backup_made
        if made is not None:
            return f"This is a backup, made at {made}: whatever was charged since is not in it."
        found = ledger_stops.read_stops(self.path).set_back_since
        if found is not None:
            return (
                f"This ledger was found at {found} to be set back to an older copy; its figures "
                "are too small, and it takes no charge."
            )
        with self._lock, explained(self.path):
            format_ = ledger_file.format_of(self._connection)
        if format_ == LOGGED_AHEAD:
            return (
                "This ledger has an older format. If the file was copied while a client ran, it "
                "may miss entries."
            )
        return ""

    @property
    def backup_made(self) -> str | None:
        """When this file was made as a backup; None if it is a ledger."""
        with self._lock, explained(self.path):
            return backup_made(self._connection, self.path)

    def verify(self) -> Verification:
        """Check the file, the chain of hashes and the sums.

        Raises:
            LedgerCorruptError: Something was changed, cut off or put in from outside.
        """
        with self.snapshot():
            found = verify_file(self._connection, self.path)
        self._answered_with_seeds = found.answered_with_seeds
        return Verification(entries=found.entries, head=found.head)

    def _take_witness(self, path: Path, *, anew: bool = False) -> None:
        witness = Witness(path)
        with self._transaction(NOTHING_CHARGED):
            witness.confirm(self._connection, self.path, anew=anew)
        self._witness = witness

    def bear_witness(self, path: Path) -> None:
        """Keep a witness at ``path`` from now on, a new one if there is none.

        Raises:
            LedgerError: There is one that has seen another or a newer ledger.
        """
        self._take_witness(path, anew=True)

    def echo(self) -> bytes:
        """Return a sealed note of the last entry, for a server to keep and send back."""
        with self.snapshot():
            key = ledger_rows.read_about(self._connection, self.path)["key"]
            return ledger_echo.seal(testify(self._connection, self.path), key)

    def heed(self, token: object, whose: str = "a server") -> None:
        """Stop this ledger for good if it lacks what an echo of its own speaks of.

        Args:
            token: The echo.
            whose: Who kept it, in words.

        Raises:
            SetBackError: It was set back.
        """
        try:
            with self.snapshot():
                about = ledger_rows.read_about(self._connection, self.path)
                seen = ledger_echo.unseal(token, about["id"], about["key"])
                if seen is not None:
                    require_seen(self._connection, self.path, seen, whose)
        except SetBackError:
            ledger_stops.stop_set_back(self.path)
            raise

    def require_witnessed(self, path: Path) -> None:
        """Refuse a ledger that lacks what the witness at ``path`` has seen."""
        with self.snapshot():
            Witness(path).look(self._connection, self.path)

    @contextlib.contextmanager
    def _transaction(self, if_it_fails: str) -> Iterator[None]:
        """Hold the write lock of file and object; commit durably, or change nothing."""
        try:
            with self._bracket("BEGIN IMMEDIATE", "COMMIT", if_it_fails):
                self._require_place(if_it_fails)
                if self._seen is not None:  # a copy may have been written over the very file
                    require_seen(self._connection, self.path, self._seen, "this client")
                yield
                state = testify(self._connection, self.path)
            self._seen = state
        except SetBackError:
            if self._seen is not None:
                ledger_stops.stop_set_back(self.path)
            raise
        except LedgerError:
            self._require_place(if_it_fails)  # SQLite has other words for a file that was moved
            raise
        # Before a coin's outcome leaves: the next client must find this very charge.
        self._require_place("What was charged stays charged; nothing leaves.")
        if self._witness is not None:
            # Under the lock, so that no other process moves the witness back.
            with self._bracket("BEGIN IMMEDIATE", "ROLLBACK"):
                self._witness.follow(self._connection, self.path)

    def _require_place(self, if_it_fails: str) -> None:
        if self._place is not None:
            self._place.require(if_it_fails)

    @contextlib.contextmanager
    def snapshot(self) -> Iterator[None]:
        """Read one state of the file, whatever others write meanwhile."""
        with self._bracket("BEGIN", "ROLLBACK"):
            yield

    @contextlib.contextmanager
    def _bracket(self, begin: str, end: str, if_it_fails: str = "") -> Iterator[None]:
        if self._process != os.getpid():
            # SQLite's locks do not hold across a fork: two processes could flip the same coin.
            raise LedgerError(
                f"The ledger {self.path} was opened by another process, before a fork; open it "
                f"again in this one. {if_it_fails}".rstrip()
            )
        with self._lock, explained(self.path, if_it_fails):
            self._connection.execute(begin)
            try:
                yield
                self._connection.execute(end)
            except BaseException:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise
