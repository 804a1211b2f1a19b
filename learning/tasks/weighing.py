"""The loss of records that have weights."""

import torch

from coinflower.learning.data.weights import Weights
from coinflower.learning.gradients.per_record import Loss
from coinflower.learning.tasks.task import Task


def loss_of(
    task: Task, targets: torch.Tensor, weights: Weights | None
) -> tuple[torch.Tensor, Loss]:
    """Return what stands for the targets, and the loss that takes it: times each record's weight.

    Records are cut into parts on their way to the loss. If they have weights, their numbers travel
    in the place of targets, and the loss looks up both.
    """
    if weights is None:
        return targets, task.losses
    factors = torch.from_numpy(weights)

    def weighted(outputs: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        some = rows.to(targets.device)
        losses = task.losses(outputs, targets[some].to(outputs.device))
        return losses * factors[some].to(outputs.device)

    return torch.arange(len(targets)), weighted
