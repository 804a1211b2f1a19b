"""Gradients of records from one backward pass, for models made of torch's common layers.

The backward pass stops at the layers' outputs. With a layer's input and the gradient of its output,
each record's gradient norm and, once the clip factors are known, the weighted sum follow by small
matrix products. So there is neither a second backward pass nor one gradient per record and weight
of the large linear layers ("book-keeping", Bu et al. 2022, arXiv 2210.00038).
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import nn

from coinflower.accounting.errors import UserError
from coinflower.learning.gradients.layers import BOOKABLE, Call
from coinflower.learning.gradients.per_record import NOBODY, Inputs, Loss, exact, summed
from coinflower.learning.gradients.units import UnitGradients


class CannotKeepBooks(Exception):  # noqa: N818 - a turn of control flow, not a failure
    """The model uses its layers in a way that needs per-record gradients proper."""


def bookable_layers(model: nn.Module) -> list[nn.Module] | None:
    """Return the trainable layers if there are books for all of them, otherwise None."""
    layers: list[nn.Module] = []
    owned: set[int] = set()
    for module in model.modules():
        own = dict(module.named_parameters(recurse=False))
        if not any(parameter.requires_grad for parameter in own.values()):
            continue
        # Exact types: a subclass may compute something else from the same weights.
        if type(module) not in BOOKABLE or not own.keys() <= {"weight", "bias"}:
            return None
        if owned & {id(parameter) for parameter in own.values()}:
            return None
        owned |= {id(parameter) for parameter in own.values()}
        layers.append(module)
    return layers


class BookKeeper:
    """Gradients of records by book-keeping.

    Args:
        model: The model.
        layers: Its `bookable_layers`.
        loss: The loss of each record.
    """

    def __init__(self, model: nn.Module, layers: list[nn.Module], loss: Loss) -> None:
        self._model = model
        self._loss = loss
        self._layers = layers
        self._channels_last = any(isinstance(layer, nn.Conv2d) for layer in layers)

    def gradients(
        self,
        inputs: Inputs,
        targets: torch.Tensor,
        *,
        watching: AbstractContextManager[None] = NOBODY,
    ) -> list[UnitGradients]:
        """Return the gradients of one chunk of records; the forward pass runs in the context.

        Raises:
            CannotKeepBooks: If the input of a layer changes after it was called.
        """
        if self._channels_last and any(one.dim() == 4 for one in inputs):
            turned = tuple(_channels_last(one) if one.dim() == 4 else one for one in inputs)
            try:
                return self._gradients(turned, targets, watching)
            except RuntimeError as error:
                # A model may use `view` where only a contiguous tensor will do.
                if "view size is not compatible" not in str(error):
                    raise
                self._channels_last = False
        return self._gradients(inputs, targets, watching)

    def _gradients(
        self, inputs: Inputs, targets: torch.Tensor, watching: AbstractContextManager[None]
    ) -> list[UnitGradients]:
        with _recorded(self._layers) as calls, torch.enable_grad():
            with watching:
                loss = summed(self._loss, self._model(*inputs), targets)
            if loss.requires_grad:
                loss.backward()  # type: ignore[no-untyped-call]
        gradients: list[UnitGradients] = []
        while calls:
            layer, made = calls.popitem()
            gradients.extend(_layer_gradients(layer, made, len(targets)))
        return gradients


def _layer_gradients(layer: nn.Module, calls: list[Call], records: int) -> Iterator[UnitGradients]:
    dimensions, gradients_of = BOOKABLE[type(layer)]
    factors = []
    for call in calls:
        if call.activation._version != call.version:
            raise CannotKeepBooks
        if call.activation.dim() < dimensions or call.activation.shape[0] != records:
            raise UserError(
                f"layer {layer} received shape {tuple(call.activation.shape)} for {records} "
                "records; the first dimension must count the records: keep the batch dimension "
                "first"
            )
        if call.output_gradient is not None:
            factors.append((exact(call.activation), exact(call.output_gradient)))
    return gradients_of(layer, factors) if factors else iter(())


class _Tap(torch.autograd.Function):
    """The identity; keeps the gradient that passes and starts the graph where there is none."""

    @staticmethod
    def forward(ctx: Any, output: torch.Tensor, _start: torch.Tensor, call: Call) -> torch.Tensor:
        ctx.call = call
        # Returning the tensor as "modified in place" avoids a copy and allows in-place activations.
        ctx.mark_dirty(output)
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        ctx.call.output_gradient = gradients[0]
        return gradients[0], None, None


@contextmanager
def _recorded(layers: list[nn.Module]) -> Iterator[dict[nn.Module, list[Call]]]:
    """Record the calls of the layers while their parameters are held constant."""
    calls: dict[nn.Module, list[Call]] = {}
    trainable = [p for layer in layers for p in layer.parameters() if p.requires_grad]
    start = torch.zeros((), requires_grad=True, device=trainable[0].device)

    def record(layer: nn.Module, args: tuple[torch.Tensor, ...], output: torch.Tensor) -> Any:
        if len(args) != 1:
            raise CannotKeepBooks
        call = Call(args[0].detach(), args[0]._version)
        calls.setdefault(layer, []).append(call)
        return _Tap.apply(output, start, call)  # type: ignore[no-untyped-call]

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


def _channels_last(images: torch.Tensor) -> torch.Tensor:
    """Copy images to channels-last strides, spelt out because torch leaves one channel as it is."""
    _, channels, height, width = images.shape
    stride = (height * width * channels, 1, width * channels, channels)
    return images.new_empty_strided(images.shape, stride).copy_(images)
