"""Gradients of many units, a record or a group of records each: their norms and weighted sums.

A unit's gradient need not exist as numbers: of a Linear layer or a convolution the factors of its
outer products suffice, one for each position and record; of an Embedding, the words that occur.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Protocol, Self

import torch
from torch import nn

from coinflower.learning.gradients.per_record import (
    LARGEST_ACTIVATION,
    LEAST_LEFT,
    square_norms_of,
)

MatrixLayer = nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d
Weighted = Iterator[tuple[torch.Tensor, torch.Tensor]]

_ROWS_AT_ONCE = 512  # of those that are copied to double precision


class UnitGradients(Protocol):
    """Gradients of the same parameters for each of many units."""

    def square_norms(self) -> torch.Tensor:
        """Return each unit's squared norm, float64."""
        ...

    def select(self, keep: torch.Tensor) -> Self:
        """Return the gradients of some of the units."""
        ...

    def grouped(self, factors: torch.Tensor, group: torch.Tensor, count: int) -> Self:
        """Return the gradients of groups of units: sums with factors.

        Args:
            factors: Factor of each unit.
            group: Group of each unit: 0, 1, ..., count − 1, ascending.
            count: Number of groups.
        """
        ...

    def weighted_sum(self, factors: torch.Tensor) -> Weighted:
        """Yield parameters, each with the sum of all units' gradients with factors."""
        ...


@dataclass(frozen=True, kw_only=True, eq=False)
class Rows:
    """The gradients of one parameter, a row for each unit.

    Attributes:
        parameter: The parameter.
        rows: A flat gradient in each row.
        channels_last: Whether a convolution's channels come last in a row.
    """

    parameter: torch.Tensor
    rows: torch.Tensor
    channels_last: bool = False

    def square_norms(self) -> torch.Tensor:
        """Return squared norms of the very numbers that will be summed."""
        return square_norms_of(self.rows)

    def select(self, keep: torch.Tensor) -> "Rows":
        """Return the gradients of some of the units."""
        return replace(self, rows=self.rows[keep])

    def grouped(self, factors: torch.Tensor, group: torch.Tensor, count: int) -> "Rows":
        """Return a row for each group."""
        sums = self.rows.new_zeros(count, self.rows.shape[1])
        sums.index_add_(0, group, self.rows * factors.to(self.rows.dtype)[:, None])
        return replace(self, rows=sums)

    def weighted_sum(self, factors: torch.Tensor) -> Weighted:
        """Yield the parameter with its sum."""
        summed = factors.to(self.rows.dtype) @ self.rows
        yield self.parameter, _as(self.parameter, summed) if self.channels_last else summed


def _as(weight: torch.Tensor, channels_last: torch.Tensor) -> torch.Tensor:
    """Return what was computed with channels last in the order of a convolution's weight."""
    out, channels, *kernel = weight.shape
    return channels_last.view(out, *kernel, channels).movedim(-1, 1)


@dataclass(frozen=True, kw_only=True, eq=False)
class OuterProducts:
    """Gradients of a layer with a matrix: each is the outer product of two vectors, or several.

    Attributes:
        layer: The layer.
        activations: What was multiplied by the matrix, a row for each position of each record.
        output_gradients: The loss's gradients of what came out.
        positions: Number of positions; the rows of a record lie one after the other.
        group: The unit of each record, ascending; None if each is a unit of its own.
        count: Number of units, if they are groups.
    """

    layer: MatrixLayer
    activations: torch.Tensor
    output_gradients: torch.Tensor
    positions: int = 1
    group: torch.Tensor | None = None
    count: int = 0

    def square_norms(self) -> torch.Tensor:
        """Squared norms, in double precision because a product of small factors underflows."""
        if self.group is not None:
            return self._square_norms_of_groups(self._by_row(self.group))
        squares = self._square_norms_of_rows()
        if self.positions == 1:
            return squares
        rows = torch.arange(len(squares), device=squares.device).view(-1, self.positions)
        # Products may cancel, and their sum in single precision leaves rounding all the same.
        least = LEAST_LEFT * squares.sqrt().view(-1, self.positions).sum(1)
        parts = torch.split(rows, max(1, _ROWS_AT_ONCE // self.positions))
        exact = torch.cat([self._square_norms_of_sums(part) for part in parts])
        return torch.maximum(exact, least.square())

    def _square_norms_of_rows(self) -> torch.Tensor:
        norms = torch.linalg.vector_norm(self.output_gradients, dim=1, dtype=torch.float64)
        total = torch.zeros_like(norms)
        if self.layer.weight.requires_grad:
            inner = torch.linalg.vector_norm(self.activations, dim=1, dtype=torch.float64)
            total += (norms * inner).square()
            # An input this large would magnify the rounding of the gradient it multiplies.
            total.masked_fill_(inner > LARGEST_ACTIVATION, torch.inf)
        if learned_bias(self.layer) is not None:
            total += norms.square()
        return total

    def _square_norms_of_groups(self, group: torch.Tensor) -> torch.Tensor:
        total = torch.zeros(self.count, dtype=torch.float64, device=group.device)
        sizes = torch.bincount(group, minlength=self.count)
        starts = sizes.cumsum(0) - sizes
        for size in sorted(set(sizes.tolist())):
            groups = torch.nonzero(sizes == size).squeeze(1)
            rows = starts[groups, None] + torch.arange(size, device=group.device)
            total[groups] = self._square_norms_of_sums(rows)
        return total.clamp_(min=0)  # what cancels may be less by its rounding

    def _square_norms_of_sums(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the squared norms of sums over as many records each, groups x records."""
        inputs, outputs = self.activations[rows].double(), self.output_gradients[rows].double()
        total = torch.zeros(len(rows), dtype=torch.float64, device=rows.device)
        if learned_bias(self.layer) is not None:
            total += outputs.sum(1).square().sum(1)
        if self.layer.weight.requires_grad:
            width, height = inputs.shape[2], outputs.shape[2]
            if rows.shape[1] * (width + height) < width * height:
                # |Σ b_i·a_iᵀ|² = Σ_ij ⟨b_i, b_j⟩·⟨a_i, a_j⟩, while there are few pairs.
                total += ((outputs @ outputs.mT) * (inputs @ inputs.mT)).sum((1, 2))
            else:
                total += (outputs.mT @ inputs).square().sum((1, 2))
        return total

    def select(self, keep: torch.Tensor) -> "OuterProducts":
        """Return the gradients of some of the units."""
        records = keep if self.group is None else keep[self.group]
        rows = self._by_row(records)
        return replace(
            self,
            activations=self.activations[rows],
            output_gradients=self.output_gradients[rows],
            group=None if self.group is None else (keep.cumsum(0) - 1)[self.group[records]],
            count=int(keep.sum()),
        )

    def grouped(self, factors: torch.Tensor, group: torch.Tensor, count: int) -> "OuterProducts":
        """Return the gradients of groups, still as records."""
        return replace(
            self,
            output_gradients=self._weighted(factors),
            group=group if self.group is None else group[self.group],
            count=count,
        )

    def weighted_sum(self, factors: torch.Tensor) -> Weighted:
        """Yield weight and bias with their sums."""
        weighted = self._weighted(factors)
        weight = self.layer.weight
        if weight.requires_grad:
            summed = weighted.t() @ self.activations
            yield weight, summed if weight.dim() == 2 else _as(weight, summed)
        bias = learned_bias(self.layer)
        if bias is not None:
            yield bias, weighted.sum(0)

    def _weighted(self, factors: torch.Tensor) -> torch.Tensor:
        of_records = factors if self.group is None else factors[self.group]
        of_rows = self._by_row(of_records.to(self.output_gradients.dtype))
        return self.output_gradients * of_rows[:, None]

    def _by_row(self, by_record: torch.Tensor) -> torch.Tensor:
        return by_record if self.positions == 1 else by_record.repeat_interleave(self.positions)


def learned_bias(layer: MatrixLayer | nn.LayerNorm | nn.GroupNorm) -> torch.Tensor | None:
    """Return a layer's bias if it has one that is not frozen."""
    bias: torch.Tensor | None = layer.bias
    return bias if bias is not None and bias.requires_grad else None
