"""Models of a user's own that are hard to save."""

from __future__ import annotations

import torch
from opacus.layers import DPLSTM
from torch import nn


class Recurrent(nn.Module):
    """Shares memory between the names of its weights."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.memory = DPLSTM(8, 6, batch_first=True)
        self.last = nn.Linear(6, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.last(self.memory(x.squeeze(1))[0].mean(1))
        return out


class Tied(nn.Module):
    def __init__(self, classes: int) -> None:
        super().__init__()
        self.one = nn.Linear(64, 64)
        self.two = nn.Linear(64, 64)
        self.two.weight = self.one.weight
        self.last = nn.Linear(64, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.last(self.two(self.one(x.flatten(1))))
        return out


class Extra(nn.Linear):
    def __init__(self, classes: int) -> None:
        super().__init__(64, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x.flatten(1))

    def get_extra_state(self) -> str:
        return "notes"


RECURRENT, TIED, EXTRA = (f"{__name__}:{kind.__name__}" for kind in (Recurrent, Tied, Extra))
