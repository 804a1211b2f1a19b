"""What the cases of a study came to, read from its CSV files."""

from __future__ import annotations

import csv
import math
from pathlib import Path

from coinflower.experiments.studies.studies import Case
from coinflower.experiments.studies.tables import CURVES, RATES, RESULTS
from coinflower.experiments.studies.trainings import Outcome


def read_outcomes(folder: Path) -> list[Outcome]:
    """Return what the cases of a study came to, from its CSV files.

    They hold mean and standard deviation, not each seed: the accuracies returned have the same.
    """
    curves, rates = _read_csv(folder / CURVES), _read_csv(folder / RATES)
    return [_outcome(row, curves, rates) for row in _read_csv(folder / RESULTS)]


Row = dict[str, str]


def _outcome(row: Row, curves: list[Row], rates: list[Row]) -> Outcome:
    def own(rows: list[Row]) -> list[Row]:
        key = ("scheme", "noise", "budget_epsilon", "clients", "cap")
        return [each for each in rows if all(each[name] == row[name] for name in key)]

    seeds, clients = int(row["seeds"]), int(row["clients"])
    return Outcome(
        case=Case(
            scheme=row["scheme"],
            epsilon=_maybe(row["budget_epsilon"]),
            cap=float(row["cap"]),
        ),
        learning_rate=float(row["learning_rate"]),
        tuning={
            float(each["learning_rate"]): float(each["accuracy_on_tuning_images"])
            for each in own(rates)
        },
        sigma=float(row["sigma"]),
        epsilon=_maybe(row["epsilon_that_holds"]),
        clients=clients,
        accuracy=_accuracies(row, seeds),
        curve={int(each["iteration"]): _accuracies(each, seeds) for each in own(curves)},
        p=float(row["p"]),
        q=float(row["q"]),
        d=int(row["d"]),
    )


def _maybe(text: str) -> float | None:
    return float(text) if text else None


def _accuracies(row: Row, seeds: int) -> list[float]:
    """Return as many values as there were seeds, with the row's mean and standard deviation."""
    mean, spread = float(row["accuracy_mean"]), float(row["accuracy_sd"])
    if seeds == 1:
        return [mean]
    away = spread * math.sqrt((seeds - 1) / 2)
    return [mean - away, mean + away, *[mean] * (seeds - 2)]


def _read_csv(path: Path) -> list[Row]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))
