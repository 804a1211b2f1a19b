"""Clipped gradient sums from one backward pass, for models made of Conv2d and Linear layers.

The backward pass stops at the layers' outputs. With a layer's input and the gradient of its output,
each record's gradient norm and, once the clip factors are known, the weighted sum follow by small
matrix products. So there is neither a second backward pass nor one gradient per record and weight
of the large linear layers ("book-keeping", Bu et al. 2022, arXiv 2210.00038).
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from coinflower.accounting.errors import UserError
from coinflower.learning.gradients.per_record import (
    LARGEST_ACTIVATION,
    clip_factors,
    square_norms_of,
    summed_cross_entropy,
)

Layer = nn.Conv2d | nn.Linear


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


def book_chunk(
    model: nn.Module,
    layers: list[Layer],
    inputs: torch.Tensor,
    targets: torch.Tensor,
    clip_norm: float,
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return the clipped gradient sum of one chunk, parameter by parameter.

    Raises:
        CannotKeepBooks: If a layer is called more than once or its input changes afterwards.
    """
    with _recorded(layers) as calls, torch.enable_grad():
        loss = summed_cross_entropy(model(inputs), targets)
        if loss.requires_grad:
            loss.backward()  # type: ignore[no-untyped-call]
    square_norms = torch.zeros(len(targets), dtype=torch.float64, device=inputs.device)
    gradients: list[_OuterProducts | _PerRecord] = []
    while calls:
        layer, call = calls.popitem()
        if call.output_gradient is None:
            continue
        gradient = _gradients(layer, call, len(targets))
        square_norms += gradient.square_norms()
        gradients.append(gradient)
    keep, factors = clip_factors(square_norms, clip_norm)
    if not bool(keep.all()):
        gradients = [gradient.select(keep) for gradient in gradients]
        factors = factors[keep]
    return [pair for gradient in gradients for pair in gradient.weighted_sum(factors)]


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


@dataclass(frozen=True, kw_only=True)
class _OuterProducts:
    """Gradients of a Linear layer on plain rows: each is the outer product of two vectors."""

    layer: nn.Linear
    activations: torch.Tensor
    output_gradients: torch.Tensor

    def square_norms(self) -> torch.Tensor:
        """Squared norms, in double precision because a product of small factors underflows."""
        norms = torch.linalg.vector_norm(self.output_gradients, dim=1, dtype=torch.float64)
        total = torch.zeros_like(norms)
        if self.layer.weight.requires_grad:
            inner = torch.linalg.vector_norm(self.activations, dim=1, dtype=torch.float64)
            total += (norms * inner).square()
            # An input this large would magnify the rounding of the gradient it multiplies.
            total[inner > LARGEST_ACTIVATION] = torch.inf
        if _learns_bias(self.layer):
            total += norms.square()
        return total

    def select(self, rows: torch.Tensor) -> "_OuterProducts":
        return _OuterProducts(
            layer=self.layer,
            activations=self.activations[rows],
            output_gradients=self.output_gradients[rows],
        )

    def weighted_sum(self, factors: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        weighted = self.output_gradients * factors.to(self.output_gradients.dtype)[:, None]
        if self.layer.weight.requires_grad:
            yield self.layer.weight, weighted.t() @ self.activations
        if _learns_bias(self.layer):
            yield self.layer.bias, weighted.sum(0)


@dataclass(frozen=True, kw_only=True)
class _PerRecord:
    """Gradients of a layer that applies its weights at many positions, one row per record."""

    layer: Layer
    weights: torch.Tensor
    biases: torch.Tensor

    def square_norms(self) -> torch.Tensor:
        total = torch.zeros(len(self.weights), dtype=torch.float64, device=self.weights.device)
        # Norms of the very numbers that will be summed.
        if self.layer.weight.requires_grad:
            total += square_norms_of(self.weights)
        if _learns_bias(self.layer):
            total += square_norms_of(self.biases)
        return total

    def select(self, rows: torch.Tensor) -> "_PerRecord":
        return _PerRecord(layer=self.layer, weights=self.weights[rows], biases=self.biases[rows])

    def weighted_sum(self, factors: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        factors = factors.to(self.weights.dtype)
        if self.layer.weight.requires_grad:
            summed = factors @ self.weights
            if isinstance(self.layer, nn.Conv2d):
                out, channels, height, width = self.layer.weight.shape
                summed = summed.view(out, height, width, channels).permute(0, 3, 1, 2)
            yield self.layer.weight, summed
        if _learns_bias(self.layer):
            assert self.layer.bias is not None
            yield self.layer.bias, factors @ self.biases


def _gradients(layer: Layer, call: _Call, records: int) -> _OuterProducts | _PerRecord:
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
    if isinstance(layer, nn.Conv2d):
        return _convolution_gradients(layer, activation, gradient)
    if activation.dim() == 2:
        return _OuterProducts(layer=layer, activations=activation, output_gradients=gradient)
    positions = gradient.reshape(records, -1, layer.out_features).transpose(1, 2)
    rows = activation.reshape(records, -1, layer.in_features)
    weights = torch.bmm(positions, rows).flatten(1)
    return _PerRecord(layer=layer, weights=weights, biases=positions.sum(2))


def _convolution_gradients(
    layer: nn.Conv2d, activation: torch.Tensor, gradient: torch.Tensor
) -> _PerRecord:
    records, groups = len(activation), layer.groups
    positions = gradient.flatten(2)
    patches = _patches(layer, activation, tuple(gradient.shape[2:]))
    per_group = positions.reshape(records * groups, layer.out_channels // groups, -1)
    return _PerRecord(
        layer=layer,
        weights=torch.bmm(per_group, patches).view(records, -1),
        biases=positions.sum(2),
    )


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
    stride = (
        record,
        channel * channels,
        row * layer.stride[0],
        column * layer.stride[1],
        row * layer.dilation[0],
        column * layer.dilation[1],
        channel,
    )
    view = image.as_strided(size, stride)
    return view.reshape(size[0] * size[1], positions[0] * positions[1], -1)


def _learns_bias(layer: Layer) -> bool:
    return layer.bias is not None and layer.bias.requires_grad
