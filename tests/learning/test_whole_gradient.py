"""A model whose gradients would lack a part, found layer by layer, is told so before it is used."""

from __future__ import annotations

import random

import pytest
import torch
from torch import nn
from torch.nn import functional

from coinflower.accounting.errors import UserError
from coinflower.learning import make_task
from coinflower.learning.whole_gradient import require_whole_gradient
from tests.support.clipped_models import MODELS, batch

TASK = make_task("classification", {}, outputs=3)


class PastTheLayer(nn.Module):
    """Answers with the transposed weight of its first layer, as some language models do."""

    def __init__(self, *, activation: nn.Module) -> None:
        super().__init__()
        self.first = nn.Linear(3, 3)
        self.activation = activation

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.activation(self.first(x.flatten(1)[:, :3]))
        return functional.linear(hidden, self.first.weight.t())


def check(model: nn.Module) -> None:
    inputs, targets = batch(1)
    require_whole_gradient(model, "own:net", (inputs,), targets, TASK)


@pytest.mark.parametrize("name", MODELS)
def test_gradients_that_are_found_layer_by_layer_are_whole(name):
    check(MODELS[name]())


@pytest.mark.parametrize("activation", [nn.Tanh(), nn.PReLU()], ids=["books", "opacus"])
def test_weights_that_are_used_past_their_layer_are_told(activation):
    with pytest.raises(UserError, match=r"'own:net' computes with a layer's weights outside"):
        check(PastTheLayer(activation=activation))


def test_dropout_is_no_reason():
    check(nn.Sequential(nn.Flatten(), nn.Linear(324, 9), nn.Dropout(0.5), nn.Linear(9, 3)))


def test_randomness_that_no_seed_reaches_is_no_reason():
    class Random(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x.flatten(1) * random.SystemRandom().random())

    check(Random(324, 3))
