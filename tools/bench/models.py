"""What the clipped sum of each built-in model costs, against Opacus' ghost clipping.

CPU time on one thread, as a ratio to Opacus on a model of the same layers and sizes. Opacus cannot
ghost-clip recurrent layers, so that its `DPGRU` goes through its per-sample gradients; and it does
not allow what works in place, so that its ResNet is one without.

Run with ``python -m tools.bench.models``.
"""

import copy
import types
import warnings
from dataclasses import dataclass
from typing import Any

import torch
from opacus.layers import DPGRU
from torch import nn

from coinflower.learning import build_model, clipped_gradient_sum
from tools.bench.clipped import CLIP_NORM, opacus_ghost
from tools.bench.simulator import Step, take_turns

CLASSES = 10
WORDS = 2000
LIMIT = 1.0


@dataclass(frozen=True, kw_only=True)
class Case:
    """A model, and how many records of which shape it is given."""

    name: str
    records: int = 70
    row_shape: tuple[int, ...]
    words: bool = False
    repetitions: int = 15


CASES = (
    Case(name="mlp", row_shape=(30,)),
    Case(name="paper-cnn", row_shape=(1, 28, 28)),
    Case(name="resnet18-gn", row_shape=(3, 32, 32), records=16, repetitions=3),
    Case(name="gru", row_shape=(40,), words=True),
    Case(name="transformer", row_shape=(40,), words=True),
)


def run() -> list[dict[str, Any]]:
    """Measure every model."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Full backward hook is firing")
            return [row for case in CASES for row in _rows(case)]
    finally:
        torch.set_num_threads(threads)


def _rows(case: Case) -> list[dict[str, Any]]:
    torch.manual_seed(0)
    options = {"words": WORDS} if case.words else {}
    model = build_model(case.name, classes=CLASSES, row_shape=case.row_shape, options=options)
    inputs = torch.rand(case.records, *case.row_shape)
    if case.words:
        inputs = (inputs * WORDS).long()
    targets = torch.randint(0, CLASSES, (case.records,))
    steps: dict[str, Step] = {
        "ours": lambda: clipped_gradient_sum(model, inputs, targets, CLIP_NORM),
        "opacus": opacus_ghost(_for_opacus(case.name, model), inputs, targets),
    }
    if case.name != "gru":  # the gates of Opacus' own have other weights
        ours, theirs = (torch.as_tensor(step()) for step in steps.values())
        if not torch.allclose(ours, theirs, rtol=1e-3, atol=1e-4):
            raise RuntimeError("the methods disagree, so their times mean nothing")
    seconds = take_turns(steps, case.repetitions)
    against = "Opacus' DPGRU, per-sample" if case.name == "gru" else "Opacus ghost clipping"
    ratio = seconds["ours"] / seconds["opacus"]
    return [
        {
            "samples": case.records,
            "measure": f"clipped sum, CPU time / {against}, {case.name}",
            "value": ratio,
            "limit": LIMIT,
            "met": ratio <= LIMIT,
        }
    ]


def _for_opacus(name: str, model: nn.Module) -> nn.Module:
    """Return a model that Opacus takes, of the same layers and sizes."""
    if name == "gru":
        return Recurrent(next(model.children()), width=32)
    twin = copy.deepcopy(model)
    for module in twin.modules():
        if getattr(module, "inplace", False):
            vars(module)["inplace"] = False
        if type(module).__name__ == "BasicBlock":
            vars(module)["forward"] = types.MethodType(_block_without_in_place, module)
    return twin


def _block_without_in_place(self: Any, rows: torch.Tensor) -> torch.Tensor:
    """Compute what torchvision's BasicBlock does."""
    out = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(rows)))))
    through = rows if self.downsample is None else self.downsample(rows)
    added: torch.Tensor = self.relu(out + through)
    return added


class Recurrent(nn.Module):
    """The model ``gru`` with Opacus' units."""

    def __init__(self, vocabulary: nn.Module, width: int) -> None:
        super().__init__()
        self.vocabulary = copy.deepcopy(vocabulary)
        self.units = DPGRU(width, width, batch_first=True)
        self.last = nn.Linear(width, CLASSES)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        """Return logits."""
        states, _ = self.units(self.vocabulary(words))
        logits: torch.Tensor = self.last(states.mean(1))
        return logits


if __name__ == "__main__":
    for row in run():
        print(f"{row['measure']:<70}{row['value']:>8.2f}{row['limit']:>8.2f}")
