"""Models that need more memory than there is: for a blank row, for one record, or for many."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import nn

TORCHS = "tests.support.hungry:torchs"
NUMPYS = "tests.support.hungry:numpys"
CROWDED = "tests.support.hungry:crowded"
ALWAYS = "tests.support.hungry:always"

BRIGHT = 0.99
"""A record whose first pixel is brighter than this is the one."""
_TOO_MUCH = 1 << 60


class _Hungry(nn.Module):
    def __init__(self, classes: int, feed: Callable[[torch.Tensor], object]) -> None:
        super().__init__()
        self.last = nn.Linear(64, classes)
        self._feed = feed

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        self._feed(images)
        out: torch.Tensor = self.last(images.flatten(1))
        return out


def _has_the_one(images: torch.Tensor) -> bool:
    return bool((images[:, 0, 0, 0] > BRIGHT).any())


def torchs(classes: int) -> nn.Module:
    """Return a model for which torch has no memory if the one record is there."""
    return _Hungry(classes, lambda images: _has_the_one(images) and torch.empty(_TOO_MUCH))


def numpys(classes: int) -> nn.Module:
    """Return a model for which numpy has no memory if the one record is there."""
    return _Hungry(classes, lambda images: _has_the_one(images) and np.empty(_TOO_MUCH, np.uint8))


def crowded(classes: int) -> nn.Module:
    """Return a model for which there is memory for three records at a time."""
    return _Hungry(classes, lambda images: len(images) > 3 and torch.empty(_TOO_MUCH))


def always(classes: int) -> nn.Module:
    """Return a model for which there is never memory."""
    return _Hungry(classes, lambda _: torch.empty(_TOO_MUCH))
