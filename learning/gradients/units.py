"""Gradients of many units, a record or a group of records each: their norms and weighted sums.

A unit's gradient need not exist as numbers: of a Linear layer on plain rows the two factors of the
outer product suffice, for groups of records as well.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Protocol, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from coinflower.accounting.errors import UserError
from coinflower.learning.gradients.per_record import (
    LARGEST_ACTIVATION,
    clip_factors,
    square_norms_of,
)

_ROWS_AT_ONCE = 64  # of a Gram matrix, whose cost is quadratic in them


@dataclass(frozen=True, kw_only=True, eq=False)
class Groups:
    """Which records belong together, and how long the sum of their gradients may be.

    Attributes:
        of: The group of each record, int64; any numbers, in any order.
        largest_norm: Bound on the norm of each group's sum of clipped gradients.
    """

    of: torch.Tensor
    largest_norm: float


def check_groups(groups: Groups, records: int) -> None:
    """Refuse groups that do not name one for each record, or whose bound bounds nothing."""
    if groups.of.shape != (records,):
        raise UserError(
            f"groups of shape {tuple(groups.of.shape)} for {records} records must be a vector of "
            "one group per record"
        )
    if not groups.largest_norm > 0:
        raise UserError(
            f"largest_norm = {groups.largest_norm} of a group must be above 0: give the largest "
            "L2 norm that its sum may have, or math.inf for no bound"
        )


Weighted = Iterator[tuple[torch.Tensor, torch.Tensor]]


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


def clipped_sums(
    gradients: list[UnitGradients], clip_norm: float, groups: Groups | None
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Clip every record, add up, clip the sum of every group, add up; parameter by parameter.

    Args:
        gradients: The gradients of records, those of one group next to each other.
        clip_norm: Bound on the norm of a record's gradient.
        groups: The groups, if their sums are to be clipped as well.
    """
    if not gradients:
        return []
    gradients, factors, keep = _clipped(gradients, clip_norm)
    if groups is not None:
        _, group, sizes = torch.unique_consecutive(
            groups.of[keep], return_inverse=True, return_counts=True
        )
        gradients = [one.grouped(factors, group, len(sizes)) for one in gradients]
        gradients, factors, _ = _clipped(gradients, groups.largest_norm)
    return [pair for one in gradients for pair in one.weighted_sum(factors)]


def _clipped(
    gradients: list[UnitGradients], largest_norm: float
) -> tuple[list[UnitGradients], torch.Tensor, torch.Tensor]:
    """Return the units that are kept, the factor of each, and which of all they are."""
    square_norms = torch.stack([one.square_norms() for one in gradients]).sum(0)
    keep, factors = clip_factors(square_norms, largest_norm)
    if not bool(keep.all()):
        gradients = [one.select(keep) for one in gradients]
        factors = factors[keep]
    return gradients, factors, keep


def slices_of_whole_groups(sizes: npt.NDArray[np.int64], most: int) -> Iterator[slice]:
    """Cut rows between groups, into slices of at most so many rows or of a single group.

    Args:
        sizes: Number of rows of each group; they lie one after the other.
        most: Rows of a slice, unless a single group has more.
    """
    ends = np.cumsum(sizes)
    start = first = 0
    while first < len(ends):
        beyond = max(int(np.searchsorted(ends, start + most, side="right")), first + 1)
        stop = int(ends[beyond - 1])
        yield slice(start, stop)
        start, first = stop, beyond


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
        if self.channels_last:
            out, channels, height, width = self.parameter.shape
            summed = summed.view(out, height, width, channels).permute(0, 3, 1, 2)
        yield self.parameter, summed


@dataclass(frozen=True, kw_only=True, eq=False)
class OuterProducts:
    """Gradients of a Linear layer on plain rows: each is the outer product of two vectors.

    Attributes:
        layer: The layer.
        activations: What went into it, a row for each record.
        output_gradients: The loss's gradients of what came out.
        group: The unit of each record, ascending; None if each is a unit of its own.
        count: Number of units, if they are groups.
    """

    layer: nn.Linear
    activations: torch.Tensor
    output_gradients: torch.Tensor
    group: torch.Tensor | None = None
    count: int = 0

    def square_norms(self) -> torch.Tensor:
        """Squared norms, in double precision because a product of small factors underflows."""
        if self.group is not None:
            return self._square_norms_of_groups(self.group)
        norms = torch.linalg.vector_norm(self.output_gradients, dim=1, dtype=torch.float64)
        total = torch.zeros_like(norms)
        if self.layer.weight.requires_grad:
            inner = torch.linalg.vector_norm(self.activations, dim=1, dtype=torch.float64)
            total += (norms * inner).square()
            # An input this large would magnify the rounding of the gradient it multiplies.
            total[inner > LARGEST_ACTIVATION] = torch.inf
        if learns_bias(self.layer):
            total += norms.square()
        return total

    def _square_norms_of_groups(self, group: torch.Tensor) -> torch.Tensor:
        """Squared norms of sums: |Σ b_i·a_iᵀ|² = Σ_ij ⟨b_i, b_j⟩·⟨a_i, a_j⟩."""
        total = torch.zeros(self.count, dtype=torch.float64, device=group.device)
        sizes = torch.bincount(group, minlength=self.count).cpu().numpy()
        for rows in slices_of_whole_groups(sizes, _ROWS_AT_ONCE):
            inputs, outputs = self.activations[rows].double(), self.output_gradients[rows].double()
            if len(inputs) > _ROWS_AT_ONCE:
                total[group[rows.start]] = self._square_norm_of_sum(inputs, outputs)
                continue
            inner = torch.zeros(len(inputs), len(inputs), dtype=torch.float64, device=group.device)
            if self.layer.weight.requires_grad:
                inner += inputs @ inputs.t()
            if learns_bias(self.layer):
                inner += 1
            inner *= outputs @ outputs.t()
            inner *= group[rows, None] == group[None, rows]
            total.index_add_(0, group[rows], inner.sum(1))
        return total.clamp_(min=0)  # what cancels may be less by its rounding

    def _square_norm_of_sum(self, inputs: torch.Tensor, outputs: torch.Tensor) -> torch.Tensor:
        total = torch.zeros((), dtype=torch.float64, device=inputs.device)
        if self.layer.weight.requires_grad:
            total += (outputs.t() @ inputs).square().sum()
        if learns_bias(self.layer):
            total += outputs.sum(0).square().sum()
        return total

    def select(self, keep: torch.Tensor) -> "OuterProducts":
        """Return the gradients of some of the units."""
        rows = keep if self.group is None else keep[self.group]
        return replace(
            self,
            activations=self.activations[rows],
            output_gradients=self.output_gradients[rows],
            group=None if self.group is None else (keep.cumsum(0) - 1)[self.group[rows]],
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
        if self.layer.weight.requires_grad:
            yield self.layer.weight, weighted.t() @ self.activations
        if learns_bias(self.layer):
            yield self.layer.bias, weighted.sum(0)

    def _weighted(self, factors: torch.Tensor) -> torch.Tensor:
        of_records = factors if self.group is None else factors[self.group]
        return self.output_gradients * of_records.to(self.output_gradients.dtype)[:, None]


def learns_bias(layer: nn.Conv2d | nn.Linear) -> bool:
    """Whether a layer has a bias that is not frozen."""
    return layer.bias is not None and layer.bias.requires_grad
