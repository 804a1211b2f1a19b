"""A notary's record: which rounds were opened, with which seeds, and the last echo of each ledger.

One SQLite file. What a notary is about to tell is on disk before it is told, so that no round is
ever opened twice, whatever happens in between. An older copy of the file would forget rounds, and a
server could have them opened again for other clients: a record is moved, never restored.
"""

from __future__ import annotations

import contextlib
import functools
import os
import secrets
import sqlite3
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path

from coinflower.accounting.errors import UserError
from coinflower.accounting.ledger.echo import NAME_BYTES, NO_TOKEN
from coinflower.protocol.objections import Objection, ObjectionError

_APPLICATION_ID = 0x434F4E4F  # "CONO"
_FORMAT = 1
_BUSY_SECONDS = 20.0
_HASH_BYTES = 16
_LAYOUT = f"""
PRAGMA application_id = {_APPLICATION_ID};
PRAGMA user_version = {_FORMAT};
CREATE TABLE about (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE openings (
    terms TEXT NOT NULL,
    round INTEGER NOT NULL,
    experiment TEXT NOT NULL,
    owners INTEGER NOT NULL,
    at TEXT NOT NULL,
    PRIMARY KEY (terms, round)
) WITHOUT ROWID;
CREATE TABLE seeds (hash BLOB PRIMARY KEY) WITHOUT ROWID;
CREATE TABLE witnesses (
    owner BLOB NOT NULL,
    ledger BLOB NOT NULL,
    token BLOB NOT NULL,
    PRIMARY KEY (owner, ledger)
) WITHOUT ROWID;
"""


@dataclass(frozen=True, kw_only=True)
class Opened:
    """What was opened of one experiment.

    Attributes:
        terms: Hash of its terms.
        experiment: Its name.
        rounds: How many rounds were opened.
        last_round: The last of them.
        fewest_owners: The fewest clients that a sum had.
        last_at: When the last was opened.
    """

    terms: str
    experiment: str
    rounds: int
    last_round: int
    fewest_owners: int
    last_at: str


class Record:
    """An open record. Use `create` once per notary, `open` ever after.

    Args:
        path: Where the file lies.
        connection: To it.
    """

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self.path = path
        self._connection = connection
        self._lock = threading.Lock()
        self._file = _identity(path)
        self._rounds = 0

    @classmethod
    def create(cls, path: Path, notary: str) -> None:
        """Write an empty record of the notary with this public key.

        Raises:
            ValueError: Something lies at ``path`` already, or it cannot be written.
        """
        draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
        try:
            os.close(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
            with contextlib.closing(sqlite3.connect(draft, isolation_level=None)) as connection:
                connection.execute("PRAGMA synchronous = EXTRA")
                connection.executescript(_LAYOUT)
                rows = [("notary", notary), ("created", _now())]
                connection.executemany("INSERT INTO about VALUES (?, ?)", rows)
            os.link(draft, path)
        except FileExistsError:
            raise UserError(f"{path} exists already; a record is never overwritten.") from None
        except (OSError, sqlite3.Error) as error:
            raise UserError(f"The record {path} could not be created: {error}.") from None
        finally:
            draft.unlink(missing_ok=True)

    @classmethod
    def open(cls, path: Path, notary: str, *, read_only: bool = False) -> Record:
        """Open the record of the notary with this public key.

        Raises:
            ValueError: It is missing, damaged, or another notary's.
        """
        if not path.is_file():
            raise UserError(
                f"There is no record at {path}. If this notary had one, find it: without it rounds "
                "might be opened twice. If it never had one, start with: coinflower notary create"
            )
        kind = "ro" if read_only else "rw"
        try:
            connection = sqlite3.connect(
                f"{path.resolve().as_uri()}?mode={kind}",
                uri=True,
                timeout=_BUSY_SECONDS,
                isolation_level=None,
                check_same_thread=False,
            )
            connection.execute("PRAGMA synchronous = EXTRA")
            (found,) = connection.execute("PRAGMA application_id").fetchone()
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            sound = [row[0] for row in connection.execute("PRAGMA integrity_check(1)")]
            sound_layout = sound == ["ok"] and _tables(connection) == _expected_tables()
            if (found, version) != (_APPLICATION_ID, _FORMAT) or not sound_layout:
                raise sqlite3.DatabaseError("not a record of this version, or damaged")
            about = dict(connection.execute("SELECT * FROM about").fetchall())
        except sqlite3.Error as error:
            raise UserError(
                f"The record {path} cannot be used: {error}. Keep the file: without it rounds "
                "might be opened twice."
            ) from None
        if about.get("notary") != notary:
            raise UserError(f"The record {path} belongs to a notary with another key.")
        return cls(path, connection)

    def close(self) -> None:
        """Close the file, once whoever uses it is done: SQLite crashes if it is closed in use."""
        with self._lock:
            self._connection.close()

    def require_writable(self) -> None:
        """Refuse to go on with a record that cannot be written.

        Raises:
            ObjectionError: It cannot.
        """
        with self._transaction() as connection:
            connection.execute("INSERT OR REPLACE INTO about VALUES ('asked', ?)", (_now(),))

    def note_opening(
        self,
        *,
        terms: str,
        experiment: str,
        round_: int,
        seeds: Sequence[bytes],
        tokens: Mapping[bytes, bytes],
    ) -> None:
        """Write down that a round is opened; it is on disk when this returns.

        Rounds of one experiment are opened in order: nobody can bring back an older echo with an
        older round of it. Between experiments there is no order that a notary could know.

        Args:
            terms: Hash of the terms.
            experiment: Name of the experiment.
            round_: The round.
            seeds: Of all masks.
            tokens: The echo that came with each owner's ticket.

        Raises:
            ObjectionError: The round, a later one or a seed was seen before; or it could not be
                written.
        """
        hashes = [sha256(seed).digest()[:_HASH_BYTES] for seed in seeds]
        with self._transaction() as connection:
            (last,) = connection.execute(
                "SELECT max(round) FROM openings WHERE terms = ?", (terms,)
            ).fetchone()
            if last is not None and round_ <= last:
                detail = f"round {round_} of {experiment} was asked for; round {last} was opened"
                raise ObjectionError(Objection.ROUND, detail)
            known = [place for place, hash_ in enumerate(hashes) if self._knows_seed(hash_)]
            if known:
                raise ObjectionError(Objection.TICKETS, "a seed was used before", known)
            connection.execute(
                "INSERT INTO openings VALUES (?, ?, ?, ?, ?)",
                (terms, round_, experiment, len(seeds), _now()),
            )
            connection.executemany("INSERT INTO seeds VALUES (?)", [(one,) for one in hashes])
            connection.executemany(
                "INSERT INTO witnesses VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET "
                "token = excluded.token",
                [(owner, token[:NAME_BYTES], token) for owner, token in tokens.items()],
            )

    def token(self, owner: bytes, ledger: bytes) -> bytes:
        """Return the last echo of an owner's ledger, or ``NO_TOKEN``."""
        with self._transaction() as connection:
            found = connection.execute(
                "SELECT token FROM witnesses WHERE owner = ? AND ledger = ?", (owner, ledger)
            ).fetchone()
        return NO_TOKEN if found is None else bytes(found[0])

    def opened(self) -> list[Opened]:
        """Return what was opened, by experiment, the latest last."""
        with self._lock:
            rows = self._connection.execute(
                "SELECT terms, experiment, count(*), max(round), min(owners), max(at) "
                "FROM openings GROUP BY terms ORDER BY max(at)"
            ).fetchall()
        names = ("terms", "experiment", "rounds", "last_round", "fewest_owners", "last_at")
        return [Opened(**dict(zip(names, row, strict=True))) for row in rows]

    def witnesses(self) -> int:
        """Return how many ledgers it keeps an echo of."""
        with self._lock:
            row = self._connection.execute("SELECT count(*) FROM witnesses").fetchone()
        return int(row[0])

    def _count(self) -> int:
        """Return how many rounds were opened, which never becomes less."""
        row = self._connection.execute("SELECT count(*) FROM openings").fetchone()
        return int(row[0])

    def _knows_seed(self, hash_: bytes) -> bool:
        found = self._connection.execute("SELECT 1 FROM seeds WHERE hash = ?", (hash_,))
        return found.fetchone() is not None

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """Hold the write lock; commit durably, or change nothing."""
        with self._lock:
            try:
                self._connection.execute("BEGIN IMMEDIATE")
                try:
                    if self._count() < self._rounds:
                        raise sqlite3.OperationalError("an older copy was written over it")
                    yield self._connection
                    if _identity(self.path) != self._file:
                        raise sqlite3.OperationalError("it was moved or replaced")
                    rounds = self._count()
                    self._connection.execute("COMMIT")
                    self._rounds = rounds
                except BaseException:
                    if self._connection.in_transaction:
                        self._connection.execute("ROLLBACK")
                    raise
            except sqlite3.Error as error:
                detail = f"the record {self.path} failed: {error}"
                raise ObjectionError(Objection.RECORD, detail) from error


def _tables(connection: sqlite3.Connection) -> list[str]:
    """Return what the tables of a database are, in SQL."""
    rows = connection.execute("SELECT sql FROM sqlite_master WHERE sql NOT NULL ORDER BY name")
    return [row[0] for row in rows]


@functools.cache
def _expected_tables() -> list[str]:
    with contextlib.closing(sqlite3.connect(":memory:")) as connection:
        connection.executescript(_LAYOUT)
        return _tables(connection)


def _identity(path: Path) -> tuple[int, int] | None:
    """Return which file a name stands for now; None if there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
