"""Gradients are clipped and added up in single precision, whatever the model computes in."""

from __future__ import annotations

import copy
import itertools

import pytest
import torch
from torch import nn
from torch.nn import functional

from coinflower.learning import clipped_gradient_sum
from tests.support.clipped_models import loop_sum

CLIP_NORM = 1e-3
RECORDS = 1000


class Coarse(nn.Module):
    """A model whose weights are in half precision."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers).bfloat16()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        answer: torch.Tensor = self.layers(x.bfloat16())
        return answer


class Quick(nn.Module):
    """A model that lets torch compute in half precision where it is quicker."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 5), nn.Linear(5, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            answer: torch.Tensor = self.last(self.first(x).tanh())
        return answer.float()


@pytest.mark.parametrize(
    "layers",
    [[nn.Linear(4, 3)], [nn.Linear(4, 4), nn.PReLU(), nn.Linear(4, 3)]],
    ids=["books", "opacus"],
)
def test_one_record_moves_a_sum_in_half_precision_by_no_more(layers: list[nn.Module]) -> None:
    """In bfloat16, sums of a thousand clip norms lie four clip norms apart."""
    torch.manual_seed(0)
    model = Coarse(*layers)
    x, y = 1 + 0.01 * torch.randn(RECORDS, 4), torch.zeros(RECORDS, dtype=torch.int64)
    sums = [
        clipped_gradient_sum(model, x[:count], y[:count], CLIP_NORM, chunk_size=RECORDS)
        for count in range(RECORDS - 8, RECORDS + 1)
    ]
    for one, other in itertools.pairwise(sums):
        assert float((one - other).norm()) == pytest.approx(CLIP_NORM, rel=1e-3)


def test_a_model_may_compute_in_half_precision() -> None:
    torch.manual_seed(0)
    model, x, y = Quick(), torch.randn(9, 4), torch.randint(3, (9,))
    found = clipped_gradient_sum(model, x, y, 0.1)
    expected = loop_sum(copy.deepcopy(model), x, y, 0.1)
    torch.testing.assert_close(found, expected, atol=0.01, rtol=0)


def test_products_are_not_rounded_for_speed_and_the_setting_comes_back() -> None:
    seen = []

    def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        seen.append(torch.get_float32_matmul_precision())
        return functional.cross_entropy(outputs, targets, reduction="none")

    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        x, y = torch.randn(3, 4), torch.zeros(3, dtype=torch.int64)
        clipped_gradient_sum(nn.Linear(4, 3), x, y, 1.0, loss=loss)
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision(before)
    assert set(seen) == {"highest"}
