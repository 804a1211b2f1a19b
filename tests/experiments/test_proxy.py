"""Tuning a plan on public data: what is tried, with which noise, and what is kept."""

import dataclasses
import math

import pytest

from coinflower.experiments.studies import proxy
from coinflower.experiments.studies.proxy import tune
from coinflower.learning import load_data, with_test_part
from coinflower.protocol.modes import PRIVATE_MODES, Mode
from coinflower.protocol.planning.planner import Wishes, choices

WISHES = Wishes(
    clients=50, d=60, rounds=3, epsilon=4.0, delta=1e-5, model="digits", parameters=2410
)


@pytest.fixture(scope="module")
def digits():
    return with_test_part(load_data("digits"))


@pytest.fixture
def asked(monkeypatch):
    """Requests instead of trainings; the learning rate 0.7 learns best."""
    requests = []

    def play(request, *, data, progress):
        requests.append(request)
        progress(type("Curve", (), {"iterations": request.iterations}))
        return {"accuracy": 1 / (1 + abs(math.log(request.update.learning_rate / 0.7)))}

    monkeypatch.setattr(proxy, "run_request", play)
    return requests


@pytest.mark.parametrize("mode", PRIVATE_MODES)
def test_the_noise_on_the_mean_gradient_is_the_plans(digits, asked, mode):
    wishes = dataclasses.replace(WISHES, mode=mode)
    (choice, *_) = choices(wishes, 500.0)
    tune(wishes, [choice], digits)
    for request in asked:
        batch = request.p * request.q * request.clients * request.d
        assert request.sigma / batch == pytest.approx(choice.noise_share)
        assert request.clients < wishes.clients
        assert (request.d, request.iterations, request.noise) == (60, 3, Mode.TRUSTED)


def test_learning_rates_are_tried_until_the_best_lies_inside(digits, asked):
    (choice, *_) = choices(WISHES, 500.0)
    grid = tune(WISHES, [choice], digits)
    rates = [each.learning_rate for each in grid]
    assert min(rates) < rates[0] < max(rates)
    accuracies = [each.accuracy for each in grid]
    assert accuracies == sorted(accuracies, reverse=True)
    assert len(asked) == len(grid) == len(set(rates))


def test_progress_ends_with_everything_done(digits, asked):
    told = []
    found = choices(WISHES, 500.0)[:2]
    tune(WISHES, found, digits, progress=lambda *pair: told.append(pair))
    done, every = told[-1]
    assert done == every == len(asked) * WISHES.rounds
    assert [pair[0] for pair in told] == sorted(pair[0] for pair in told)


def test_a_proxy_smaller_than_one_client_is_one_client(digits, asked):
    wishes = dataclasses.replace(WISHES, d=5000)
    tune(wishes, choices(wishes, 500.0)[:1], digits)
    assert {(request.clients, request.d) for request in asked} == {(1, len(digits.train))}


def test_a_proxy_is_really_trained_on(digits):
    (choice, *_) = choices(dataclasses.replace(WISHES, epsilon=50.0), 2000.0)
    grid = tune(dataclasses.replace(WISHES, rounds=6), [choice], digits, seed=1)
    assert grid[0].accuracy > 0.3
    assert all(0 <= each.accuracy <= grid[0].accuracy for each in grid)
