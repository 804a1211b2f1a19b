"""The unit: what is sampled, clipped and protected as one, and every sentence about it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from coinflower.accounting.errors import UserError


@dataclass(frozen=True, kw_only=True)
class UnitFacts:
    """What to say of a unit.

    Attributes:
        protected: What ε protects, with nothing left open.
        members: Several of them, such as a client has.
    """

    protected: str
    members: str


class Unit(StrEnum):
    """What one sampled, clipped and protected thing is."""

    RECORD = "record"
    PERSON = "person"

    @property
    def facts(self) -> UnitFacts:
        """What to say of it."""
        return _FACTS[self]


_FACTS = {
    Unit.RECORD: UnitFacts(protected="one record", members="records"),
    Unit.PERSON: UnitFacts(
        protected="one person, with all of that person's records in this data set",
        members="persons",
    ),
}


def parse_unit(text: str) -> Unit:
    """Return the unit of that name, or say which there are."""
    try:
        return Unit(text)
    except ValueError:
        raise UserError(f"unit = {text!r} is unknown; choose one of {', '.join(Unit)}.") from None
