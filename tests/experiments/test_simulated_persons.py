"""Simulations that protect persons: sampled whole, clipped once, counted, and priced as such."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from coinflower.accounting.analyses.certified import Certified
from coinflower.accounting.composition.compose import epsilon_after
from coinflower.accounting.mechanism import Round
from coinflower.experiments.simulator.request import Request
from coinflower.experiments.simulator.scenarios import SETTINGS, federate
from coinflower.experiments.simulator.simulated_run import run_request
from coinflower.experiments.simulator.simulator import Scenario, Simulator
from coinflower.learning import (
    Dataset,
    SeededRandom,
    Update,
    build_model,
    capped_sum,
    clipped_gradient_sum,
    load_data,
    load_parameters,
)
from coinflower.protocol.modes import Mode
from coinflower.protocol.unit import Unit

WRITERS = 300
SETTING = replace(SETTINGS["many-small"], d=20)
SMALL = Request(
    scenario="many-small", data="digits", model="digits", iterations=2, unit=Unit.PERSON
)


@pytest.fixture(scope="module")
def digits() -> Dataset:
    """Digits by 300 writers, who wrote between one and some twenty each."""
    data = load_data("digits")
    rng = np.random.default_rng(1)
    weights = rng.exponential(size=WRITERS)
    writers = rng.choice(WRITERS, len(data.train), p=weights / weights.sum())
    writers[:WRITERS] = np.arange(WRITERS)
    return replace(data, train=replace(data.train, persons=writers))


def simulator(data: Dataset, *, threads: int = 1, **changes: Any) -> Simulator:
    people = federate(SETTING, data, p=0.5, q=0.5, unit=Unit.PERSON)
    fields: dict[str, Any] = {
        "p": 0.5,
        "q": 0.5,
        "clip_norm": 0.3,
        "noise_multiplier": 0.0,
        "noise": Mode.NONE,
        "update": Update(learning_rate=1.0),
    }
    return Simulator(
        Scenario(sizes=people.sizes, **{**fields, **changes}),
        data.train,
        build_model("digits", classes=10),
        np.random.default_rng(3),
        SeededRandom(3),
        rows=people.rows,
        rows_per_person=people.rows_per_person,
        threads=threads,
    )


def test_clients_hold_whole_persons(digits: Dataset) -> None:
    assert digits.train.persons is not None
    sizes = np.bincount(digits.train.persons)
    for how in ("equal", "dirichlet"):
        people = federate(SETTING, digits, how=how, unit=Unit.PERSON)
        assert people.sizes.sum() == WRITERS
        assert len(people.sizes) == WRITERS // 20
        assert people.rows_per_person is not None
        writers = digits.train.persons[people.rows]
        firsts = writers[np.cumsum(people.rows_per_person) - people.rows_per_person]
        np.testing.assert_array_equal(np.repeat(firsts, people.rows_per_person), writers)
        np.testing.assert_array_equal(sizes[firsts], people.rows_per_person)
        assert len(set(firsts)) == WRITERS


def test_data_that_makes_too_few_clients_is_counted_in_persons(digits: Dataset) -> None:
    with pytest.raises(ValueError, match="16 clients of 20 persons each need 320 persons, but"):
        federate(SETTING, digits, clients=16, unit=Unit.PERSON)
    with pytest.raises(ValueError, match="digits does not say whose its rows are"):
        federate(SETTING, load_data("digits"), unit=Unit.PERSON)


@pytest.mark.parametrize("cap", [1.5, math.inf])
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("shape", [{}, {"p": 1.0, "q": 1.0}, {"q": 1e-9}])
def test_a_step_is_that_of_real_clients(
    digits: Dataset, cap: float, threads: int, shape: dict[str, float]
) -> None:
    run = simulator(digits, cap=cap, threads=threads, **shape)
    people = federate(SETTING, digits, p=0.5, q=0.5, unit=Unit.PERSON)
    persons = np.repeat(np.arange(WRITERS), people.rows_per_person)
    model = build_model("digits", classes=10)
    for _ in range(3):
        before = run.optimizer.weights
        load_parameters(model, before)
        draw = run.step()
        expected = np.zeros_like(before)
        for owner in set(draw.owners.tolist()):
            total = np.zeros_like(before)
            for person in draw.sampled[draw.owners == owner]:
                rows = people.rows[persons == person]
                inputs, targets = digits.train.batch(rows)
                mean = clipped_gradient_sum(model, inputs, targets, math.inf).numpy() / len(rows)
                total += mean * min(1, 0.3 / np.linalg.norm(mean))
            expected += capped_sum(total, 0.3 * cap)
        scale = run._scenario.p * run._scenario.q * WRITERS
        np.testing.assert_allclose(
            (before - run.optimizer.weights) * scale, expected, rtol=1e-4, atol=2e-5
        )


def test_persons_are_sampled_at_the_rate_and_no_other(digits: Dataset) -> None:
    # Fails falsely less than once in 10⁶ runs.
    run = simulator(digits)
    draws = [run.draw() for _ in range(600)]
    sampled = sum(len(draw.sampled) for draw in draws)
    possible = sum(draw.participants for draw in draws) * 20
    assert stats.binomtest(sampled, possible, 0.5).pvalue > 1e-6
    assert stats.binomtest(sampled, possible, 0.47).pvalue < 1e-6
    assert stats.binomtest(sampled, possible, 0.53).pvalue < 1e-6


def test_the_price_counts_persons(digits: Dataset) -> None:
    results = run_request(replace(SMALL, partition="dirichlet", clients=10), data=digits)
    assert results["unit"] == "person"
    assert results["d"] < 300
    round_ = Round(
        p=results["p"], q=results["q"], d=results["d"], noise_multiplier=results["sigma"]
    )
    assert results["epsilon"] == epsilon_after([(Certified(round_), 2)], results["delta"])
    by_record = run_request(
        replace(SMALL, unit=Unit.RECORD, partition="dirichlet", clients=10), data=digits
    )
    assert by_record["unit"] == "record"
    assert by_record["d"] > results["d"]


@pytest.mark.parametrize(
    ("began", "asked", "sentence"),
    [
        (Unit.PERSON, Unit.RECORD, "began with unit = person, but no unit is asked for"),
        (Unit.RECORD, Unit.PERSON, "began with no unit, but unit = person is asked for"),
    ],
)
def test_a_simulation_goes_on_with_its_unit_alone(
    digits: Dataset, tmp_path: Path, began: Unit, asked: Unit, sentence: str
) -> None:
    request = replace(SMALL, unit=began, partition="writer", out=tmp_path, p=0.5, q=1.0)
    first = run_request(request, data=digits)
    with pytest.raises(ValueError, match=sentence):
        run_request(replace(request, unit=asked, resume=True, iterations=3), data=digits)
    again = run_request(replace(request, resume=True, iterations=3), data=digits)
    assert (again["iterations"], again["unit"], again["d"]) == (3, began, first["d"])
