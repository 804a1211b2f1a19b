"""Gradients of convolutions of any dimension, which multiply their kernel by what it sees."""

import math
from typing import Any

import torch
from torch.nn import functional

_SHORT_RUN = 32  # numbers: copying fewer at a time is slow
_CACHED_NUMBERS = 1 << 19  # 2 MiB


def kernel_gradients(layer: Any, image: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
    """Return each record's gradient of a kernel: records x (kernel, channels last).

    What the kernel sees is many times the image, so it is made for a few records at a time, as many
    as stay in the processor's cache.

    Args:
        layer: The convolution.
        image: What went in.
        gradient: The loss's gradient of what came out.
    """
    positions = math.prod(gradient.shape[2:])
    rows = gradient.new_empty(len(image), layer.weight.numel())
    per_group = (-1, layer.out_channels // layer.groups)
    step = max(1, _CACHED_NUMBERS // (layer.weight[0].numel() * positions))
    for some in (slice(start, start + step) for start in range(0, len(image), step)):
        seen = patches(layer, image[some], gradient.shape[2:]).flatten(0, 1)
        gradients = gradient[some].reshape(*per_group, positions)
        torch.bmm(gradients, seen, out=rows[some].view(*per_group, seen.shape[2]))
    return rows


def patches(layer: Any, image: torch.Tensor, positions: torch.Size) -> torch.Tensor:
    """Return what the kernel sees: records x groups x positions x (kernel cells·channels).

    Channels come last because then a row of the kernel is one contiguous run, which copies several
    times faster than torch's own unfold.

    Args:
        layer: The convolution.
        image: What went in.
        positions: Where the kernel stood: height and width, say, of what came out.
    """
    padding: list[int] = layer._reversed_padding_repeated_twice
    if any(padding):
        mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
        image = functional.pad(image, padding, mode=mode)
    if image.dim() != 4 and image.stride(1) != 1:
        image = image.movedim(1, -1).contiguous().movedim(-1, 1)
    channels = layer.in_channels // layer.groups
    size = (len(image), layer.groups, *positions, *layer.kernel_size, channels)
    record, channel, *cells = image.stride()
    group = channel * channels
    steps = [cell * step for cell, step in zip(cells, layer.stride, strict=True)]
    within = [cell * step for cell, step in zip(cells, layer.dilation, strict=True)]
    if image.dim() == 4 and layer.kernel_size[1] * channels < _SHORT_RUN:
        # Short runs copy slowly, so each row of the image is spread out once for all the rows of
        # the kernel that meet it: then a whole kernel is one run.
        spread = (*size[:2], positions[1], image.shape[2], layer.kernel_size[1], channels)
        stride = (record, group, steps[1], cells[0], within[1], channel)
        image = image.as_strided(spread, stride).contiguous()
        record, group, right, row, along, channel = image.stride()
        steps, within = [row * layer.stride[0], right], [row * layer.dilation[0], along]
    view = image.as_strided(size, (record, group, *steps, *within, channel))
    return view.reshape(*size[:2], math.prod(positions), -1)
