"""A data set: rows to train on, rows to measure with, and what became of those in its files."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from coinflower.accounting.errors import UserError
from coinflower.learning.data.reading import Reading
from coinflower.learning.data.records import Records, describe
from coinflower.learning.data.rows import Rows

_TEST_SHARE = 0.2
_MOST_TEST_ROWS = 10_000


@dataclass(frozen=True, kw_only=True, eq=False)
class Dataset:
    """Records in a training part and, if the source has one, a test part.

    Attributes:
        name: What the data is called in messages.
        train: Records to train on.
        test_part: Public records to measure with; None if the source has no such part.
        class_count: Number of classes, every target is below it; None if targets are no classes.
        files: The training rows of each file by its name, if the data came in several.
        reading: What became of the rows of the training part; for the owner only.
    """

    name: str
    train: Records
    test_part: Records | None = None
    class_count: int | None = None
    files: dict[str, Rows] | None = None
    reading: Reading | None = None

    def __post_init__(self) -> None:
        """Check that both parts fit together."""
        for part, records in (("train", self.train), ("test", self.test_part)):
            if records is not None:
                _check_part(f"{self.name}: the {part} part", records, self.class_count)
        if self.test_part is None:
            return
        for what, ours, theirs in (
            ("inputs", self.train.described, self.test_part.described),
            ("targets", describe(self.train.targets), describe(self.test_part.targets)),
        ):
            if ours != theirs:
                raise UserError(
                    f"{self.name}: {what} of a training row are {ours}, but those of a test row "
                    f"{theirs}: both parts must have one shape and type"
                )

    @property
    def test(self) -> Records:
        """The test part.

        Raises:
            UserError: There is none.
        """
        if self.test_part is None:
            raise UserError(f"{self.name} has no test part; name data that has one")
        return self.test_part

    @property
    def classes(self) -> int:
        """The number of classes.

        Raises:
            UserError: The targets are no classes.
        """
        if self.class_count is None:
            raise UserError(f"{self.name}: targets are {describe(self.train.targets)}, not classes")
        return self.class_count

    @property
    def measuring(self) -> Records:
        """What measures a model: the test part, or all rows of public data without parts."""
        return self.train if self.test_part is None else self.test_part


def with_test_part(data: Dataset) -> Dataset:
    """Return data for a trial: if it has no test part, some of its rows become one.

    These are a fifth of the rows, at most 10,000, always the same ones; of a person with several
    rows, all or none.
    """
    if data.test_part is not None:
        return data
    records = data.train
    units = np.arange(len(records)) if records.persons is None else records.persons
    people = np.random.default_rng(0).permutation(np.unique(units))
    count = min(round(_TEST_SHARE * len(people)), _MOST_TEST_ROWS)
    if count == 0:
        raise UserError(f"{data.name} has {len(people)} records, too few to measure a model with")
    held_out = np.isin(units, people[:count])
    place = np.cumsum(~held_out) - 1
    files = data.files and {name: place[rows[~held_out[rows]]] for name, rows in data.files.items()}
    return replace(
        data, train=records.take(~held_out), test_part=records.take(held_out), files=files
    )


def _check_part(what: str, records: Records, classes: int | None) -> None:
    if len(records) == 0:
        raise UserError(f"{what} is empty, but needs at least one record")
    if classes is None:
        return
    targets = records.targets
    if not records.are_classified:
        raise UserError(f"{what} has targets that are {describe(targets)}, not classes")
    if targets.min() < 0 or targets.max() >= classes:
        raise UserError(
            f"{what} has labels from {targets.min()} to {targets.max()}; they must lie in 0.."
            f"{classes - 1}"
        )
