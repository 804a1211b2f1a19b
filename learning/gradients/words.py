"""Gradients of an Embedding: for each unit, those of the words that occur in it."""

from dataclasses import dataclass, replace

import torch

from coinflower.learning.gradients.per_record import square_norms_of
from coinflower.learning.gradients.units import Weighted


@dataclass(frozen=True, kw_only=True, eq=False)
class WordRows:
    """The gradients of an Embedding's weight, a row for each word of each unit.

    Attributes:
        parameter: The weight.
        rows: The gradient of the word's vector.
        words: The word of each row.
        unit: The unit of each row, ascending.
        count: Number of units.
    """

    parameter: torch.Tensor
    rows: torch.Tensor
    words: torch.Tensor
    unit: torch.Tensor
    count: int

    @property
    def merged(self) -> "WordRows":
        """The same with a single row for each word of a unit, so that their norms add up."""
        places = self.unit * len(self.parameter) + self.words
        places, row = torch.unique(places, return_inverse=True)
        if len(places) == len(row):
            return self
        sums = self.rows.new_zeros(len(places), self.rows.shape[1])
        sums.index_add_(0, row, self.rows)
        return replace(
            self,
            rows=sums,
            words=places % len(self.parameter),
            unit=places // len(self.parameter),
        )

    def square_norms(self) -> torch.Tensor:
        """Return squared norms of the very numbers that will be summed."""
        squares = square_norms_of(self.rows)
        return squares.new_zeros(self.count).index_add_(0, self.unit, squares)

    def select(self, keep: torch.Tensor) -> "WordRows":
        """Return the gradients of some of the units."""
        kept = keep[self.unit]
        return replace(
            self,
            rows=self.rows[kept],
            words=self.words[kept],
            unit=(keep.cumsum(0) - 1)[self.unit[kept]],
            count=int(keep.sum()),
        )

    def grouped(self, factors: torch.Tensor, group: torch.Tensor, count: int) -> "WordRows":
        """Return the gradients of groups."""
        return replace(
            self, rows=self._weighted(factors), unit=group[self.unit], count=count
        ).merged

    def weighted_sum(self, factors: torch.Tensor) -> Weighted:
        """Yield the weight with its sum."""
        summed = self.rows.new_zeros(self.parameter.shape)
        yield self.parameter, summed.index_add_(0, self.words, self._weighted(factors))

    def _weighted(self, factors: torch.Tensor) -> torch.Tensor:
        return self.rows * factors.to(self.rows.dtype)[self.unit, None]
