import itertools

import numpy as np
import pytest
import torch
from torch import nn

from coinflower.learning.optimizer import Optimizer, Update, usual_for

UPDATES = [
    Update(),
    Update(momentum=0.9),
    Update(momentum=0.9, nesterov=True, weight_decay=0.01),
    Update(momentum=0.5, averaging=0.9),
    Update(optimizer="adam"),
    Update(optimizer="adam", momentum=0.5, weight_decay=0.1, averaging=0.5),
    Update(optimizer="adamw", weight_decay=0.1, schedule="cosine", warm_up_rounds=2),
]
names = pytest.mark.parametrize("update", UPDATES, ids=Update.describe)
ROUNDS = 12


def gradients(count: int = ROUNDS) -> list[np.ndarray]:
    return list(np.random.default_rng(7).normal(size=(count, 5)).astype(np.float32))


def start() -> np.ndarray:
    return np.linspace(-1, 1, 5).astype(np.float32)


@names
def test_steps_are_those_of_torch_with_the_schedules_rate(update):
    made = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
    parameter = nn.Parameter(torch.from_numpy(start()))
    options = {"weight_decay": update.weight_decay}
    if update.optimizer == "sgd":
        options |= {"momentum": update.momentum or 0, "nesterov": update.nesterov}
    elif update.momentum is not None:
        options |= {"betas": (update.momentum, 0.999)}
    oracle = made[update.optimizer]([parameter], lr=1.0, **options)
    optimizer = Optimizer(update, start(), rounds=ROUNDS)
    for round_, gradient in enumerate(gradients(), 1):
        oracle.param_groups[0]["lr"] = update.rate(round_, ROUNDS)
        parameter.grad = torch.from_numpy(gradient)
        oracle.step()
        optimizer.step(gradient, round_)
    np.testing.assert_array_equal(optimizer.weights, parameter.detach().numpy())


@names
@pytest.mark.parametrize("pause", [0, 1, 5])
def test_a_resumed_run_is_the_run_that_was_never_interrupted(update, pause):
    whole = Optimizer(update, start(), rounds=ROUNDS)
    part = Optimizer(update, start(), rounds=ROUNDS)
    for round_, gradient in enumerate(gradients(), 1):
        whole.step(gradient, round_)
        if round_ <= pause:
            part.step(gradient, round_)
    kept = {name: value.copy() for name, value in part.memory.items()}
    resumed = Optimizer(update, part.weights, rounds=ROUNDS, memory=kept)
    for round_, gradient in list(enumerate(gradients(), 1))[pause:]:
        resumed.step(gradient, round_)
    np.testing.assert_array_equal(resumed.weights, whole.weights)
    np.testing.assert_array_equal(resumed.kept, whole.kept)


@names
def test_what_was_handed_out_stays_as_it_was(update):
    optimizer = Optimizer(update, begin := start(), rounds=ROUNDS)
    first = optimizer.weights
    optimizer.step(gradients()[0], 1)
    assert begin.tolist() == first.tolist() == start().tolist()
    assert optimizer.weights.tolist() != start().tolist()
    assert optimizer.weights.dtype == optimizer.kept.dtype == np.float32


def test_the_memory_of_another_update_or_model_is_refused():
    adam = Optimizer(Update(optimizer="adam"), start(), rounds=ROUNDS)
    adam.step(gradients()[0], 1)
    with pytest.raises(ValueError, match=r"not one of sgd, learning rate 2, momentum 0\.9"):
        Optimizer(Update(momentum=0.9), start(), rounds=ROUNDS, memory=adam.memory)
    with pytest.raises(ValueError, match="resume with the update"):
        Optimizer(
            Update(optimizer="adam"), np.zeros(4, np.float32), rounds=ROUNDS, memory=adam.memory
        )


def test_the_step_size_warms_up_and_falls():
    update = Update(learning_rate=1.0, schedule="cosine", warm_up_rounds=3)
    rates = [update.rate(round_, 10) for round_ in range(1, 11)]
    assert rates[:4] == [0.25, 0.5, 0.75, 1.0]
    assert all(later < earlier for earlier, later in itertools.pairwise(rates[3:]))
    assert 0 < rates[-1] < 0.1
    assert {Update(learning_rate=0.5).rate(round_, 10) for round_ in range(1, 11)} == {0.5}


def test_numbers_are_learned_with_smaller_steps_unless_somebody_chose():
    assert usual_for(Update(), numbers=True).step_size < Update().step_size
    assert usual_for(Update(), numbers=False) == Update()
    for chosen in (Update(learning_rate=2.0), Update(optimizer="adam")):
        assert usual_for(chosen, numbers=True) == chosen


def test_averaged_weights_are_nearer_to_a_noisy_optimum_than_the_last_ones():
    optimizer = Optimizer(Update(learning_rate=0.5, averaging=0.98), start(), rounds=400)
    generator = np.random.default_rng(3)
    for round_ in range(1, 401):
        noise = generator.normal(size=5).astype(np.float32)
        optimizer.step(optimizer.weights + noise, round_)
    assert np.linalg.norm(optimizer.kept) < np.linalg.norm(optimizer.weights) / 2


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"optimizer": "lamb"}, "optimizer = 'lamb'"),
        ({"learning_rate": 0.0}, "learning_rate = 0.0 must be above 0"),
        ({"momentum": 1.0}, "momentum = 1.0 must be below 1"),
        ({"nesterov": True}, "nesterov = true needs"),
        ({"optimizer": "adam", "momentum": 0.9, "nesterov": True}, "nesterov = true needs"),
        ({"weight_decay": -1.0}, "weight_decay = -1.0 must be at least 0"),
        ({"averaging": 1.0}, "averaging = 1.0 must be below 1"),
        ({"schedule": "linear"}, "schedule = 'linear'"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_sentence(fields, why):
    with pytest.raises(ValueError, match=why):
        Update(**fields)
