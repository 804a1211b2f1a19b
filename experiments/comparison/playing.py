"""Play what a comparison lacks, several trainings side by side, and keep each when it ends."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from pathlib import Path

from coinflower.experiments.comparison.comparisons import (
    DELTA,
    EPSILONS,
    UPDATE,
    Comparison,
)
from coinflower.experiments.comparison.lines import LINES, Cell, Level, Line, cell_of, lines_of
from coinflower.experiments.comparison.record import Accuracy, Outcome, Training, TrainingRecord
from coinflower.experiments.comparison.sources import load_source
from coinflower.experiments.simulator.request import NO_SCHEME, Request
from coinflower.experiments.simulator.simulated_run import run_request
from coinflower.experiments.studies.side_by_side import played_side_by_side
from coinflower.experiments.studies.trainings import two_test_parts
from coinflower.protocol.modes import Mode
from coinflower.protocol.planning.choices import CLIP_NORM

ANCHORS = LINES[:2]
"""What everything else is measured by, and begins its search for learning rates with."""
OVER_CLIENTS_EPSILON = 2.0
OVER_CLIENTS = tuple(
    Line(name=str(mode), mode=mode, everybody=True)
    for mode in (Mode.TRUSTED, Mode.MASKED, Mode.UNTRUSTED)
)
"""Lines over the number of clients. Everybody takes part, so who holds a record does not matter."""


def cells_of(comparison: Comparison) -> list[Cell]:
    """Return the cells of a comparison's table, those that matter most first."""
    none, *private = lines_of(comparison)
    cells = [cell_of(comparison, none, None)]
    cells += [cell_of(comparison, line, epsilon) for line in private for epsilon in EPSILONS]
    return cells


def cells_over_clients(comparison: Comparison) -> list[Cell]:
    """Return the cells of the figure over the number of clients."""
    return [
        cell_of(comparison, line, OVER_CLIENTS_EPSILON, clients=count)
        for line in OVER_CLIENTS
        for count in comparison.over_clients
    ]


def play(
    comparison: Comparison,
    record: TrainingRecord,
    folders: Mapping[str, Path],
    *,
    jobs: int,
    progress: Callable[[int, int], None] = lambda _done, _all: None,
    stopped: Callable[[], bool] = lambda: False,
) -> None:
    """Train what is missing until nothing is, or until stopped.

    Args:
        comparison: What is compared.
        record: What was trained.
        folders: Where data is, by name.
        jobs: How many trainings at a time.
        progress: Told how many of how many levels are complete.
        stopped: Asked before every training.
    """
    # Refused now, not by the first training; features are for those who train.
    load_source(dataclasses.replace(comparison, features=None), folders)
    levels = list(dict.fromkeys(each.level for each in _all_cells(comparison)))
    task = functools.partial(_train, comparison, dict(folders))

    anchors = {each.level for each in cells_of(comparison) if each.line in ANCHORS}

    def wanted() -> list[Training]:
        return _by_urgency(comparison, record, levels, anchors)

    def tell() -> None:
        found = [record.outcome(level) for level in levels]
        progress(sum(each is not None and each.complete for each in found), len(levels))

    tell()
    for training, accuracy in played_side_by_side(wanted, task, jobs=jobs, stopped=stopped):
        record.add(training, accuracy)
        tell()


def _by_urgency(
    comparison: Comparison, record: TrainingRecord, levels: list[Level], anchors: set[Level]
) -> list[Training]:
    """Return what is to be trained next, so that a table that is not complete says much.

    The anchors' learning rates are searched for first, since the others begin with theirs; then
    every level is trained once, then the other rates are searched for, then come more seeds.
    """
    found: list[tuple[int, Training]] = []
    outcomes = {level: record.outcome(level) for level in levels}
    for level, outcome in outcomes.items():
        urgency = 1 if outcome is None else 3 if outcome.inside else 2
        if level in anchors and urgency < 3:
            urgency = 0
        first = _first_rate(comparison, outcomes, level)
        found += [(urgency, each) for each in record.wanted(level, first)]
    return [each for _, each in sorted(found, key=lambda pair: pair[0])]


def _all_cells(comparison: Comparison) -> list[Cell]:
    return [*cells_of(comparison), *cells_over_clients(comparison)]


def _first_rate(
    comparison: Comparison, outcomes: Mapping[Level, Outcome | None], level: Level
) -> float:
    """Return the best rate of the level with the nearest noise that was tuned, to begin with."""
    if level.noise == 0:
        return comparison.rate
    done = {
        abs(math.log(other.noise / level.noise)): found.rates[0]
        for other, found in outcomes.items()
        if (other.rounds == level.rounds and other.noise > 0)
        and (found is not None and found.inside)
    }
    return done[min(done)] if done else comparison.rate


def _train(comparison: Comparison, folders: Mapping[str, Path], training: Training) -> Accuracy:
    """Play one training."""
    data = load_source(comparison, folders)
    first, second = two_test_parts(data, len(data.test))
    results = run_request(request_of(comparison, training), data=first, tuning=second)
    return Accuracy(first_half=results["accuracy"], second_half=results["tuning_accuracy"])


def request_of(comparison: Comparison, training: Training) -> Request:
    """Return a training as the simulator plays it: its noise is added once, whoever's it is."""
    level = training.level
    private = level.noise > 0
    return Request(
        scenario="many-small",
        data=comparison.source,
        iterations=level.rounds,
        scheme=None if private else NO_SCHEME,
        delta=DELTA,
        sigma=level.noise if private else None,
        partition=comparison.partition,
        unit=comparison.unit,
        clients=comparison.clients if comparison.partition == "equal" else None,
        d=comparison.d if comparison.partition == "equal" else None,
        p=level.p,
        q=level.q,
        cap=level.cap,
        clip_norm=CLIP_NORM,
        update=dataclasses.replace(UPDATE, learning_rate=training.rate),
        model=comparison.model,
        model_options=comparison.model_options,
        evaluate_every=level.rounds,
        seed=training.seed,
        threads=1,  # trainings are played side by side
    )
