"""The figures of a study as CSV files."""

from __future__ import annotations

import csv
import statistics
from collections.abc import Iterator
from pathlib import Path

from coinflower.experiments.studies.drawing import spent
from coinflower.experiments.studies.studies import Study
from coinflower.experiments.studies.trainings import Outcome
from coinflower.protocol.modes import Mode

RESULTS, CURVES, RATES = "results.csv", "curves.csv", "learning-rates.csv"


def write_tables(study: Study, outcomes: list[Outcome], out: Path) -> None:
    """Write results, curves and learning rates of a study into a folder."""
    _write_csv(out / RESULTS, _result_rows(outcomes))
    _write_csv(out / CURVES, _curve_rows(study, outcomes))
    _write_csv(out / RATES, _tuning_rows(outcomes))


def _result_rows(outcomes: list[Outcome]) -> Iterator[dict[str, object]]:
    for each in outcomes:
        yield {
            **_key(each),
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
                **_key(each),
                "iteration": iteration,
                "epsilon_spent": spent(each, iteration, study.delta),
                "accuracy_mean": round(statistics.fmean(values), 5),
                "accuracy_sd": round(statistics.stdev(values), 5) if len(values) > 1 else 0.0,
            }


def _tuning_rows(outcomes: list[Outcome]) -> Iterator[dict[str, object]]:
    for each in outcomes:
        for rate, accuracy in each.tuning.items():
            yield {
                **_key(each),
                "learning_rate": rate,
                "accuracy_on_tuning_images": accuracy,
                "chosen": rate == each.learning_rate,
            }


def _key(outcome: Outcome) -> dict[str, object]:
    """Return what tells the rows of one case from those of another."""
    return {
        "scheme": outcome.case.scheme,
        "noise": Mode.TRUSTED,
        "budget_epsilon": outcome.case.epsilon,
        "clients": outcome.clients,
        "cap": outcome.case.cap,
    }


def _write_csv(path: Path, rows: Iterator[dict[str, object]]) -> None:
    listed = list(rows)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(listed[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(listed)
