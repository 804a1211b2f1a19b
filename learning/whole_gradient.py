"""Whether gradients that are found layer by layer are whole."""

import math

import torch
from torch import nn

from coinflower.accounting.errors import UserError
from coinflower.learning.device import device_holding
from coinflower.learning.gradients.clipped import clipped_gradient_sum
from coinflower.learning.gradients.per_record import Inputs, summed, trainable_parameters
from coinflower.learning.seeded import seeded
from coinflower.learning.tasks.task import Task

_ROUNDING = 1e-3  # of a gradient, generous for deep models in single precision


def require_whole_gradient(
    model: nn.Module,
    name: str,
    inputs: Inputs,
    targets: torch.Tensor,
    task: Task,
    *,
    rounding: float = _ROUNDING,
) -> None:
    """Refuse a model that computes with weights past the layers they belong to.

    Gradients of single records are found layer by layer, so they would lack a part.

    Args:
        model: The model.
        name: Its name.
        inputs: Some records.
        targets: Their targets.
        task: What is learned.
        rounding: Share of the gradient that may differ.

    Raises:
        UserError: An ordinary backward pass finds another gradient.
    """

    def ordinary() -> torch.Tensor:
        device = device_holding(model)
        with torch.enable_grad():
            answer = model(*(one.to(device) for one in inputs))
            loss = summed(task.losses, answer, targets.to(device))
            found = torch.autograd.grad(
                loss, trainable_parameters(model), allow_unused=True, materialize_grads=True
            )
        return torch.cat([one.flatten().cpu() for one in found])

    def by_layer() -> torch.Tensor:
        return clipped_gradient_sum(model, inputs, targets, math.inf, loss=task.losses)

    whole = seeded(ordinary)
    apart = float((whole - seeded(by_layer)).norm())
    # A model may draw at random where no seed reaches; then nothing can be compared.
    if apart > rounding * float(whole.norm()) and torch.equal(whole, seeded(ordinary)):
        raise UserError(
            f"model {name!r} computes with a layer's weights outside of that layer, so that the "
            "gradient of a single record would lack a part: call the layer itself"
        )
