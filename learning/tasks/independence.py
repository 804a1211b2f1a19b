"""Whether the loss of a record depends on that record alone."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from coinflower.accounting.errors import UserError
from coinflower.learning.gradients.per_record import summed
from coinflower.learning.tasks.task import Task

_RECORDS = 6


def refuse_mixing_loss(task: Task, target: torch.Tensor) -> None:
    """Refuse a loss that mixes records: clipping could not bound what one of them does.

    Tried on random outputs and targets, which are public. In a batch, alone and in another order,
    a record must have the same loss, and no other record's outputs may have a part in its gradient.

    Args:
        task: Has the loss.
        target: A row of targets, for their shape and type.

    Raises:
        UserError: It mixes records, or is not one number per record.
    """
    generator = torch.Generator().manual_seed(0)
    for targets in random_targets(task, target, _RECORDS, generator):
        outputs = torch.randn(_RECORDS, task.outputs, generator=generator).requires_grad_()
        summed(task.losses, outputs, targets)  # refuses other shapes
        losses = task.losses(outputs, targets)
        if not losses.requires_grad:
            raise UserError("the loss does not depend on the model's outputs: nothing is learned")
        alone = [
            task.losses(outputs[one : one + 1], targets[one : one + 1]) for one in range(_RECORDS)
        ]
        turned = task.losses(outputs.flip(0), targets.flip(0)).flip(0)
        same = all(
            torch.allclose(losses, other, rtol=1e-4, atol=1e-6, equal_nan=True)
            for other in (torch.cat(alone), turned)
        )
        if not same or _reaches_others(losses, outputs):
            raise UserError(
                "the loss of a record changes with the other records of a batch, so clipping "
                "cannot bound what one record does: compute it from its own outputs and target"
            )


def _reaches_others(losses: torch.Tensor, outputs: torch.Tensor) -> bool:
    for one in range(_RECORDS):
        (gradient,) = torch.autograd.grad(losses[one], outputs, retain_graph=True)
        gradient[one] = 0
        if bool((gradient != 0).any()):
            return True
    return False


def random_targets(
    task: Task, target: torch.Tensor, count: int, generator: torch.Generator
) -> Iterator[torch.Tensor]:
    """Yield targets that fit a task, of one kind after the other.

    Args:
        task: The task.
        target: A row of targets, for their shape and type.
        count: How many.
        generator: Where they come from.
    """
    shape = (count, *target.shape[1:])
    if not target.is_floating_point():
        yield torch.randint(max(2, task.outputs), shape, generator=generator)
        return
    yield torch.randint(2, shape, generator=generator).to(target.dtype)
    yield torch.rand(shape, generator=generator)
