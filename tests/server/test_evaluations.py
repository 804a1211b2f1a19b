"""Evaluations between rounds: what the server asks for, what it makes of it, and what it costs."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord

from coinflower.learning import SecureRandom, build_model, load_parameters, make_task
from coinflower.protocol import messages
from coinflower.protocol.modes import PRIVATE_MODES, Mode
from coinflower.server.checkpoint import CheckpointFolder
from coinflower.server.clients.attendance import Attendance
from coinflower.server.evaluations import Evaluations, EvaluationSettings
from coinflower.server.grid import PromptGrid
from coinflower.server.strategy import RandomParticipation
from tests.support.memory_grid import kind_of

Make = Callable[..., Any]
TASK = make_task("classification", {}, outputs=10)
WILLING = {"queries": ["evaluation"]}
EVERY = EvaluationSettings(every=2, noise_multiplier=1.5)


class NoNoise(SecureRandom):
    """For the server: its noise is 0."""

    def normal(self, size: int, std: float) -> Any:
        del std
        return np.zeros(size)


def evaluated(fed: Any, settings: EvaluationSettings = EVERY, **options: Any) -> list[Any]:
    """Run to the end and return what came of the evaluations, by round, and the models."""
    terms = settings.terms(fed.terms, TASK)
    found: list[Any] = []
    randomness = options.pop("randomness", SecureRandom())
    expected = options.pop("expected_clients", len(fed.nodes))
    evaluations = Evaluations(
        settings,
        fed.terms,
        TASK,
        checkpoints=CheckpointFolder(fed.state / "evaluation", terms.hash),
        randomness=randomness,
        expected_clients=expected,
    )
    strategy = RandomParticipation(
        fed.terms,
        checkpoints=fed.checkpoints(),
        randomness=SecureRandom(),
        attendance=Attendance(expected_clients=len(fed.nodes), patience_seconds=3.0),
        evaluations=evaluations,
        update=fed.update,
        on_round=lambda report, weights: found.append((report, weights)),
        **options,
    )
    strategy.start(
        PromptGrid(fed.grid, poll_interval=0.002),
        ArrayRecord({messages.VECTOR: Array(fed.initial())}),
        num_rounds=fed.terms.rounds,
        timeout=5.0,
    )
    return found


def charged(fed: Any, node: int) -> dict[str, list[int]]:
    """The rounds that a client was charged for, by whether they are evaluations."""
    kinds: dict[str, list[int]] = {"training": [], "evaluation": []}
    for entry in fed.entries(node, "charge"):
        name = entry.experiment.partition("#")[0]
        kinds["evaluation" if name.endswith("-evaluation") else "training"].append(entry.round)
    return kinds


@pytest.mark.parametrize("mode", PRIVATE_MODES)
def test_every_few_rounds_the_model_is_measured_and_that_is_charged(
    federation: Make, mode: Mode
) -> None:
    fed = federation(mode, policy=dict.fromkeys(range(3), WILLING), rounds=5)
    found = evaluated(fed)
    measured = [report.round for report, _ in found if report.private_metrics is not None]
    assert measured == [2, 4, 5]
    for node in fed.nodes:
        assert charged(fed, node) == {"training": [1, 2, 3, 4, 5], "evaluation": [1, 2, 3]}


def test_what_comes_out_is_the_accuracy_of_the_model_of_that_round(federation: Make) -> None:
    changes = {"p": 1.0, "q": 1.0, "rounds": 3}
    fed = federation(Mode.LOCAL_ONLY, policy=dict.fromkeys(range(3), WILLING), **changes)
    for report, weights in evaluated(fed, randomness=NoNoise()):
        if report.private_metrics is None:
            continue
        model = build_model("digits", classes=10)
        load_parameters(model, weights)
        right = []
        for node in fed.nodes:
            inputs, targets = fed.data(node).batch(slice(None))
            with torch.no_grad():
                right.append((model(*inputs).argmax(1) == targets).float())
        exact = float(torch.cat(right).mean())
        assert report.private_metrics["accuracy"]["value"] == pytest.approx(exact, abs=1e-5)


def test_the_stated_error_counts_the_noise_of_every_client_that_adds_some(
    federation: Make,
) -> None:
    """Three clients of one size: in mode untrusted the noise of all of them is in the sum."""
    policy = dict.fromkeys(range(3), WILLING)
    settings = EvaluationSettings(every=6, noise_multiplier=1.5, q=1.0, p=1.0)
    errors = {}
    for mode in (Mode.LOCAL_ONLY, Mode.UNTRUSTED):
        fed = federation(mode, policy=policy, sizes=(300, 300, 300))
        figure = evaluated(fed, settings)[-1][0].private_metrics["accuracy"]
        sample = math.sqrt(figure["value"] * (1 - figure["value"]) / 900)
        errors[mode] = math.sqrt(figure["standard_error"] ** 2 - sample**2)
        fed.grid.owners.close()
        for path in fed.folder.glob("*.db"):
            path.unlink()
        (fed.state / "checkpoint.safetensors").unlink()
        (fed.state / "used-rounds.json").unlink()
        (fed.state / "evaluation" / "used-rounds.json").unlink()
    assert errors[Mode.UNTRUSTED] / errors[Mode.LOCAL_ONLY] == pytest.approx(math.sqrt(3), rel=0.2)


def test_who_refuses_evaluations_trains_all_the_same(federation: Make) -> None:
    fed = federation(Mode.UNTRUSTED, policy={0: WILLING, 1: WILLING}, rounds=4)
    found = evaluated(fed)
    assert [report.available for report, _ in found] == [3] * 4
    assert found[-1][0].private_metrics is not None
    assert charged(fed, fed.nodes[2])["evaluation"] == []
    assert charged(fed, fed.nodes[2])["training"] == [1, 2, 3, 4]


def test_if_all_refuse_the_training_goes_on_unmeasured(federation: Make) -> None:
    fed = federation(Mode.UNTRUSTED, rounds=4)
    found = evaluated(fed)
    assert [report.private_metrics for report, _ in found] == [None] * 4
    assert [report.answered for report, _ in found] == [3] * 4


def test_a_resumed_run_uses_no_evaluation_twice(federation: Make) -> None:
    fed = federation(Mode.UNTRUSTED, policy=dict.fromkeys(range(3), WILLING), rounds=4)

    asked = []

    def stop(message: Any) -> None:
        if kind_of(message) == "gradient":
            asked.append(message)
            if len(asked) == 8:  # after two rounds of three and two of the three of an evaluation
                raise InterruptedError

    fed.grid.before_push = stop
    with pytest.raises(InterruptedError):
        evaluated(fed)
    fed.grid.before_push = lambda _: None
    found = evaluated(fed)
    assert [report.round for report, _ in found] == [3, 4]
    for node in fed.nodes:
        rounds = charged(fed, node)["evaluation"]
        assert len(rounds) == len(set(rounds))
        assert set(rounds) <= {1, 2}
        assert 2 in rounds


def test_on_a_clock_an_evaluation_takes_a_slot_of_its_own(federation: Make, clock: Any) -> None:
    fed = federation(Mode.COVERED, policy=dict.fromkeys(range(3), WILLING), rounds=4)
    begun = []

    def note(message: Any) -> None:
        if kind_of(message) == "gradient":
            begun.append(round(clock.monotonic(), 3))

    fed.grid.before_push = note
    evaluated(fed, round_seconds=2.0)
    ticks = sorted(set(begun))
    assert len(ticks) == 4 + 2
    assert np.diff(ticks) == pytest.approx(2.0, abs=0.2)


def test_terms_of_evaluations_fit_every_mode_and_long_names(federation: Make) -> None:
    fed = federation(Mode.MASKED, experiment="x" * 64)
    terms = EVERY.terms(fed.terms, TASK)
    assert terms.experiment == "x" * 53 + "-evaluation"
    assert (terms.rounds, terms.rounds_per_invitation, terms.ring_bits) == (3, 1, 64)
    assert terms.hash != fed.terms.hash
