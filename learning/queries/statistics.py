"""Statistics: counts, means and quantiles of a table's columns, from noisy sums.

Columns are taken as the schema encodes them, within its public ranges and categories. What a schema
does not list cannot be asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coinflower.accounting.errors import UserError
from coinflower.learning.data.records import Records
from coinflower.learning.data.rows import Rows
from coinflower.learning.data.tables.schema import Column, Kind, Schema, near
from coinflower.learning.queries.blocks import (
    Array,
    Codes,
    between,
    binned,
    one_of,
    scale_of,
    weighted_sum,
)
from coinflower.learning.queries.estimates import Estimate, mean
from coinflower.protocol.query import Query

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
MISSING = "(missing)"
OTHER = "(other)"


@dataclass(frozen=True, kw_only=True)
class Sums:
    """The noisy sum of a block, in records.

    Attributes:
        counts: Of each entry.
        noise: Standard deviation of the noise on each.
        sampled: How many records stand behind one that was sampled: 1 over p·q and the rounds.
    """

    counts: Array
    noise: float
    sampled: float

    def figures(self) -> list[dict[str, Any]]:
        """Return how many records of all there are of each entry."""
        errors = np.sqrt(self.noise**2 + np.maximum(self.counts, 0))
        return [
            Estimate(value=value * self.sampled, standard_error=error * self.sampled).to_fields()
            for value, error in zip(self.counts.tolist(), errors.tolist(), strict=True)
        ]


@dataclass(frozen=True, kw_only=True)
class _Block:
    """One block: its name and width, how records make it, and what its sum says."""

    name: tuple[str, str]
    width: int
    encode: Callable[[Records, Rows], Array]
    read: Callable[[Sums], dict[str, Any]]


class Statistics:
    """A query of kind statistics, for tables of a schema.

    Args:
        query: What is asked.
        schema: How the tables are read.

    Raises:
        UserError: The schema has no such column, or it is of another kind.
    """

    def __init__(self, query: Query, schema: Schema) -> None:
        self._blocks = [_mean_of(name, schema) for name in query.means]
        self._blocks += [_histogram_of(name, schema, query.bins) for name in query.histograms]

    @property
    def length(self) -> int:
        """How many numbers an answer has."""
        return sum(block.width for block in self._blocks)

    def blocks(self, records: Records, rows: Rows) -> list[Array]:
        """Return the blocks of some rows."""
        return [block.encode(records, rows) for block in self._blocks]

    def sum_over(
        self, records: Records, rows: Rows, clip_norm: float, persons: Codes | None = None
    ) -> NDArray[np.float32]:
        """Return the sum over rows, or persons, of vectors whose norm is at most C.

        Args:
            records: All records.
            rows: Which of them.
            clip_norm: The bound C.
            persons: Whose each of these rows is, if persons are protected.
        """
        return weighted_sum(self.blocks(records, rows), clip_norm, persons)

    def read(
        self, total: NDArray[Any], *, clip_norm: float, noise_std: float, sampled: float
    ) -> dict[str, dict[str, Any]]:
        """Return what a noisy sum of vectors says of each column.

        Args:
            total: The sum, of one round or several.
            clip_norm: The bound C.
            noise_std: Standard deviation of all the noise on each of its numbers.
            sampled: How many records stand behind one that was sampled.
        """
        unit = scale_of(len(self._blocks), clip_norm)
        widths = [block.width for block in self._blocks]
        parts = np.split(np.asarray(total, dtype=np.float64) / unit, np.cumsum(widths)[:-1])
        found: dict[str, dict[str, Any]] = {}
        for block, part in zip(self._blocks, parts, strict=True):
            column, what = block.name
            sums = Sums(counts=part, noise=noise_std / unit, sampled=sampled)
            found.setdefault(column, {})[what] = block.read(sums)
        return found


def _mean_of(name: str, schema: Schema) -> _Block:
    column = _column(name, schema)
    if column.kind is not Kind.NUMBER:
        raise UserError(f"column {name!r} holds no numbers, so it has no mean: ask for a histogram")
    least, largest = column.limits

    def encode(records: Records, rows: Rows) -> Array:
        values, missing = _numbers(records, rows, name, schema)
        block = between(values, least, largest, unknown=0.0)
        return np.where(missing[:, np.newaxis], 0.0, block)

    def read(sums: Sums) -> dict[str, Any]:
        worth = np.array([largest, least])
        return mean(sums.counts, worth, sums.noise).to_fields()

    return _Block(name=(name, "mean"), width=2, encode=encode, read=read)


def _histogram_of(name: str, schema: Schema, bins: int) -> _Block:
    column = _column(name, schema)
    if column.kind is Kind.NUMBER:
        return _numbers_in_bins(name, schema, column, bins)
    values = [*(column.values or ()), OTHER, MISSING]

    def encode(records: Records, rows: Rows) -> Array:
        return one_of(_categories(records, rows, name, schema), len(values))

    return _Block(
        name=(name, "counts"),
        width=len(values),
        encode=encode,
        read=lambda sums: dict(zip(values, sums.figures(), strict=True)),
    )


def _numbers_in_bins(name: str, schema: Schema, column: Column, bins: int) -> _Block:
    least, largest = column.limits
    edges = np.linspace(least, largest, bins + 1)

    def encode(records: Records, rows: Rows) -> Array:
        numbers, missing = _numbers(records, rows, name, schema)
        return one_of(np.where(missing, bins, binned(numbers, least, largest, bins)), bins + 1)

    def read(sums: Sums) -> dict[str, Any]:
        counted = sums.figures()
        return {
            "edges": edges.tolist(),
            "counts": counted[:bins],
            "missing": counted[bins],
            "quantiles": _quantiles(sums.counts[:bins], edges, sums.noise),
        }

    return _Block(name=(name, "histogram"), width=bins + 1, encode=encode, read=read)


def _quantiles(counts: Array, edges: Array, noise: float) -> dict[str, Any]:
    """Return where shares of the records lie below, and between which limits that holds.

    The limits are where the share is two standard errors smaller and larger.
    """
    found: dict[str, Any] = {}
    for level in QUANTILES:
        value = _quantile(counts, edges, level)
        place = int(np.clip(np.searchsorted(edges, value), 1, len(counts)))
        error = mean(counts, (np.arange(len(counts)) < place).astype(float), noise).standard_error
        if error is None:  # hardly anything but noise
            found[f"{level:g}"] = dict.fromkeys(("value", "low", "high"))
            continue
        found[f"{level:g}"] = {
            "value": value,
            "low": _quantile(counts, edges, max(0.0, level - 2 * error)),
            "high": _quantile(counts, edges, min(1.0, level + 2 * error)),
        }
    return found


def _quantile(counts: Array, edges: Array, level: float) -> float:
    """Return where a share of the counts lies below, by lines within the bins."""
    below = np.maximum.accumulate(np.concatenate([[0.0], np.cumsum(counts)]))
    whole = below[-1]
    return float(np.interp(level * whole, below, edges)) if whole > 0 else float(edges[0])


def _column(name: str, schema: Schema) -> Column:
    column = schema.columns.get(name)
    if column is None or column.kind is Kind.IGNORED:
        raise UserError(f"the schema has no column {name!r}{near(name, schema.columns)}")
    return column


def _place(name: str, schema: Schema) -> int:
    """Return where the features of an input column begin."""
    at = 0
    for other, column in schema.inputs.items():
        if other == name:
            return at
        at += 1 if column.kind is Kind.NUMBER else len(column.values or ()) + 1
        at += column.missing == "indicator"
    raise KeyError(name)


def _target(records: Records, rows: Rows, name: str, schema: Schema) -> NDArray[Any]:
    targets = records.targets[rows]
    return targets if len(schema.target) == 1 else targets[:, schema.target.index(name)]


def _numbers(records: Records, rows: Rows, name: str, schema: Schema) -> tuple[Array, Any]:
    """Return a column's numbers, and which rows have none."""
    column = schema.columns[name]
    if name in schema.target:
        scaled = _target(records, rows, name, schema).reshape(-1).astype(np.float64)
        missing = np.zeros(len(scaled), dtype=bool)
    else:
        at = _place(name, schema)
        features = records.inputs[rows].astype(np.float64)
        scaled = features[:, at]
        told = column.missing == "indicator"
        missing = features[:, at + 1] == 1 if told else np.zeros(len(scaled), dtype=bool)
    return scaled * column.unit + column.origin, missing


def _categories(records: Records, rows: Rows, name: str, schema: Schema) -> Codes:
    """Return each row's place among the column's values, then others, then missing ones."""
    count = len(schema.columns[name].values or ())
    if name in schema.target:
        return _target(records, rows, name, schema).reshape(-1).astype(np.int64)
    at = _place(name, schema)
    features = records.inputs[rows][:, at : at + count + 1]
    return np.where(features.any(axis=1), features.argmax(axis=1), count + 1)
