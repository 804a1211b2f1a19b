"""The unit: what is sampled, clipped and protected as one, and every sentence about it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum

from coinflower.accounting.errors import UserError


@dataclass(frozen=True, kw_only=True)
class UnitFacts:
    """What to say of a unit.

    Attributes:
        protected: What ε protects, with nothing left open.
        caveat: Who is protected less.
    """

    protected: str
    caveat: str


class Unit(StrEnum):
    """What one sampled, clipped and protected thing is."""

    RECORD = "record"
    PERSON = "person"

    @property
    def facts(self) -> UnitFacts:
        """What to say of it."""
        return _FACTS[self]


_FACTS = {
    Unit.RECORD: UnitFacts(
        protected="one record",
        caveat="A person with several records in the data is protected less: k records together "
        "lose up to k·ε, at a larger δ. With unit = person, persons are protected instead.",
    ),
    Unit.PERSON: UnitFacts(
        protected="one person, with all of that person's records in this data set",
        caveat="A person whose records are at several clients is protected by each of them "
        "separately: what is lost there adds up. A person under two ids counts as two persons, and "
        "several persons together, such as a family, are protected less.",
    ),
}
_BOTH = (
    "one person who has a single record in this data set, since some experiments protect records "
    "and others persons"
)


def parse_unit(text: str) -> Unit:
    """Return the unit of that name, or say which there are."""
    try:
        return Unit(text)
    except ValueError:
        raise UserError(f"unit = {text!r} is unknown; choose one of {', '.join(Unit)}.") from None


def unit_name(units: Collection[Unit]) -> str:
    """Return the unit of experiments that protect these, ``mixed`` if they differ."""
    return "mixed" if len(set(units)) > 1 else str(next(iter(units), Unit.RECORD))


def protected_by(units: Collection[Unit]) -> str:
    """Return what one ε of experiments protects that protect these units."""
    different = set(units) or {Unit.RECORD}
    return _BOTH if len(different) > 1 else different.pop().facts.protected
