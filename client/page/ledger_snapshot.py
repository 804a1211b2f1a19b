"""What a ledger's file holds, read in one pass, and again only when the file has changed."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from coinflower.accounting.ledger.entries import EntryKind, Tally
from coinflower.accounting.ledger.errors import LedgerError
from coinflower.accounting.ledger.ledger import Ledger
from coinflower.accounting.ledger.statement import Statements
from coinflower.accounting.ledger.stops import Stops, name_of, read_stops
from coinflower.protocol.agreed import terms_of, unit_of
from coinflower.protocol.unit import Unit

# Reading takes time that the client would have: at most a tenth of it goes to the page.
_EASE = 10.0
_TICK = 50_000_000  # nanoseconds; file systems keep times to a few milliseconds

Signature = tuple[tuple[int, int, int] | None, ...]


@dataclass(frozen=True, kw_only=True)
class Account(Tally):
    """One experiment in the ledger, and when it was touched first and last."""

    first: str
    last: str

    @property
    def name(self) -> str:
        """The name without the hash of its terms."""
        return name_of(self.experiment)

    @property
    def short(self) -> str:
        """The beginning of the hash of its terms, which distinguishes namesakes."""
        return self.experiment.partition("#")[2][:8]

    @property
    def mode(self) -> str:
        """The mode that the owner agreed to; empty in entries that do not name it."""
        terms = terms_of(self)
        return "" if terms is None else str(terms.mode)

    @property
    def unit(self) -> Unit:
        """What the experiment protects."""
        return unit_of(self)


@dataclass(frozen=True, kw_only=True)
class LedgerSnapshot:
    """A ledger that passed verification.

    Attributes:
        data_set: Whose ledger it is.
        accounts: Every experiment, the one that was touched last at the end.
        charges: The experiment of every charged round, oldest first.
        entries: How many entries there are.
        head: The last entry's hash.
        stops: What the owner has stopped.
        statements: What answers questions about the figures.
    """

    data_set: str
    accounts: Sequence[Account]
    charges: Sequence[str]
    entries: int
    head: str
    stops: Stops
    statements: Statements


@dataclass(frozen=True, kw_only=True)
class LedgerReading:
    """What was seen: a snapshot, or why there is none."""

    snapshot: LedgerSnapshot | None
    problem: str = ""

    @property
    def version(self) -> str:
        """Changes when there is something else to see."""
        if self.snapshot is None:
            return self.problem
        seen, stops = self.snapshot, self.snapshot.stops
        return f"{seen.entries}.{seen.head}.{stops.paused_since}.{sorted(stops.left)}"


def read_snapshot(path: Path, statements: Statements | None = None) -> LedgerSnapshot:
    """Verify the ledger and read it.

    Args:
        path: The file.
        statements: What answered questions about it before, and knows some answers.

    Raises:
        LedgerError: It is missing, damaged, tampered with or not readable.
    """
    touched: dict[str, tuple[str, str]] = {}
    charges: list[str] = []
    entries, head = 0, ""
    with Ledger.open(path, read_only=True) as ledger, ledger.snapshot():
        data_set = ledger.data_set
        for entry in ledger.history():
            entries, head = entry.seq, entry.hash
            # Taken out and put back, so that the one touched last comes last.
            first, _ = touched.pop(entry.experiment, (entry.at, entry.at))
            touched[entry.experiment] = (first, entry.at)
            if entry.kind == EntryKind.FLIP:
                charges.append(entry.experiment)
        statements = statements or Statements(ledger.prices)
        tallies = {tally.experiment: tally for tally in ledger.tallies()}
    stops = read_stops(path)
    if stops.set_back_since:
        raise LedgerError(
            f"This ledger was found at {stops.set_back_since} to be set back to an older copy; its "
            "figures are too small. Put the newer one in its place."
        )
    return LedgerSnapshot(
        data_set=data_set,
        accounts=[
            Account(**vars(tallies[name]), first=first, last=last)
            for name, (first, last) in touched.items()
        ],
        charges=charges,
        entries=entries,
        head=head,
        stops=stops,
        statements=statements,
    )


@dataclass(kw_only=True)
class Reader:
    """Looks at a ledger as often as it is asked and reads it as seldom as it may."""

    path: Path
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _seen: Signature | None = None
    _reading: LedgerReading = field(default_factory=lambda: LedgerReading(snapshot=None))
    _next: float = 0.0

    def look(self, *, now: bool = False) -> LedgerReading:
        """Return what there is to see.

        Args:
            now: Read it afresh, whatever that costs.
        """
        with self._lock:
            signature = _signature(self.path)
            if now or (signature != self._seen and time.monotonic() >= self._next):
                before = time.thread_time()
                known = self._reading.snapshot
                self._reading = _read(self.path, known.statements if known else None)
                self._seen = signature if _is_settled(signature) else None
                self._next = time.monotonic() + _EASE * (time.thread_time() - before)
            return self._reading


def _read(path: Path, statements: Statements | None) -> LedgerReading:
    try:
        return LedgerReading(snapshot=read_snapshot(path, statements))
    except (LedgerError, ValueError, KeyError, TypeError) as error:
        # What a tamperer wrote may fail to parse in any of these ways.
        return LedgerReading(snapshot=None, problem=str(error) or type(error).__name__)


def _signature(path: Path) -> Signature:
    """Return what changes whenever the file is written; one of format 1 is by its log."""
    return tuple(_stat(part) for part in (path, path.with_name(path.name + "-wal")))


def _is_settled(signature: Signature) -> bool:
    """Return whether another write would show: one in the same tick of the clock would not."""
    written = max((part[2] for part in signature if part is not None), default=0)
    return time.time_ns() - written > _TICK


def _stat(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns
