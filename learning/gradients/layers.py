"""The layers whose gradients follow from what went in and the loss's gradient of what came out.

Each function takes a layer and all calls of it, and yields the gradients of its parameters record
by record. A layer that is called several times has the positions of all calls: its gradient is the
sum over them.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from coinflower.learning.gradients.convolutions import kernel_gradients, patches
from coinflower.learning.gradients.units import (
    MatrixLayer,
    OuterProducts,
    Rows,
    UnitGradients,
    learned_bias,
)
from coinflower.learning.gradients.words import WordRows

_WRITING_COSTS = 20  # to write a number and read it twice, over a product in double precision


@dataclass(slots=True)
class Call:
    """One call of a layer: what went in, and the loss's gradient of what came out.

    Attributes:
        activation: What went in.
        version: How often torch had changed it in place by then.
        output_gradient: None if the loss does not depend on what came out.
    """

    activation: torch.Tensor
    version: int
    output_gradient: torch.Tensor | None = None


Factors = list[tuple[torch.Tensor, torch.Tensor]]
"""What went in and the gradient of what came out, of each call."""
LayerGradients = Callable[[Any, Factors], Iterator[UnitGradients]]


def _of_linear(layer: nn.Linear, calls: Factors) -> Iterator[UnitGradients]:
    records = len(calls[0][0])
    inputs = [given.reshape(records, -1, layer.in_features) for given, _ in calls]
    outputs = [gradient.reshape(records, -1, layer.out_features) for _, gradient in calls]
    given, gradient = _joined(inputs), _joined(outputs)
    if _factors_are_cheaper(given.shape[1], layer.in_features, layer.out_features):
        yield _factors(layer, given, gradient)
        return
    if layer.weight.requires_grad:
        yield Rows(parameter=layer.weight, rows=torch.bmm(gradient.mT, given).flatten(1))
    bias = learned_bias(layer)
    if bias is not None:
        yield Rows(parameter=bias, rows=gradient.sum(1))


def _of_convolution(layer: Any, calls: Factors) -> Iterator[UnitGradients]:
    positions = sum(gradient.shape[2:].numel() for _, gradient in calls)
    width, height = layer.weight[0].numel(), layer.out_channels
    if layer.groups == 1 and _factors_are_cheaper(positions, width, height):
        seen = [patches(layer, given, gradient.shape[2:])[:, 0] for given, gradient in calls]
        outputs = [gradient.flatten(2).mT for _, gradient in calls]
        yield _factors(layer, _joined(seen), _joined(outputs))
        return
    if layer.weight.requires_grad:
        parts = [kernel_gradients(layer, given, gradient) for given, gradient in calls]
        yield Rows(parameter=layer.weight, rows=_added(parts), channels_last=True)
    bias = learned_bias(layer)
    if bias is not None:
        yield Rows(
            parameter=bias, rows=_added([gradient.flatten(2).sum(2) for _, gradient in calls])
        )


def _factors_are_cheaper(positions: int, width: int, height: int) -> bool:
    """Whether the norms of Σ_t b_t·a_tᵀ cost less without writing the sums.

    That takes products of all pairs of positions. The sum over all records takes as many products
    either way.
    """
    return positions * positions * (width + height) < _WRITING_COSTS * width * height


def _factors(layer: MatrixLayer, inputs: torch.Tensor, outputs: torch.Tensor) -> OuterProducts:
    """Return gradients, given inputs and outputs as records x positions x numbers."""
    return OuterProducts(
        layer=layer,
        activations=inputs.flatten(0, 1),
        output_gradients=outputs.flatten(0, 1),
        positions=inputs.shape[1],
    )


def _of_embedding(layer: nn.Embedding, calls: Factors) -> Iterator[UnitGradients]:
    records = len(calls[0][0])
    words = _joined([given.reshape(records, -1) for given, _ in calls])
    rows = _joined([gradient.reshape(records, -1, layer.embedding_dim) for _, gradient in calls])
    unit = torch.arange(records, device=words.device)[:, None].expand_as(words)
    learned = torch.ones_like(words, dtype=torch.bool)
    if layer.padding_idx is not None:
        learned = words != layer.padding_idx
    yield WordRows(
        parameter=layer.weight,
        rows=rows[learned],
        words=words[learned],
        unit=unit[learned],
        count=records,
    ).merged


def _of_layer_norm(layer: nn.LayerNorm, calls: Factors) -> Iterator[UnitGradients]:
    def rows(values: torch.Tensor) -> torch.Tensor:
        return values.reshape(len(values), -1, layer.weight.numel()).sum(1)

    shape = list(layer.normalized_shape)
    return _of_scaling(layer, calls, rows, lambda x: functional.layer_norm(x, shape, eps=layer.eps))


def _of_group_norm(layer: nn.GroupNorm, calls: Factors) -> Iterator[UnitGradients]:
    def rows(values: torch.Tensor) -> torch.Tensor:
        return values.sum(tuple(range(2, values.dim()))) if values.dim() > 2 else values

    groups = layer.num_groups
    return _of_scaling(
        layer, calls, rows, lambda x: functional.group_norm(x, groups, eps=layer.eps)
    )


def _of_scaling(
    layer: nn.LayerNorm | nn.GroupNorm,
    calls: Factors,
    rows: Callable[[torch.Tensor], torch.Tensor],
    normalised: Callable[[torch.Tensor], torch.Tensor],
) -> Iterator[UnitGradients]:
    """Yield the gradients of weight and bias that scale and shift what was normalised."""
    if layer.weight.requires_grad:
        parts = [rows(gradient * normalised(given)) for given, gradient in calls]
        yield Rows(parameter=layer.weight, rows=_added(parts))
    bias = learned_bias(layer)
    if bias is not None:
        parts = [rows(gradient) for _, gradient in calls]
        yield Rows(parameter=bias, rows=_added(parts))


def _joined(parts: list[torch.Tensor]) -> torch.Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)


def _added(parts: list[torch.Tensor]) -> torch.Tensor:
    return parts[0] if len(parts) == 1 else torch.stack(parts).sum(0)


BOOKABLE: dict[type[nn.Module], tuple[int, LayerGradients]] = {
    nn.Linear: (2, _of_linear),
    nn.Conv1d: (3, _of_convolution),
    nn.Conv2d: (4, _of_convolution),
    nn.Conv3d: (5, _of_convolution),
    nn.Embedding: (1, _of_embedding),
    nn.LayerNorm: (2, _of_layer_norm),
    nn.GroupNorm: (2, _of_group_norm),
}
"""Least dimensions of what goes in, records first, and the gradients."""
