"""How much memory the gradient of one record takes, measured once for each model."""

import weakref
from contextlib import AbstractContextManager
from typing import Protocol

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks

from coinflower.learning.gradients.per_record import NOBODY, Inputs
from coinflower.learning.gradients.units import UnitGradients
from coinflower.learning.gradients.words import WordRows

_CHUNK_NUMBERS = 1 << 23  # float32 numbers a chunk may need at a time: 32 MiB
_CHUNK_MODELS = 2  # or as many as so many models have, if that is more
_SAVED_AND_THEIR_GRADIENTS = 2


class GradientSource(Protocol):
    """Computes the gradients of records."""

    def gradients(
        self,
        inputs: Inputs,
        targets: torch.Tensor,
        *,
        watching: AbstractContextManager[None] = NOBODY,
    ) -> list[UnitGradients]:
        """Return the gradients of one chunk of records; the forward pass runs in the context."""
        ...


_measured: weakref.WeakKeyDictionary[nn.Module, dict[tuple[torch.Size, ...], int]] = (
    weakref.WeakKeyDictionary()
)


def records_at_once(
    model: nn.Module, source: GradientSource, inputs: Inputs, targets: torch.Tensor
) -> int:
    """Return of how many records a chunk may be.

    Args:
        model: The model.
        source: Of its gradients; asked for one if records of this shape are new to the model.
        inputs: One record.
        targets: Its target.
    """
    known = _measured.setdefault(model, {})
    shapes = tuple(one.shape[1:] for one in inputs)
    if shapes not in known:
        known[shapes] = _numbers(model, source, inputs, targets)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    return max(1, max(_CHUNK_NUMBERS, _CHUNK_MODELS * parameters) // known[shapes])


def _numbers(
    model: nn.Module, source: GradientSource, inputs: Inputs, targets: torch.Tensor
) -> int:
    """Return how many numbers are held while the gradients of some records are computed."""
    shared = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    saved: dict[int, int] = {}

    def count(tensor: torch.Tensor) -> torch.Tensor:
        place = tensor.untyped_storage().data_ptr()
        saved[place] = max(tensor.numel(), saved.get(place, 0))
        return tensor

    gradients = source.gradients(
        inputs, targets, watching=saved_tensors_hooks(count, lambda tensor: tensor)
    )
    activations = sum(numbers for place, numbers in saved.items() if place not in shared)
    # What words occur depends on the record; they are fewer than its activations in any case.
    held = sum(
        value.numel()
        for one in gradients
        if not isinstance(one, WordRows)
        for name, value in vars(one).items()
        if isinstance(value, torch.Tensor) and name != "parameter"
    )
    return max(1, _SAVED_AND_THEIR_GRADIENTS * activations + held)
