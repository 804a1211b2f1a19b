"""The clipped gradient sum: the only way in which a data owner's records enter a message."""

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.instancenorm import _InstanceNorm

from coinflower.accounting.errors import UserError
from coinflower.learning.gradients.bookkeeping import BookKeeper, CannotKeepBooks, bookable_layers
from coinflower.learning.gradients.clipping import (
    Groups,
    Sums,
    check_groups,
    check_persons,
    clipped_sums,
    shares_of_mean,
    slices_of_whole_groups,
)
from coinflower.learning.gradients.gradsample import PerRecordModel
from coinflower.learning.gradients.memory import GradientSource, records_at_once
from coinflower.learning.gradients.per_record import (
    Clipping,
    Inputs,
    Loss,
    check_clip_norm,
    clip_factors,
    cross_entropy,
    denormals_flushed,
    exact_device,
    exact_products,
    square_norms_of,
    trainable_parameters,
)


def clipped_gradient_sum(
    model: nn.Module,
    inputs: torch.Tensor | Inputs,
    targets: torch.Tensor,
    clip_norm: float,
    *,
    clipping: Clipping = "flat",
    loss: Loss = cross_entropy,
    persons: torch.Tensor | None = None,
    groups: Groups | None = None,
    chunk_size: int | None = None,
) -> torch.Tensor:
    """Return Σ_i g_i · min(1, C / |g_i|), g_i the gradient of record i's loss.

    If records belong to persons, i is a person and g_i the mean of its records' gradients, which
    are not clipped themselves.

    Models whose learned parameters all belong to Linear layers, convolutions, Embeddings, LayerNorm
    and GroupNorm take a single backward pass (`coinflower.learning.gradients.bookkeeping`); any
    other model goes through Opacus' GradSampleModule on a copy. Both give the same sum to rounding.
    The model runs in its current mode (train or eval) and is left as it was: no hooks, no
    ``.grad``.

    One record moves the result by at most C, whatever it holds: a record whose gradient norm is
    NaN, infinite or beyond what single precision can scale down contributes exactly zero. So does
    one person, all of whose records count as zero if one of them does. Torch's layers that mix
    records are refused; a model's own code is trusted to keep the rows of a batch apart, once it
    was tried out (`coinflower.learning.mixing`).

    Args:
        model: Takes the inputs, records in the first dimension, and returns one row per record.
        inputs: n records, or several tensors of these for a model that takes several; n may be 0,
            which gives exact zeros.
        targets: What the model should answer, records first; the n right classes, int64, for the
            loss that is the default.
        clip_norm: The bound C on each record's or person's L2 norm; ``math.inf`` does not clip.
        clipping: ``automatic`` takes the factor C / (|g_i| + 0.01) in place of min(1, C / |g_i|).
        loss: The loss of each record, of the model's row and the target; cross-entropy by default.
        persons: Whose record each is, int64: any numbers, in any order. Equal numbers in different
            groups are different persons.
        groups: Records that belong to one client, say; then each group's sum of clipped gradients
            is clipped, too, before all of them are added up.
        chunk_size: Records processed at a time; by default as many as about 100 MB allow, or what
            a few models take. It bounds memory for any n and does not change the result beyond
            rounding.

    Returns:
        One flat float32 vector in the order of ``model.parameters()``, without frozen parameters,
        in the processor's memory wherever the model is.

    Raises:
        ValueError: If an argument is out of range or the model has a layer that mixes records.
    """
    check_clip_norm(clip_norm)
    if clipping == "automatic" and math.isinf(clip_norm):
        raise UserError("automatic clipping needs a clip norm: give a finite one")
    refuse_mixing_layers(model)
    if not trainable_parameters(model):
        raise UserError("the model has no trainable parameter: set requires_grad on some of them")
    arrays = (inputs,) if isinstance(inputs, torch.Tensor) else inputs
    for array in arrays:
        if targets.dim() < 1 or len(array) != len(targets):
            raise UserError(
                f"targets of shape {tuple(targets.shape)} for {len(array)} inputs must be one per "
                "input"
            )
    if persons is not None:
        check_persons(persons, len(targets))
    if groups is not None:
        check_groups(groups, len(targets))
    if chunk_size is not None and chunk_size < 1:
        raise UserError(f"chunk_size = {chunk_size} must be at least 1, or None to choose it")

    batch = _Batch(
        inputs=tuple(array.detach() for array in arrays),
        targets=targets,
        clip_norm=clip_norm,
        clipping=clipping,
        persons=persons,
        groups=groups,
    ).in_order
    layers = bookable_layers(model)
    with denormals_flushed(), exact_products():
        if layers is not None:
            try:
                return _sum_in_chunks(model, BookKeeper(model, layers, loss), batch, chunk_size)
            except CannotKeepBooks:
                pass
        return _sum_in_chunks(model, PerRecordModel(model, loss), batch, chunk_size)


def refuse_mixing_layers(model: nn.Module) -> None:
    """Refuse models in which one record's gradient depends on the other records.

    Raises:
        ValueError: Naming the first such layer.
    """
    for name, module in model.named_modules():
        instead = _instead_of_mixing(module)
        if instead is not None:
            raise UserError(
                f"layer {name!r} ({type(module).__name__}) mixes the records of a batch, so "
                f"clipping cannot bound what one record does: {instead}"
            )


def _instead_of_mixing(module: nn.Module) -> str | None:
    """Return what to do about a layer if it mixes records."""
    if isinstance(module, _NormBase):
        tracks = not isinstance(module, _InstanceNorm) or module.track_running_stats
        # With running averages, in eval mode, it is a constant scale and shift.
        is_constant = not module.training and module.running_mean is not None
        if tracks and (not is_constant or trainable_parameters(module)):
            return "use GroupNorm or LayerNorm instead, or freeze it and call eval() on it"
    if isinstance(module, nn.Embedding | nn.EmbeddingBag) and (
        module.max_norm is not None or module.scale_grad_by_freq
    ):
        return "leave out max_norm and scale_grad_by_freq"
    return None


@dataclass(frozen=True, kw_only=True, eq=False)
class _Batch:
    """Records, and how they are clipped and cut."""

    inputs: Inputs
    targets: torch.Tensor
    clip_norm: float
    clipping: Clipping
    persons: torch.Tensor | None
    groups: Groups | None
    chunk_size: int = 1

    def __getitem__(self, rows: slice | torch.Tensor) -> "_Batch":
        persons, groups = self.persons, self.groups
        return replace(
            self,
            inputs=tuple(array[rows] for array in self.inputs),
            targets=self.targets[rows],
            persons=None if persons is None else persons[rows],
            groups=None if groups is None else replace(groups, of=groups.of[rows]),
        )

    def on(self, device: torch.device) -> "_Batch":
        """Return the same on a device, and whose records these are where norms are exact."""
        if device.type == "cpu":
            return self
        exact, persons, groups = exact_device(device), self.persons, self.groups
        return replace(
            self,
            inputs=tuple(array.to(device) for array in self.inputs),
            targets=self.targets.to(device),
            persons=None if persons is None else persons.to(exact),
            groups=None if groups is None else replace(groups, of=groups.of.to(exact)),
        )

    @property
    def in_order(self) -> "_Batch":
        """The same with the records of a person, and those of a group, next to each other."""
        keys = [self.persons] if self.persons is not None else []
        keys += [self.groups.of] if self.groups is not None else []
        order = torch.arange(len(self.targets), device=self.targets.device)
        for key in keys:
            order = order[key[order].argsort(stable=True)]
        ordered = self if bool((order.diff() > 0).all()) else self[order]
        if ordered.persons is None or ordered.groups is None:
            return ordered
        both = torch.stack([ordered.groups.of, ordered.persons])
        _, persons = torch.unique_consecutive(both, return_inverse=True, dim=1)
        return replace(ordered, persons=persons)

    def parts(self) -> Iterator[tuple["_Batch", bool]]:
        """Yield chunks of whole groups or persons, and those that are too large for a chunk.

        Yields:
            A part, and whether it is a single group or person that is too large.
        """
        most = self.chunk_size
        together = self.persons if self.groups is None else self.groups.of
        if together is None:
            count = math.ceil(len(self.targets) / most)
            edges = [len(self.targets) * i // count for i in range(count + 1)] if count else []
            yield from ((self[slice(*pair)], False) for pair in itertools.pairwise(edges))
            return
        _, sizes = torch.unique_consecutive(together, return_counts=True)
        for rows in slices_of_whole_groups(sizes.cpu().numpy(), most):
            yield self[rows], rows.stop - rows.start > most


class _Total:
    """A sum of gradients, flat and by parameter."""

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        ends = list(itertools.accumulate(parameter.numel() for parameter in parameters))
        where = exact_device(parameters[0].device)
        self.flat = torch.zeros(ends[-1], dtype=torch.float32, device=where)
        self._slices = {
            id(parameter): self.flat[end - parameter.numel() : end].view(parameter.shape)
            for end, parameter in zip(ends, parameters, strict=True)
        }

    def add(self, sums: Sums) -> None:
        for parameter, value in sums:
            self._slices[id(parameter)] += value.reshape(parameter.shape)

    def add_clipped(
        self, whole: torch.Tensor, largest_norm: float, clipping: Clipping = "flat"
    ) -> None:
        keep, factor = clip_factors(square_norms_of(whole[None]), largest_norm, clipping)
        if bool(keep):
            self.flat += whole * factor.to(whole.dtype)


def _sum_in_chunks(
    model: nn.Module, source: GradientSource, batch: _Batch, chunk_size: int | None
) -> torch.Tensor:
    if chunk_size is None and len(batch.targets) > 1:
        first = batch[:1].on(trainable_parameters(model)[0].device)
        chunk_size = records_at_once(model, source, first.inputs, first.targets)
    whole = replace(batch, chunk_size=chunk_size or 1)
    return _sum(source, trainable_parameters(model), whole).cpu()


def _sum(source: GradientSource, parameters: list[nn.Parameter], batch: _Batch) -> torch.Tensor:
    """Return the sum over a batch, every unit and every group clipped."""
    total = _Total(parameters)
    for part, is_too_large in batch.parts():
        if not is_too_large:
            here = part.on(parameters[0].device)
            gradients = source.gradients(here.inputs, here.targets)
            sums = clipped_sums(
                gradients, part.clip_norm, here.persons, here.groups, clipping=part.clipping
            )
            total.add(sums)
        elif part.groups is not None:
            whole = _sum(source, parameters, replace(part, groups=None))
            total.add_clipped(whole, part.groups.largest_norm)
        else:
            total.add_clipped(_mean(source, parameters, part), part.clip_norm, part.clipping)
    return total.flat


def _mean(source: GradientSource, parameters: list[nn.Parameter], person: _Batch) -> torch.Tensor:
    """Return the mean of one person's gradients, with NaN in it if a record has no gradient."""
    total = _Total(parameters)
    for part, _ in replace(person, persons=None).parts():
        here = part.on(parameters[0].device)
        gradients = source.gradients(here.inputs, here.targets)
        total.add(shares_of_mean(gradients, len(person.targets)))
    return total.flat
