"""What a ledger holds: budgets, entries, and their sums per experiment."""

from __future__ import annotations

import functools
import json
from dataclasses import asdict, dataclass
from typing import Any

from coinflower.accounting import validation
from coinflower.accounting.analyses.names import scheme_class
from coinflower.accounting.analyses.schemes import Scheme

COLUMNS = ("seq", "kind", "experiment", "round", "terms", "rounds", "coin", "secure", "at", "hash")


TallyRow = tuple[str, str, int, int, int, int]


@dataclass(frozen=True, kw_only=True)
class Budget:
    """What a data owner is willing to lose in all. ``epsilon`` = 0 means nothing may be spent."""

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        """Check both fields once."""
        validation.require_epsilon(self.epsilon)
        validation.require_delta(self.delta)


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One line of the ledger."""

    seq: int
    kind: str
    experiment: str
    round: int | None
    terms: str
    rounds: int | None
    coin: bool | None
    secure: bool
    at: str
    hash: str

    @classmethod
    def from_row(cls, row: tuple[object, ...]) -> Entry:
        """Return the entry of a database row in the order of ``COLUMNS``."""
        fields: dict[str, Any] = dict(zip(COLUMNS, row, strict=True))
        fields["coin"] = None if fields["coin"] is None else bool(fields["coin"])
        fields["secure"] = bool(fields["secure"])
        return cls(**fields)


@dataclass(frozen=True, kw_only=True)
class Tally:
    """One experiment in sum; ``secure`` if neither coins nor noise were ever seeded."""

    experiment: str
    terms: Scheme
    committed: int
    charged: int
    joined: int
    secure: bool

    @classmethod
    def from_row(cls, row: TallyRow) -> Tally:
        """Return the tally of a database row."""
        experiment, terms, committed, charged, joined, secure = row
        return cls(
            experiment=experiment,
            terms=terms_from_json(terms),
            committed=committed,
            charged=charged,
            joined=joined,
            secure=bool(secure),
        )


@functools.lru_cache(maxsize=1024)
def terms_to_json(terms: Scheme) -> str:
    """Return a scheme as canonical JSON."""
    return json.dumps({"scheme": terms.name, **asdict(terms)}, sort_keys=True)


@functools.lru_cache(maxsize=1024)
def terms_from_json(text: str) -> Scheme:
    """Return the scheme that `terms_to_json` wrote."""
    fields = json.loads(text)
    return scheme_class(fields.pop("scheme"))(**fields)
