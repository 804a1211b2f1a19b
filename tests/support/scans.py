"""Records of two arrays, a scan and the words of its report, and models that take both."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

LOADER = "tests.support.scans:scans"
BOOKED = "tests.support.scans:booked_model"
PER_RECORD = "tests.support.scans:per_record_model"


class _ScanAndReport(nn.Module):
    def __init__(self, classes: int, report: nn.Module, width: int) -> None:
        super().__init__()
        self.scan = nn.Conv2d(3, 4, 3)
        self.report = report
        self.last = nn.Linear(4 * 4 + width, classes)

    def forward(self, scan: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
        seen = torch.tanh(self.scan(scan)).flatten(1)
        both = torch.cat([seen, torch.tanh(self.report(words)).flatten(1)], dim=1)
        out: torch.Tensor = self.last(both)
        return out


def booked_model(classes: int) -> nn.Module:
    """Return a model of Conv2d and Linear layers."""
    report = nn.Sequential(_Floats(), nn.Linear(5, 6))
    return _ScanAndReport(classes, report, 6)


def per_record_model(classes: int) -> nn.Module:
    """Return a model with a layer that has no books."""
    return _ScanAndReport(classes, nn.Embedding(20, 2), 10)


class _Floats(nn.Module):
    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return words.float() / 20


def arrays(count: int, seed: int = 0) -> dict[str, np.ndarray[Any, Any]]:
    """Return bytes of colour, five words each, and classes that both tell."""
    rng = np.random.default_rng(seed)
    x0 = rng.integers(0, 256, (count, 3, 4, 4), dtype=np.uint8)
    x1 = rng.integers(0, 20, (count, 5))
    return {"x0": x0, "x1": x1, "y": ((x0[:, 0, 0, 0] > 127) ^ (x1[:, 0] > 9)).astype(np.int64)}


def write_npy(folder: Path, count: int) -> Path:
    """Write the arrays as files that can be mapped."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, array in arrays(count).items():
        np.save(folder / f"{name}.npy", array)
    return folder


def scans() -> tuple[tuple[np.ndarray[Any, Any], ...], np.ndarray[Any, Any]]:
    """Return inputs and targets, as an own loader does."""
    made = arrays(30)
    return (made["x0"], made["x1"]), made["y"]
