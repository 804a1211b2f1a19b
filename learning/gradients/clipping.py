"""Clipping at every level: a record or the mean of a person's records, then a group's sum."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from coinflower.accounting.errors import UserError
from coinflower.learning.gradients.per_record import LEAST_LEFT, Clipping, clip_factors
from coinflower.learning.gradients.units import UnitGradients


@dataclass(frozen=True, kw_only=True, eq=False)
class Groups:
    """Which records belong together, and how long the sum of their gradients may be.

    Attributes:
        of: The group of each record, int64; any numbers, in any order.
        largest_norm: Bound on the norm of each group's sum of clipped gradients.
    """

    of: torch.Tensor
    largest_norm: float


def check_persons(persons: torch.Tensor, records: int) -> None:
    """Refuse persons that do not say whose each record is."""
    if persons.shape != (records,):
        raise UserError(
            f"persons of shape {tuple(persons.shape)} for {records} records must be a vector of "
            "one person per record"
        )


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


Sums = list[tuple[torch.Tensor, torch.Tensor]]


def clipped_sums(
    gradients: list[UnitGradients],
    clip_norm: float,
    persons: torch.Tensor | None = None,
    groups: Groups | None = None,
    *,
    clipping: Clipping = "flat",
) -> Sums:
    """Clip every unit, add up, clip the sum of every group, add up; parameter by parameter.

    Args:
        gradients: The gradients of records, those of one person or group next to each other.
        clip_norm: Bound on the norm of a unit's gradient.
        persons: Whose record each is, if a unit is a person: the mean of its records' gradients.
        groups: The groups, if their sums are to be clipped as well.
        clipping: How units are clipped.
    """
    if not gradients:
        return []
    least = None
    of = None if groups is None else groups.of
    if persons is not None:
        gradients, first, least = _means(gradients, persons)
        of = None if of is None else of[first]
    gradients, factors, keep = _clipped(gradients, clip_norm, clipping, least)
    if groups is not None and of is not None:
        _, group, sizes = torch.unique_consecutive(
            of[keep], return_inverse=True, return_counts=True
        )
        gradients = [one.grouped(factors, group, len(sizes)) for one in gradients]
        gradients, factors, _ = _clipped(gradients, groups.largest_norm)
    return [pair for one in gradients for pair in one.weighted_sum(factors)]


def shares_of_mean(gradients: list[UnitGradients], count: int) -> Sums:
    """Return what some of a person's records add to its mean; NaN if any of them has no gradient.

    Args:
        gradients: The gradients of these records.
        count: How many records the person has.
    """
    if not gradients:
        return []
    norms = _square_norms(gradients)
    shares = torch.where(norms.isfinite(), 1 / count, torch.nan)
    return [pair for one in gradients for pair in one.weighted_sum(shares)]


def _means(
    gradients: list[UnitGradients], persons: torch.Tensor
) -> tuple[list[UnitGradients], torch.Tensor, torch.Tensor]:
    """Return the mean gradients of persons, the first record of each, and the least norms.

    A person has none if a single record has none: it is left out.
    """
    _, person, sizes = torch.unique_consecutive(persons, return_inverse=True, return_counts=True)
    shares = (1 / sizes.double())[person]
    lengths = torch.zeros(len(sizes), dtype=torch.float64, device=persons.device)
    lengths.index_add_(0, person, shares * _square_norms(gradients).sqrt())
    sound = lengths.isfinite()
    first = sizes.cumsum(0) - sizes
    if not bool(sound.all()):
        rows = sound[person]
        gradients = [one.select(rows) for one in gradients]
        shares, person = shares[rows], (sound.cumsum(0) - 1)[person[rows]]
        lengths, first = lengths[sound], first[sound]
    means = [one.grouped(shares, person, len(lengths)) for one in gradients]
    return means, first, LEAST_LEFT * lengths


def _clipped(
    gradients: list[UnitGradients],
    largest_norm: float,
    clipping: Clipping = "flat",
    least: torch.Tensor | None = None,
) -> tuple[list[UnitGradients], torch.Tensor, torch.Tensor]:
    """Return the units that are kept, the factor of each, and which of all they are.

    Args:
        gradients: The gradients of units.
        largest_norm: Bound on the norm of each.
        clipping: How they are clipped.
        least: What the norm of each counts as at least.
    """
    square_norms = _square_norms(gradients)
    if least is not None:
        square_norms = torch.maximum(square_norms, least.square())
    keep, factors = clip_factors(square_norms, largest_norm, clipping)
    if not bool(keep.all()):
        gradients = [one.select(keep) for one in gradients]
        factors = factors[keep]
    return gradients, factors, keep


def _square_norms(gradients: list[UnitGradients]) -> torch.Tensor:
    return torch.stack([one.square_norms() for one in gradients]).sum(0)
