"""The clipped gradient sum: the only way in which a data owner's records enter a message."""

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from coinflower.accounting.errors import UserError
from coinflower.learning.gradients.bookkeeping import BookKeeper, CannotKeepBooks, bookable_layers
from coinflower.learning.gradients.gradsample import PerRecordModel
from coinflower.learning.gradients.per_record import (
    Inputs,
    Loss,
    check_clip_norm,
    clip_factors,
    cross_entropy,
    denormals_flushed,
    square_norms_of,
    trainable_parameters,
)
from coinflower.learning.gradients.units import (
    Groups,
    UnitGradients,
    check_groups,
    clipped_sums,
    slices_of_whole_groups,
)

_CHUNK_NUMBERS = 1 << 24  # float32 numbers a chunk may need at a time: 64 MiB
_NUMBERS_PER_INPUT = 128  # intermediate numbers per input number, generous for small images


def clipped_gradient_sum(
    model: nn.Module,
    inputs: torch.Tensor | Inputs,
    targets: torch.Tensor,
    clip_norm: float,
    *,
    loss: Loss = cross_entropy,
    groups: Groups | None = None,
    chunk_size: int | None = None,
) -> torch.Tensor:
    """Return Σ_i g_i · min(1, C / |g_i|), g_i the gradient of record i's loss.

    Models whose learned parameters all belong to Conv2d and Linear layers, each called once, take a
    single backward pass (`coinflower.learning.gradients.bookkeeping`); any other model goes through
    Opacus' GradSampleModule on a copy. Both give the same sum to rounding. The model runs in its
    current mode (train or eval) and is left as it was: no hooks, no ``.grad``.

    One record moves the result by at most C, whatever it holds: a record whose gradient norm is
    NaN, infinite or beyond what single precision can scale down contributes exactly zero. Torch's
    layers that mix records are refused; a model's own code is trusted to keep the rows of a batch
    apart.

    Args:
        model: Takes the inputs, records in the first dimension, and returns one row per record.
        inputs: n records, or several tensors of these for a model that takes several; n may be 0,
            which gives exact zeros.
        targets: What the model should answer, records first; the n right classes, int64, for the
            loss that is the default.
        clip_norm: The bound C on each record's L2 norm; ``math.inf`` does not clip.
        loss: The loss of each record, of the model's row and the target; cross-entropy by default.
        groups: Records that belong to one client, say; then each group's sum of clipped gradients
            is clipped, too, before all of them are added up.
        chunk_size: Records processed at a time; by default as many as about 100 MB allow. It bounds
            memory for any n and does not change the result beyond rounding.

    Returns:
        One flat float32 vector in the order of ``model.parameters()``, without frozen parameters.

    Raises:
        ValueError: If an argument is out of range or the model has a layer that mixes records.
    """
    check_clip_norm(clip_norm)
    refuse_mixing_layers(model)
    parameters = trainable_parameters(model)
    if not parameters:
        raise UserError("the model has no trainable parameter: set requires_grad on some of them")
    arrays = (inputs,) if isinstance(inputs, torch.Tensor) else inputs
    for array in arrays:
        if targets.dim() < 1 or len(array) != len(targets):
            raise UserError(
                f"targets of shape {tuple(targets.shape)} for {len(array)} inputs must be one per "
                "input"
            )
    if groups is not None:
        check_groups(groups, len(targets))
    if chunk_size is not None and chunk_size < 1:
        raise UserError(f"chunk_size = {chunk_size} must be at least 1, or None to choose it")

    batch = _Batch(
        inputs=tuple(array.detach() for array in arrays),
        targets=targets,
        clip_norm=clip_norm,
        groups=groups,
        chunk_size=chunk_size,
    ).in_order_of_groups
    layers = bookable_layers(model)
    with denormals_flushed():
        if layers is not None:
            try:
                return _sum(BookKeeper(model, layers, loss), parameters, batch)
            except CannotKeepBooks:
                pass
        return _sum(PerRecordModel(model, loss), parameters, batch)


def refuse_mixing_layers(model: nn.Module) -> None:
    """Refuse models in which one record's gradient depends on the other records.

    Raises:
        ValueError: Naming the first such layer.
    """
    for name, module in model.named_modules():
        tracks = isinstance(module, _InstanceNorm) and module.track_running_stats
        if isinstance(module, _BatchNorm) or tracks:
            raise UserError(
                f"layer {name!r} ({type(module).__name__}) mixes the records of a batch, so "
                "clipping cannot bound what one record does: use GroupNorm or LayerNorm instead"
            )


class _GradientSource(Protocol):
    """Computes gradients of the records of a chunk."""

    held: int

    def gradients(self, inputs: Inputs, targets: torch.Tensor) -> list[UnitGradients]: ...


@dataclass(frozen=True, kw_only=True, eq=False)
class _Batch:
    """Records, those of one group next to each other, and how they are clipped and cut."""

    inputs: Inputs
    targets: torch.Tensor
    clip_norm: float
    groups: Groups | None
    chunk_size: int | None

    def __getitem__(self, rows: slice) -> "_Batch":
        groups = self.groups
        return replace(
            self,
            inputs=tuple(array[rows] for array in self.inputs),
            targets=self.targets[rows],
            groups=None if groups is None else replace(groups, of=groups.of[rows]),
        )

    @property
    def in_order_of_groups(self) -> "_Batch":
        if self.groups is None or bool((self.groups.of.diff() >= 0).all()):
            return self
        order = self.groups.of.argsort(stable=True)
        return replace(
            self,
            inputs=tuple(array[order] for array in self.inputs),
            targets=self.targets[order],
            groups=replace(self.groups, of=self.groups.of[order]),
        )

    def chunks(self, held: int) -> list[slice]:
        """Cut the rows into even chunks, given the numbers held per record besides activations."""
        records = len(self.targets)
        count = math.ceil(records / self._most(held))
        edges = [records * i // count for i in range(count + 1)]
        return [slice(start, stop) for start, stop in itertools.pairwise(edges)]

    def parts(self, held: int) -> Iterator[tuple["_Batch", bool]]:
        """Yield chunks of whole groups, and groups too large for a chunk; which, says the bool."""
        assert self.groups is not None
        most = self._most(held)
        _, sizes = torch.unique_consecutive(self.groups.of, return_counts=True)
        for rows in slices_of_whole_groups(sizes.cpu().numpy(), most):
            yield self[rows], rows.stop - rows.start > most

    def _most(self, held: int) -> int:
        if self.chunk_size is not None:
            return self.chunk_size
        numbers = sum(array.shape[1:].numel() for array in self.inputs)
        per_record = held + _NUMBERS_PER_INPUT * numbers
        return max(1, _CHUNK_NUMBERS // per_record)


def _sum(source: _GradientSource, parameters: list[nn.Parameter], batch: _Batch) -> torch.Tensor:
    total = _zeros(parameters)
    if len(batch.targets) == 0:
        return total
    slices = dict(zip(map(id, parameters), _views(total, parameters), strict=True))

    def add(chunk: _Batch) -> None:
        gradients = source.gradients(chunk.inputs, chunk.targets)
        for parameter, value in clipped_sums(gradients, chunk.clip_norm, chunk.groups):
            slices[id(parameter)] += value.reshape(parameter.shape)

    if batch.groups is None:
        for rows in batch.chunks(source.held):
            add(batch[rows])
        return total
    for part, is_too_large in batch.parts(source.held):
        if not is_too_large:
            add(part)
            continue
        whole = _sum(source, parameters, replace(part, groups=None))
        keep, factor = clip_factors(square_norms_of(whole[None]), batch.groups.largest_norm)
        if bool(keep):
            total += whole * factor.to(whole.dtype)
    return total


def _zeros(parameters: list[nn.Parameter]) -> torch.Tensor:
    count = sum(parameter.numel() for parameter in parameters)
    return torch.zeros(count, dtype=torch.float32, device=parameters[0].device)


def _views(flat: torch.Tensor, parameters: list[nn.Parameter]) -> list[torch.Tensor]:
    ends = itertools.accumulate(parameter.numel() for parameter in parameters)
    return [
        flat[end - parameter.numel() : end].view(parameter.shape)
        for end, parameter in zip(ends, parameters, strict=True)
    ]
