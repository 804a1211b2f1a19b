"""Chunks are as large as a record's gradient allows, measured once for each model."""

import torch
from torch import nn

from coinflower.learning import build_model, clipped_gradient_sum
from coinflower.learning.gradients import memory


def test_a_chunk_holds_fewer_records_the_more_each_takes(monkeypatch):
    sizes = []

    class Watched(nn.Linear):
        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            sizes.append(len(rows))
            return super().forward(rows)

    monkeypatch.setattr(memory, "_CHUNK_NUMBERS", 1 << 14)
    frozen = Watched(40, 40).requires_grad_(False)
    model = nn.Sequential(frozen, nn.Linear(40, 30), nn.Tanh(), nn.Linear(30, 3))
    inputs, targets = torch.randn(300, 40), torch.zeros(300, dtype=torch.int64)
    clipped_gradient_sum(model, inputs, targets, 1.0)
    assert sizes[0] == 1  # measured once
    assert sum(sizes[1:]) == 300
    assert 20 < max(sizes) < 150
    again = len(sizes) - 1
    clipped_gradient_sum(model, inputs, targets, 1.0)
    assert len(sizes) == 1 + 2 * again


def test_a_large_model_is_given_room_for_more_than_one_record():
    model = build_model("resnet18-gn", classes=3, row_shape=(3, 32, 32))
    inputs, targets = torch.rand(2, 3, 32, 32), torch.zeros(2, dtype=torch.int64)
    source = memory_source(model)
    most = memory.records_at_once(model, source, (inputs,), targets)
    assert 2 <= most <= 16


def memory_source(model: nn.Module) -> memory.GradientSource:
    from coinflower.learning.gradients.bookkeeping import BookKeeper, bookable_layers
    from coinflower.learning.gradients.per_record import cross_entropy

    layers = bookable_layers(model)
    assert layers is not None
    return BookKeeper(model, layers, cross_entropy)
