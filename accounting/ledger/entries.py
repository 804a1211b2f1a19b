"""What a ledger holds: budgets, entries, their sums per experiment, and formats for others."""

from __future__ import annotations

import csv
import functools
import io
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from coinflower.accounting import validation
from coinflower.accounting.analyses.analysis import Analysis
from coinflower.accounting.analyses.names import charged_analysis
from coinflower.accounting.mechanism import Round

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


class EntryKind(StrEnum):
    """What an entry records. Files and hashes hold the values, which therefore never change."""

    RESERVE = "commit"
    FLIP = "charge"
    ANSWER = "answer"
    RELEASE = "release"


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
    """One experiment in sum.

    Attributes:
        experiment: Its name in the ledger.
        terms: What a round costs.
        reserved_rounds: Rounds reserved, those charged included.
        charged: Rounds charged.
        took_part: Rounds whose coin said yes.
        secure: Whether neither coins nor noise were ever seeded.
        agreed: What the owner agreed to, as canonical JSON; empty in entries that do not say.
    """

    experiment: str
    terms: Analysis
    reserved_rounds: int
    charged: int
    took_part: int
    secure: bool
    agreed: str = ""

    @property
    def remaining_rounds(self) -> int:
        """Rounds that are reserved and not charged yet."""
        return self.reserved_rounds - self.charged

    @classmethod
    def from_row(cls, row: TallyRow) -> Tally:
        """Return the tally of a database row."""
        experiment, terms, reserved_rounds, charged, took_part, secure = row
        return cls(
            experiment=experiment,
            terms=terms_from_json(terms),
            reserved_rounds=reserved_rounds,
            charged=charged,
            took_part=took_part,
            secure=bool(secure),
            agreed=_agreed_in(terms),
        )


@functools.lru_cache(maxsize=1024)
def terms_to_json(terms: Analysis, agreed: str = "") -> str:
    """Return what a round costs as canonical JSON: its analysis' ledger name, and its fields.

    What was agreed to stands beside the price, if given.
    """
    fields = asdict(terms.round)
    if not terms.round.is_capped:  # entries from before there were caps have none
        del fields["cap"]
    beside = {"agreed": json.loads(agreed)} if agreed else {}
    return json.dumps({"scheme": terms.ledger_name, **fields, **beside}, sort_keys=True)


@functools.lru_cache(maxsize=1024)
def terms_from_json(text: str) -> Analysis:
    """Return what `terms_to_json` wrote."""
    fields = json.loads(text)
    fields.pop("agreed", None)
    return charged_analysis(fields.pop("scheme"))(Round(**fields))


@functools.lru_cache(maxsize=1024)
def _agreed_in(text: str) -> str:
    agreed = json.loads(text).get("agreed")
    if agreed is None:
        return ""
    return json.dumps(agreed, sort_keys=True, separators=(",", ":"), allow_nan=False)


def to_json(data_set: str, entries: Iterable[Entry]) -> str:
    """Return a whole ledger as JSON. It names every coin."""
    return json.dumps({"data_set": data_set, "entries": [asdict(one) for one in entries]}, indent=1)


def to_csv(entries: Iterable[Entry]) -> str:
    """Return entries as CSV. It names every coin."""
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(asdict(entry) for entry in entries)
    return text.getvalue()
