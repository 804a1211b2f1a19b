"""Clipped sums of every built-in model: those of a loop over records and over persons."""

import pytest
import torch

from coinflower.learning import build_model, clipped_gradient_sum
from coinflower.learning.gradients.bookkeeping import bookable_layers
from coinflower.learning.models.build import MODELS
from tests.support.clipped_models import loop_sum, sample_gradients

SHAPES: dict[str, tuple[int, ...]] = {
    **{"linear": (5,), "mlp": (5,), "digits": (1, 8, 8), "paper-cnn": (1, 28, 28)},
    "tanh-cnn": (1, 28, 28),
    **{"resnet18-gn": (3, 12, 12), "gru": (9,), "transformer": (9,)},
}


def model_and_batch(name: str) -> tuple[torch.nn.Module, torch.Tensor, torch.Tensor]:
    options = {"words": 12} if name in ("gru", "transformer") else {}
    model = build_model(name, classes=3, row_shape=SHAPES[name], options=options)
    inputs = torch.rand(4, *SHAPES[name]) * 12
    if options:
        inputs = inputs.long()
    return model, inputs, torch.tensor([0, 1, 2, 1])


@pytest.mark.parametrize("name", MODELS)
def test_the_sum_of_a_built_in_model_is_that_of_a_loop_over_records(name):
    model, inputs, targets = model_and_batch(name)
    for clip_norm in (0.05, 1e6):
        expected = loop_sum(model, inputs, targets, clip_norm)
        actual = clipped_gradient_sum(model, inputs, targets, clip_norm)
        assert (actual - expected).norm() <= 1e-5 * expected.norm()


@pytest.mark.parametrize("name", MODELS)
def test_the_sum_of_a_built_in_model_over_persons_is_that_of_a_loop_over_them(name):
    model, inputs, targets = model_and_batch(name)
    rows = sample_gradients(model, inputs, targets).double()
    means = torch.stack([rows[[0, 3]].mean(0), rows[1], rows[2]])
    expected = (means * (0.05 / means.norm(dim=1)).clamp(max=1)[:, None]).sum(0)
    persons = torch.tensor([8, 3, 5, 8])
    actual = clipped_gradient_sum(model, inputs, targets, 0.05, persons=persons)
    assert (actual - expected).norm() <= 1e-5 * expected.norm()


@pytest.mark.parametrize("name", MODELS)
def test_there_are_books_for_every_built_in_model(name):
    assert bookable_layers(model_and_batch(name)[0]) is not None
