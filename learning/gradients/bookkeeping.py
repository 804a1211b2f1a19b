"""Clipped gradient sums from one backward pass, for models made of Conv2d and Linear layers.

The backward pass stops at the layers' outputs. With a layer's input and the gradient of its output,
each record's gradient norm and, once the clip factors are known, the weighted sum follow by small
matrix products. So there is neither a second backward pass nor one gradient per record and weight
of the large linear layers ("book-keeping", Bu et al. 2022, arXiv 2210.00038).
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from coinflower.accounting.errors import UserError
from coinflower.learning.gradients.per_record import Inputs, Loss, summed
from coinflower.learning.gradients.units import OuterProducts, Rows, UnitGradients, learns_bias

Layer = nn.Conv2d | nn.Linear
_SHORT_RUN = 32  # numbers: copying fewer at a time is slow
_CACHED_NUMBERS = 1 << 19  # 2 MiB


class CannotKeepBooks(Exception):  # noqa: N818 - a turn of control flow, not a failure
    """The model uses its layers in a way that needs per-record gradients proper."""


def bookable_layers(model: nn.Module) -> list[Layer] | None:
    """Return the trainable layers if all are plain Conv2d or Linear layers, otherwise None."""
    layers: list[Layer] = []
    owned: set[int] = set()
    for module in model.modules():
        own = dict(module.named_parameters(recurse=False))
        if not any(parameter.requires_grad for parameter in own.values()):
            continue
        # Exact types: a subclass may compute something else from the same weights.
        if type(module) not in (nn.Conv2d, nn.Linear) or not own.keys() <= {"weight", "bias"}:
            return None
        if owned & {id(parameter) for parameter in own.values()}:
            return None
        owned |= {id(parameter) for parameter in own.values()}
        assert isinstance(module, nn.Conv2d | nn.Linear)
        layers.append(module)
    return layers


class BookKeeper:
    """Gradients of records by book-keeping.

    Args:
        model: The model.
        layers: Its `bookable_layers`.
        loss: The loss of each record.
    """

    def __init__(self, model: nn.Module, layers: list[Layer], loss: Loss) -> None:
        self._model = model
        self._loss = loss
        self._layers = layers
        self.held = sum(layer.weight.numel() for layer in layers if isinstance(layer, nn.Conv2d))
        """Numbers that are held per record besides activations."""
        self._channels_last = self.held > 0

    def gradients(self, inputs: Inputs, targets: torch.Tensor) -> list[UnitGradients]:
        """Return the gradients of one chunk of records.

        Raises:
            CannotKeepBooks: If a layer is called more than once or its input changes afterwards.
        """
        if self._channels_last and any(one.dim() == 4 for one in inputs):
            turned = tuple(_channels_last(one) if one.dim() == 4 else one for one in inputs)
            try:
                return self._gradients(turned, targets)
            except RuntimeError as error:
                # A model may use `view` where only a contiguous tensor will do.
                if "view size is not compatible" not in str(error):
                    raise
                self._channels_last = False
        return self._gradients(inputs, targets)

    def _gradients(self, inputs: Inputs, targets: torch.Tensor) -> list[UnitGradients]:
        with _recorded(self._layers) as calls, torch.enable_grad():
            loss = summed(self._loss, self._model(*inputs), targets)
            if loss.requires_grad:
                loss.backward()  # type: ignore[no-untyped-call]
        gradients: list[UnitGradients] = []
        while calls:
            layer, call = calls.popitem()
            if call.output_gradient is not None:
                gradients.extend(_layer_gradients(layer, call, len(targets)))
        return gradients


@dataclass(slots=True)
class _Call:
    """One call of a layer: what went in, and the loss's gradient of what came out."""

    activation: torch.Tensor
    version: int
    output_gradient: torch.Tensor | None = None


class _Tap(torch.autograd.Function):
    """The identity; keeps the gradient that passes and starts the graph where there is none."""

    @staticmethod
    def forward(ctx: Any, output: torch.Tensor, _start: torch.Tensor, call: _Call) -> torch.Tensor:
        ctx.call = call
        # Returning the tensor as "modified in place" avoids a copy and allows in-place activations.
        ctx.mark_dirty(output)
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        ctx.call.output_gradient = gradients[0]
        return gradients[0], None, None


@contextmanager
def _recorded(layers: list[Layer]) -> Iterator[dict[Layer, _Call]]:
    """Record the calls of the layers while their parameters are held constant."""
    calls: dict[Layer, _Call] = {}
    trainable = [p for layer in layers for p in layer.parameters() if p.requires_grad]
    start = torch.zeros((), requires_grad=True)

    def record(layer: nn.Module, args: tuple[torch.Tensor, ...], output: torch.Tensor) -> Any:
        assert isinstance(layer, nn.Conv2d | nn.Linear)
        if layer in calls or len(args) != 1:
            raise CannotKeepBooks
        calls[layer] = _Call(args[0].detach(), args[0]._version)
        return _Tap.apply(output, start, calls[layer])  # type: ignore[no-untyped-call]

    handles = [layer.register_forward_hook(record, prepend=True) for layer in layers]
    try:
        # Constant parameters keep the backward pass from computing their batch gradients.
        for parameter in trainable:
            parameter.requires_grad_(False)
        yield calls
    finally:
        for parameter in trainable:
            parameter.requires_grad_(True)
        for handle in handles:
            handle.remove()


def _layer_gradients(layer: Layer, call: _Call, records: int) -> Iterator[UnitGradients]:
    activation, gradient = call.activation, call.output_gradient
    assert gradient is not None
    if activation._version != call.version:
        raise CannotKeepBooks
    dimensions = 4 if isinstance(layer, nn.Conv2d) else 2
    if activation.dim() < dimensions or activation.shape[0] != records:
        raise UserError(
            f"layer {layer} received shape {tuple(activation.shape)} for {records} records; the "
            "first dimension must count the records: keep the batch dimension first"
        )
    if isinstance(layer, nn.Linear) and activation.dim() == 2:
        yield OuterProducts(layer=layer, activations=activation, output_gradients=gradient)
        return
    if isinstance(layer, nn.Conv2d):
        positions = gradient.flatten(2)
    else:
        positions = gradient.reshape(records, -1, layer.out_features).transpose(1, 2)
    if layer.weight.requires_grad:
        if isinstance(layer, nn.Conv2d):
            rows = _kernel_gradients(layer, activation, gradient)
        else:
            rows = torch.bmm(positions, activation.reshape(records, -1, layer.in_features))
        yield Rows(
            parameter=layer.weight,
            rows=rows.view(records, -1),
            channels_last=isinstance(layer, nn.Conv2d),
        )
    if learns_bias(layer):
        assert layer.bias is not None
        yield Rows(parameter=layer.bias, rows=positions.sum(2))


def _kernel_gradients(
    layer: nn.Conv2d, image: torch.Tensor, gradient: torch.Tensor
) -> torch.Tensor:
    """Return each record's gradient of a kernel: records x (kernel, channels last).

    What the kernel sees is many times the image, so it is made for a few records at a time, as many
    as stay in the processor's cache.
    """
    positions = tuple(gradient.shape[2:])
    rows = gradient.new_empty(len(image), layer.weight.numel())
    per_group = (-1, layer.out_channels // layer.groups)
    step = max(1, _CACHED_NUMBERS // (layer.weight[0].numel() * math.prod(positions)))
    for some in (slice(start, start + step) for start in range(0, len(image), step)):
        seen = _patches(layer, image[some], positions)
        gradients = gradient[some].reshape(*per_group, seen.shape[1])
        torch.bmm(gradients, seen, out=rows[some].view(*per_group, seen.shape[2]))
    return rows


def _patches(layer: nn.Conv2d, image: torch.Tensor, positions: tuple[int, ...]) -> torch.Tensor:
    """Return what the kernel sees: (records·groups) x positions x (kernel cells·channels).

    Channels come last because then a row of the kernel is one contiguous run, which copies several
    times faster than torch's own unfold.
    """
    padding: list[int] = layer._reversed_padding_repeated_twice
    if any(padding):
        mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
        image = functional.pad(image, padding, mode=mode)
    channels = layer.in_channels // layer.groups
    size = (len(image), layer.groups, *positions, *layer.kernel_size, channels)
    record, channel, row, column = image.stride()
    group, right, along = channel * channels, column * layer.stride[1], column * layer.dilation[1]
    if layer.kernel_size[1] * channels < _SHORT_RUN:
        # Short runs copy slowly, so each row of the image is spread out once for all the rows of
        # the kernel that meet it: then a whole kernel is one run.
        records, groups, _, columns, _, width, _ = size
        spread = (records, groups, columns, image.shape[2], width, channels)
        stride = (record, group, right, row, along, channel)
        image = image.as_strided(spread, stride).contiguous()
        record, group, right, row, along, channel = image.stride()
    down, below = row * layer.stride[0], row * layer.dilation[0]
    view = image.as_strided(size, (record, group, down, right, below, along, channel))
    return view.reshape(size[0] * size[1], positions[0] * positions[1], -1)


def _channels_last(images: torch.Tensor) -> torch.Tensor:
    """Copy images to channels-last strides, spelt out because torch leaves one channel as it is."""
    _, channels, height, width = images.shape
    stride = (height * width * channels, 1, width * channels, channels)
    return images.new_empty_strided(images.shape, stride).copy_(images)
