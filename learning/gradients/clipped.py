"""The clipped gradient sum: the only way in which a data owner's records enter a message."""

import itertools
import math

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from coinflower.accounting.errors import UserError
from coinflower.learning.gradients.bookkeeping import (
    CannotKeepBooks,
    Layer,
    book_chunk,
    bookable_layers,
)
from coinflower.learning.gradients.gradsample import PerRecordModel
from coinflower.learning.gradients.per_record import (
    check_clip_norm,
    denormals_flushed,
    trainable_parameters,
)

_CHUNK_NUMBERS = 1 << 24  # float32 numbers a chunk may need at a time: 64 MiB
_NUMBERS_PER_INPUT = 128  # intermediate numbers per input number, generous for small images


def clipped_gradient_sum(
    model: nn.Module,
    inputs: torch.Tensor,
    targets: torch.Tensor,
    clip_norm: float,
    *,
    chunk_size: int | None = None,
) -> torch.Tensor:
    """Return Σ_i g_i · min(1, C / |g_i|), g_i the cross-entropy gradient of record i.

    Models whose learned parameters all belong to Conv2d and Linear layers, each called once, take a
    single backward pass (`coinflower.learning.gradients.bookkeeping`); any other model goes through
    Opacus' GradSampleModule on a copy. Both give the same sum to rounding. The model runs in its
    current mode (train or eval) and is left as it was: no hooks, no ``.grad``.

    One record moves the result by at most C, whatever it holds: a record whose gradient norm is
    NaN, infinite or beyond what single precision can scale down contributes exactly zero. Torch's
    layers that mix records are refused; a model's own code is trusted to keep the rows of a batch
    apart.

    Args:
        model: Takes the inputs, records in the first dimension, and returns one row of logits per
            record.
        inputs: n records; n may be 0, which gives exact zeros.
        targets: The n right classes, int64.
        clip_norm: The bound C on each record's L2 norm; ``math.inf`` does not clip.
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
    if len(inputs) != len(targets) or targets.dim() != 1:
        raise UserError(
            f"targets of shape {tuple(targets.shape)} for {len(inputs)} inputs must be a vector of "
            "one class per input"
        )
    if chunk_size is not None and chunk_size < 1:
        raise UserError(f"chunk_size = {chunk_size} must be at least 1, or None to choose it")

    layers = bookable_layers(model)
    inputs = inputs.detach()
    with denormals_flushed():
        if layers is not None:
            try:
                return _book_keeping(
                    model, layers, inputs, targets, clip_norm, chunk_size=chunk_size
                )
            except CannotKeepBooks:
                pass
        return _per_record(model, inputs, targets, clip_norm, chunk_size=chunk_size)


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


def _book_keeping(
    model: nn.Module,
    layers: list[Layer],
    inputs: torch.Tensor,
    targets: torch.Tensor,
    clip_norm: float,
    *,
    chunk_size: int | None,
) -> torch.Tensor:
    parameters = trainable_parameters(model)
    total = _zeros(parameters)
    slices = dict(zip(map(id, parameters), _views(total, parameters), strict=True))
    held = sum(layer.weight.numel() for layer in layers if isinstance(layer, nn.Conv2d))
    channels_last = inputs.dim() == 4 and held > 0
    for rows in _chunks(inputs, held, chunk_size):
        chunk, wanted = inputs[rows], targets[rows]
        if channels_last:
            try:
                sums = book_chunk(model, layers, _channels_last(chunk), wanted, clip_norm)
            except RuntimeError as error:
                # A model may use `view` where only a contiguous tensor will do.
                if "view size is not compatible" not in str(error):
                    raise
                channels_last = False
        if not channels_last:
            sums = book_chunk(model, layers, chunk, wanted, clip_norm)
        for parameter, value in sums:
            slices[id(parameter)] += value.reshape(parameter.shape)
    return total


def _per_record(
    model: nn.Module,
    inputs: torch.Tensor,
    targets: torch.Tensor,
    clip_norm: float,
    *,
    chunk_size: int | None,
) -> torch.Tensor:
    parameters = trainable_parameters(model)
    total = _zeros(parameters)
    views = _views(total, parameters)
    per_record = PerRecordModel(model)
    for rows in _chunks(inputs, total.numel(), chunk_size):
        sums = per_record.clipped_sum(inputs[rows], targets[rows], clip_norm)
        for view, value in zip(views, sums, strict=True):
            view.add_(value.reshape(view.shape))
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


def _chunks(inputs: torch.Tensor, held: int, chunk_size: int | None) -> list[slice]:
    """Cut the rows into even chunks, given the numbers held per record besides activations."""
    records = len(inputs)
    if records == 0:
        return []
    if chunk_size is None:
        per_record = held + _NUMBERS_PER_INPUT * inputs[0].numel()
        chunk_size = max(1, _CHUNK_NUMBERS // per_record)
    count = math.ceil(records / chunk_size)
    edges = [records * i // count for i in range(count + 1)]
    return [slice(start, stop) for start, stop in itertools.pairwise(edges)]


def _channels_last(images: torch.Tensor) -> torch.Tensor:
    """Copy images to channels-last strides, spelt out because torch leaves one channel as it is."""
    _, channels, height, width = images.shape
    stride = (height * width * channels, 1, width * channels, channels)
    return images.new_empty_strided(images.shape, stride).copy_(images)
