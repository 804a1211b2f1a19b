"""What it costs to clip persons instead of records: the same rows, five of each person.

CPU time on one thread of `coinflower.learning.clipped_gradient_sum`, as a ratio to the sum over
records: with layers whose gradients are kept in books, and with Opacus' per-sample gradients.

Run with ``python -m tools.bench.persons``.
"""

import warnings
from collections.abc import Callable
from typing import Any

import torch
from opacus.layers import DPGRU
from torch import nn

from coinflower.learning import build_model, clipped_gradient_sum
from tools.bench.simulator import take_turns

CLASSES = 62
CLIP_NORM = 1.0
ROWS = 350
ROWS_PER_PERSON = 5
LIMIT = 2.5


class Recurrent(nn.Module):
    """Reads an image line by line; recurrent layers have Opacus' gradients only."""

    def __init__(self) -> None:
        super().__init__()
        self.recurrent = DPGRU(28, 64, batch_first=True)
        self.last = nn.Linear(64, CLASSES)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return logits after the last line."""
        states, _ = self.recurrent(images.squeeze(1))
        logits: torch.Tensor = self.last(states[:, -1])
        return logits


MODELS: dict[str, Callable[[], nn.Module]] = {
    "paper-cnn": lambda: build_model("paper-cnn", classes=CLASSES),
    "linear layers": lambda: nn.Sequential(
        nn.Flatten(), nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, CLASSES)
    ),
    "per-sample (gru)": Recurrent,
}


def run(*, repetitions: int = 15) -> list[dict[str, Any]]:
    """Measure every model.

    Args:
        repetitions: How often each sum is computed.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return [_row(name, make(), repetitions) for name, make in MODELS.items()]
    finally:
        torch.set_num_threads(threads)


def _row(name: str, model: nn.Module, repetitions: int) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.rand(ROWS, 1, 28, 28, generator=generator)
    targets = torch.randint(0, CLASSES, (ROWS,), generator=generator)
    persons = torch.arange(ROWS) // ROWS_PER_PERSON
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Full backward hook is firing")
        seconds = take_turns(
            {
                "records": lambda: clipped_gradient_sum(model, inputs, targets, CLIP_NORM),
                "persons": lambda: clipped_gradient_sum(
                    model, inputs, targets, CLIP_NORM, persons=persons
                ),
            },
            repetitions,
        )
    ratio = seconds["persons"] / seconds["records"]
    return {
        "samples": ROWS,
        "measure": f"CPU time, persons of {ROWS_PER_PERSON} records / records, {name}",
        "value": ratio,
        "limit": LIMIT,
        "met": ratio <= LIMIT,
    }


if __name__ == "__main__":
    for row in run():
        print(f"{row['measure']:<60}{row['value']:>8.2f}{row['limit']:>8.2f}")
