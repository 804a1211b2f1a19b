import numpy as np
import pytest
import torch
from torch import nn

from coinflower.learning import (
    build_model,
    evaluate,
    flatten_parameters,
    load_parameters,
    mean_gradient,
)


def test_the_mean_gradient_divides_by_the_expected_batch():
    mean = mean_gradient(np.array([8, -4], dtype=np.float32), p=0.5, q=0.1, declared_total=80)
    assert mean.dtype == np.float32
    np.testing.assert_allclose(mean, [2, -1], rtol=1e-6)


@pytest.mark.parametrize(("p", "q", "total"), [(0, 1, 1), (1, 0, 1), (1, 1, 0)])
def test_an_expected_batch_of_nothing_is_refused(p, q, total):
    with pytest.raises(ValueError, match="must have only positive factors"):
        mean_gradient(np.zeros(2, np.float32), p=p, q=q, declared_total=total)


def brightest_corner() -> nn.Module:
    model = build_model("digits", classes=10)
    load_parameters(model, torch.zeros_like(flatten_parameters(model)))
    return model


@pytest.mark.parametrize("batch", [1, 3, 100])
def test_accuracy_is_the_share_of_right_answers(batch):
    images = np.zeros((5, 8, 8), dtype=np.uint8)
    targets = np.array([0, 0, 0, 1, 2])
    assert evaluate(brightest_corner(), images, targets, batch=batch) == 0.6


def test_tensors_and_arrays_evaluate_alike():
    model = build_model("digits", classes=10)
    images = np.arange(64 * 20, dtype=np.uint8).reshape(20, 8, 8)
    targets = np.arange(20) % 10
    tensors = torch.from_numpy(images).float().div(255).unsqueeze(1)
    assert evaluate(model, images, targets) == evaluate(model, tensors, torch.from_numpy(targets))


def test_evaluation_runs_without_dropout_and_restores_the_mode():
    model = nn.Sequential(nn.Flatten(), nn.Dropout(0.999), nn.Linear(64, 2)).train()
    with torch.no_grad():
        model[2].weight.copy_(torch.stack([torch.ones(64), -torch.ones(64)]))
        model[2].bias.copy_(torch.tensor([0.0, 1.0]))
    model[2].eval()
    assert evaluate(model, np.full((50, 8, 8), 255, np.uint8), np.zeros(50, np.int64)) == 1.0
    assert model.training
    assert model[1].training
    assert not model[2].training


def test_nothing_to_evaluate_is_refused():
    with pytest.raises(ValueError, match="0 inputs"):
        evaluate(nn.Flatten(), np.zeros((0, 8, 8), np.uint8), np.zeros(0, np.int64))


@pytest.mark.parametrize(("width", "most"), [(8, 1000), (1 << 20, 2)])
def test_as_many_records_are_evaluated_at_a_time_as_little_memory_allows(width, most):
    seen = []

    class Noting(nn.Module):
        def forward(self, rows):
            seen.append(len(rows))
            return rows.expand(-1, width).relu()[:, :2]

    images = np.zeros((1300 if width < 1000 else 7, 1), np.float32)
    assert evaluate(Noting(), images, np.zeros(len(images), np.int64)) == 1.0
    assert max(seen) == most
    assert sum(seen) == 1 + len(images)  # one to see how much memory it takes
