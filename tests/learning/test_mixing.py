"""Models whose own code mixes records are told so before they are used."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable

import numpy as np
import pytest
import torch
from opacus.layers import DPLSTM, DPMultiheadAttention
from torch import nn
from torch.nn import functional

from coinflower.accounting.errors import UserError
from coinflower.learning import Records, build_model, flatten_parameters, make_task, try_out
from coinflower.learning.mixing import refuse_mixing_model
from tests.support.clipped_models import IMAGE, MODELS

TASK = make_task("classification", {}, outputs=3)
MIXES = "mixes the records of a batch: its answer to one changes with the others"
KEEPS = "answers the same records differently the second time"
CONFUSES = "lets no gradient be told from those of other records"


class Hidden(nn.Module):
    """Two layers and, around or between them, some code of the user's own.

    Args:
        before: Is done to rows of 6 numbers.
        between: Is done to what is between the layers, rows of 8.
    """

    def __init__(
        self,
        before: Callable[[torch.Tensor], torch.Tensor] = lambda x: x,
        between: Callable[[torch.Tensor], torch.Tensor] = torch.tanh,
    ) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 3)
        self.before, self.between = before, between

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        answer: torch.Tensor = self.last(self.between(self.first(self.before(x))))
        return answer


class InOrderOfSize(Hidden):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.first(x)
        order = hidden[:, 0].argsort()
        answer: torch.Tensor = self.last(hidden[order].tanh())[order.argsort()]
        return answer


class TurnedAround(Hidden):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        answer: torch.Tensor = self.last(self.first(x.flip(0)).tanh().flip(0))
        return answer


class RunningMean(Hidden):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.mean = 0.99 * self.mean + 0.01 * x.detach().mean(0)
        return super().forward(x - self.mean)


class Remembers(Hidden):
    memory: torch.Tensor | float = 0.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shifted = x + self.memory
        self.memory = x[-1].detach()
        return super().forward(shifted)


class MixesUp(Hidden):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            x = 0.7 * x + 0.3 * x[torch.randperm(len(x))]
        return super().forward(functional.dropout(x, 0.1, self.training))


class BeginsAtZero(Hidden):
    def __init__(self) -> None:
        super().__init__()
        self.beside = nn.Linear(6, 3)
        nn.init.zeros_(self.beside.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        answer: torch.Tensor = super().forward(x) + self.beside(x - x.mean(0))
        return answer


class TimeFirst(nn.Module):
    """Forgets that torch's layers for sequences take the time first."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer, self.last = layer, nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = x.view(-1, 3, 2)
        several = isinstance(self.layer, nn.MultiheadAttention | DPMultiheadAttention)
        found = self.layer(rows, rows, rows) if several else self.layer(rows)
        answer: torch.Tensor = self.last(functional.pad(found[0].flatten(1), (0, 8))[:, :8])
        return answer


class PastTheLayer(Hidden):
    def __init__(self) -> None:
        super().__init__()
        self.beside = nn.Linear(6, 3, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) + functional.linear(x, self.beside.weight)


def scrambled(x: torch.Tensor) -> torch.Tensor:
    return x.view(len(x), 2, 3).permute(1, 0, 2).reshape(len(x), 6)


def without_training(layer: nn.Module) -> nn.Module:
    return layer.requires_grad_(False)


MIXERS: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "centred": (lambda: Hidden(lambda x: x - x.mean(0)), MIXES),
    "scaled by the largest": (lambda: Hidden(lambda x: x / x.abs().max()), MIXES),
    "softmax over the batch": (lambda: Hidden(lambda x: x.softmax(0)), MIXES),
    "summed up": (lambda: Hidden(lambda x: x.cumsum(0)), MIXES),
    "scrambled": (lambda: Hidden(scrambled), MIXES),
    "by the size of the batch": (lambda: Hidden(lambda x: x * len(x)), MIXES),
    "batch norm as a function": (
        lambda: Hidden(between=lambda x: functional.batch_norm(x, None, None, training=len(x) > 1)),
        MIXES,
    ),
    "mixup": (MixesUp, MIXES),
    "behind weights that begin at zero": (BeginsAtZero, MIXES),
    "attention": (lambda: TimeFirst(without_training(nn.MultiheadAttention(2, 1))), MIXES),
    "recurrent": (lambda: TimeFirst(without_training(nn.LSTM(2, 2))), MIXES),
    "running mean": (RunningMean, KEEPS),
    "memory": (Remembers, KEEPS),
    "no seed": (lambda: Hidden(lambda x: x * random.SystemRandom().random()), KEEPS),
    "sorted": (InOrderOfSize, CONFUSES),
    "turned around": (TurnedAround, CONFUSES),
    "past the layer": (PastTheLayer, "computes with a layer's weights outside of that layer"),
}
KEEPERS: dict[str, Callable[[], nn.Module]] = {
    "plain": Hidden,
    "one by one": lambda: Hidden(lambda x: x - x.mean(1, keepdim=True)),
    "noisy": lambda: Hidden(lambda x: x + torch.randn_like(x)),
    "noise of Python": lambda: Hidden(lambda x: x + random.random()),
    "noise of numpy": lambda: Hidden(lambda x: x + np.random.rand()),
    "dropout": lambda: nn.Sequential(nn.Linear(6, 9), nn.Dropout(), nn.Linear(9, 3)),
    "dropout as a function": lambda: Hidden(between=functools.partial(functional.dropout, p=0.3)),
    "not a number": lambda: Hidden(lambda x: (x - 2).log()),
}


def check(model: nn.Module, row: tuple[int, ...] = (6,)) -> None:
    blank, target = torch.zeros(1, *row), torch.zeros(1, dtype=torch.int64)
    refuse_mixing_model(model, "own:net", (blank,), target, TASK)


@pytest.mark.parametrize("name", MIXERS)
def test_a_model_that_mixes_records_is_refused(name: str) -> None:
    make, said = MIXERS[name]
    torch.manual_seed(0)
    with pytest.raises(UserError, match=f"model 'own:net' {said}"):
        check(make())


@pytest.mark.parametrize("name", KEEPERS)
def test_a_model_that_keeps_records_apart_is_taken(name: str) -> None:
    check(KEEPERS[name]())


@pytest.mark.parametrize("name", MODELS)
def test_models_of_all_kinds_of_layers_are_taken(name: str) -> None:
    check(MODELS[name](), IMAGE)


@pytest.mark.parametrize(
    "layer", [DPLSTM(2, 2), DPMultiheadAttention(2, 1)], ids=["lstm", "attention"]
)
def test_layers_of_opacus_that_take_the_time_first_are_refused(layer: nn.Module) -> None:
    with pytest.raises(UserError, match=r"mixes the records|gradients? for \d records"):
        check(TimeFirst(layer))


@pytest.mark.parametrize(
    "name", ["linear", "mlp", "gru", "transformer", "digits", "paper-cnn", "tanh-cnn"]
)
def test_built_in_models_keep_records_apart(name: str) -> None:
    row = {"digits": (1, 8, 8), "paper-cnn": (1, 28, 28), "tanh-cnn": (1, 28, 28)}.get(name, (5, 4))
    check(build_model(name, classes=3, row_shape=row), row)


@pytest.mark.parametrize("name", ["gru", "transformer"])
def test_words_are_tried_too(name: str) -> None:
    model = build_model(name, classes=3, row_shape=(5,), options={"words": 9})
    blank = (torch.zeros(1, 5, dtype=torch.int64),)
    target = torch.zeros(1, dtype=torch.int64)
    refuse_mixing_model(model, "own:net", blank, target, TASK)
    mixing = nn.Sequential(model, nn.Softmax(0))
    with pytest.raises(UserError, match=MIXES):
        refuse_mixing_model(mixing, "own:net", blank, target, TASK)


def test_a_trial_leaves_weights_and_random_numbers_as_they_were() -> None:
    model = MixesUp()
    before = flatten_parameters(model)
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1]
    with pytest.raises(UserError):
        check(model)
    assert torch.equal(flatten_parameters(model), before)
    assert torch.equal(torch.get_rng_state(), states[0])
    assert random.getstate() == states[1]
    assert np.array_equal(np.random.get_state()[1], states[2])
    assert all(module.training for module in model.modules())


def test_own_models_are_tried_before_they_are_used() -> None:
    records = Records(inputs=np.zeros((2, 6), np.float32), targets=np.zeros(2, np.int64))
    with pytest.raises(UserError, match=MIXES):
        try_out(Hidden(lambda x: x - x.mean(0)), "own:net", records, TASK)
