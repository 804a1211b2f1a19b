"""The figures of a study as CSV files, written and read."""

from __future__ import annotations

import csv
import math
import statistics
from collections.abc import Iterator
from pathlib import Path

from coinflower.experiments.simulator.simulator import parse_noise
from coinflower.experiments.studies.drawing import spent
from coinflower.experiments.studies.studies import Case, Question, Study
from coinflower.experiments.studies.trainings import Outcome

RESULTS, CURVES, RATES = "results.csv", "curves.csv", "learning-rates.csv"


def write_tables(study: Study, outcomes: list[Outcome], out: Path) -> None:
    """Write results, curves and learning rates of a study into a folder."""
    _write_csv(out / RESULTS, _result_rows(outcomes))
    _write_csv(out / CURVES, _curve_rows(study, outcomes))
    _write_csv(out / RATES, _tuning_rows(outcomes))


def read_outcomes(question: Question, folder: Path) -> list[Outcome]:
    """Return what the cases of a study came to, from its CSV files.

    They hold mean and standard deviation, not each seed: the accuracies returned have the same.
    """
    curves, rates = _read_csv(folder / CURVES), _read_csv(folder / RATES)
    return [_outcome(question, row, curves, rates) for row in _read_csv(folder / RESULTS)]


Row = dict[str, str]


def _outcome(question: Question, row: Row, curves: list[Row], rates: list[Row]) -> Outcome:
    def own(rows: list[Row]) -> list[Row]:
        key = ("scheme", "noise", "budget_epsilon", "clients", "cap")
        return [each for each in rows if all(each[name] == row[name] for name in key)]

    seeds, clients = int(row["seeds"]), int(row["clients"])
    return Outcome(
        case=Case(
            scheme=row["scheme"],
            epsilon=_maybe(row["budget_epsilon"]),
            noise=parse_noise(row["noise"]),
            clients=clients if question is Question.UNTRUSTED_PRICE else None,
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


def _result_rows(outcomes: list[Outcome]) -> Iterator[dict[str, object]]:
    for each in outcomes:
        yield {
            "scheme": each.case.scheme,
            "noise": each.case.noise,
            "budget_epsilon": each.case.epsilon,
            "clients": each.clients,
            "cap": each.case.cap,
            "p": each.p,
            "q": each.q,
            "d": each.d,
            "sigma": each.sigma,
            "epsilon_that_holds": each.epsilon,
            "learning_rate": each.learning_rate,
            "accuracy_mean": round(each.mean, 5),
            "accuracy_sd": round(each.spread, 5),
            "seeds": len(each.accuracy),
        }


def _curve_rows(study: Study, outcomes: list[Outcome]) -> Iterator[dict[str, object]]:
    for each in outcomes:
        for iteration, values in each.curve.items():
            yield {
                "scheme": each.case.scheme,
                "noise": each.case.noise,
                "budget_epsilon": each.case.epsilon,
                "clients": each.clients,
                "cap": each.case.cap,
                "iteration": iteration,
                "epsilon_spent": spent(each, iteration, study.delta),
                "accuracy_mean": round(statistics.fmean(values), 5),
                "accuracy_sd": round(statistics.stdev(values), 5) if len(values) > 1 else 0.0,
            }


def _tuning_rows(outcomes: list[Outcome]) -> Iterator[dict[str, object]]:
    for each in outcomes:
        for rate, accuracy in each.tuning.items():
            yield {
                "scheme": each.case.scheme,
                "noise": each.case.noise,
                "budget_epsilon": each.case.epsilon,
                "clients": each.clients,
                "cap": each.case.cap,
                "learning_rate": rate,
                "accuracy_on_tuning_images": accuracy,
                "chosen": rate == each.learning_rate,
            }


def _write_csv(path: Path, rows: Iterator[dict[str, object]]) -> None:
    listed = list(rows)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(listed[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(listed)


def _read_csv(path: Path) -> list[Row]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))
