"""Models whose gradients are whatever the audit's data say, on as many coordinates as wanted.

They are named to the shipped code as any owner's model is, by ``package.module:function``.
"""

from __future__ import annotations

import torch
from torch import nn

COPIES = 200
"""How many small clients one wide message stands for; each has two coordinates of its own."""
PLANE = "coinflower.experiments.audit.model:plane"
WIDE = "coinflower.experiments.audit.model:wide"

# Data lie in 0..1 and the loss has slope 1/2 at zero weights. Long, so that clipping matters.
RAW_NORM = 8.0


class LinearLogit(nn.Module):
    """One logit, linear in the input, against a logit that is always 0.

    At weights near zero the gradient of a record (x, class) is ∓ RAW_NORM·x: the data choose its
    direction, and clipping its length.

    Args:
        width: Number of inputs, and of parameters.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, 1, bias=False)
        nn.init.zeros_(self.linear.weight)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return both logits of each image."""
        logit = self.linear(images.flatten(1) * (2 * RAW_NORM))
        return torch.cat([logit, torch.zeros_like(logit)], dim=1)


def plane(classes: int) -> nn.Module:
    """Return a model of two parameters."""
    del classes
    return LinearLogit(2)


def wide(classes: int) -> nn.Module:
    """Return a model of two parameters for each copy."""
    del classes
    return LinearLogit(2 * COPIES)
