"""What is sampled, clipped and protected as one: a record, or a person with all its records."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from coinflower.accounting.errors import UserError
from coinflower.learning.data.records import Records
from coinflower.learning.data.rows import Rows
from coinflower.protocol.unit import Unit


@dataclass(frozen=True, kw_only=True, eq=False)
class Units:
    """The rows of each unit, which are numbered 0, 1, ...

    Attributes:
        of: The unit of each row.
        order: All rows, unit after unit.
        sizes: How many rows each unit has, at least one.
        starts: Where in ``order`` they begin.
    """

    of: Rows
    order: Rows
    sizes: Rows
    starts: Rows

    @classmethod
    def numbered(cls, of: Rows) -> Units:
        """Return the units whose number each row has; none is left out."""
        sizes, order = np.bincount(of), np.argsort(of, kind="stable")
        return cls(of=of, order=order, sizes=sizes, starts=np.cumsum(sizes) - sizes)

    def __len__(self) -> int:
        return len(self.sizes)

    def count(self, rows: Rows) -> int:
        """Return how many units some rows are of."""
        return len(np.unique(self.of[rows]))

    def first(self, most: int) -> Rows:
        """Return the first rows of every unit, ascending, and at most so many of each."""
        places = np.arange(len(self.order)) - np.repeat(self.starts, self.sizes)
        return np.sort(self.order[places < most])

    def rows_of(self, units: Rows) -> Rows:
        """Return the rows of some units, unit after unit."""
        sizes = self.sizes[units]
        first = self.starts[units] - (np.cumsum(sizes) - sizes)
        return np.asarray(self.order[np.arange(sizes.sum()) + np.repeat(first, sizes)])


def units_of(records: Records, unit: Unit, name: str) -> Units:
    """Return what of the records is protected as one.

    Args:
        records: The records.
        unit: A record, or a person.
        name: What the data is called in messages.

    Raises:
        UserError: Persons are to be protected, and the data does not say whose its rows are.
    """
    if unit is Unit.RECORD:
        rows = np.arange(len(records))
        return Units(of=rows, order=rows, sizes=np.broadcast_to(1, len(rows)), starts=rows)
    if records.persons is None:
        raise UserError(
            f"unit = person protects persons, but {name} does not say whose its rows are: name the "
            "person column in the schema, give an array persons beside x and y, or protect records "
            "with unit = record"
        )
    return Units.numbered(np.unique(records.persons, return_inverse=True)[1])
