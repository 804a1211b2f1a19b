"""A model's learned parameters as one flat vector."""

import itertools

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from coinflower.accounting.errors import UserError
from coinflower.learning.gradients.per_record import trainable_parameters


def count_parameters(model: nn.Module) -> int:
    """Return how many numbers the model learns."""
    return sum(parameter.numel() for parameter in trainable_parameters(model))


def flatten_parameters(model: nn.Module) -> torch.Tensor:
    """Return a float32 copy of the learned parameters as one vector in the processor's memory."""
    flat = [parameter.detach().reshape(-1) for parameter in trainable_parameters(model)]
    return torch.cat(flat).to("cpu", torch.float32, copy=True)


def load_parameters(model: nn.Module, flat: torch.Tensor | NDArray[np.float32]) -> None:
    """Write a flat vector into the learned parameters, in the order of ``flatten_parameters``.

    Raises:
        ValueError: If the vector does not have exactly one number per learned parameter.
    """
    values = torch.as_tensor(flat)
    parameters = trainable_parameters(model)
    if values.shape != (count_parameters(model),):
        raise UserError(
            f"the parameter vector has shape {tuple(values.shape)}, but the model needs "
            f"({count_parameters(model)},): use the vector of the same model"
        )
    ends = itertools.accumulate(parameter.numel() for parameter in parameters)
    with torch.no_grad():
        for end, parameter in zip(ends, parameters, strict=True):
            parameter.copy_(values[end - parameter.numel() : end].view(parameter.shape))
