"""The figures of a comparison: a CSV file, and a table for people."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator
from pathlib import Path

from coinflower.accounting.rounding import rounded_up
from coinflower.experiments.comparison.comparisons import EPSILONS, Comparison
from coinflower.experiments.comparison.lines import Cell, Line
from coinflower.experiments.comparison.playing import cells_of, cells_over_clients
from coinflower.experiments.comparison.record import Outcome, TrainingRecord

RESULTS, OVER_CLIENTS_RESULTS = "results.csv", "over-clients.csv"
UNTRAINED, PARTLY = "–", "*"
_NOTEWORTHY = 1.001  # times the budget, where the true ε is stated


def write_results(comparison: Comparison, record: TrainingRecord, out: Path) -> None:
    """Write what every cell came to, trained or not."""
    _write(out / RESULTS, cells_of(comparison), record)
    if comparison.over_clients:
        _write(out / OVER_CLIENTS_RESULTS, cells_over_clients(comparison), record)


def _write(path: Path, cells: Iterable[Cell], record: TrainingRecord) -> None:
    rows = [_row(cell, record.outcome(cell.level)) for cell in cells]
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def _row(cell: Cell, outcome: Outcome | None) -> dict[str, object]:
    level, true = cell.level, cell.true_epsilon
    return {
        "line": cell.line.name,
        "budget_epsilon": cell.epsilon,
        "epsilon_that_holds": None if true is None else rounded_up(true),
        "clients": cell.clients,
        "rounds": level.rounds,
        "p": f"{level.p:.6g}",
        "q": f"{level.q:.6g}",
        "cap": level.cap,
        "sigma": None if cell.epsilon is None else rounded_up(cell.sigma),
        "noise_in_a_sum": level.noise,
        "learning_rate": None if outcome is None else outcome.rates[0],
        "learning_rate_second_half": None if outcome is None else outcome.rates[1],
        "accuracy_mean": None if outcome is None else f"{outcome.mean:.5f}",
        "accuracy_sd": None if outcome is None else f"{outcome.spread:.5f}",
        "seeds": 0 if outcome is None else len(outcome.accuracies),
        "rates_inside_those_tried": outcome is not None and outcome.inside,
    }


def heading() -> list[str]:
    """Return the first two lines of a table of lines."""
    budgets = " | ".join(f"ε = {epsilon:g}" for epsilon in EPSILONS)
    return [f"| | {budgets} |", "|---|" + "---:|" * len(EPSILONS)]


def rows_of(comparison: Comparison, record: TrainingRecord) -> Iterator[str]:
    """Yield a line of a table for every line, accuracy in per cent."""
    lines: dict[Line, list[str]] = {}
    for cell in cells_of(comparison):
        texts = lines.setdefault(cell.line, [])
        text = _told(cell, record.outcome(cell.level))
        texts += [text] * (1 if cell.epsilon is not None else len(EPSILONS))
    for line, texts in lines.items():
        yield f"| {line.name} | {' | '.join(texts)} |"


def _told(cell: Cell, outcome: Outcome | None) -> str:
    """Return an accuracy as a table shows it, with the true ε where it is above the budget."""
    if outcome is None:
        return UNTRAINED
    text = f"{100 * outcome.mean:.1f}"
    text += f" ± {100 * outcome.spread:.1f}" if outcome.complete else f" {PARTLY}"
    true = cell.true_epsilon
    if true is not None and cell.epsilon is not None and true > _NOTEWORTHY * cell.epsilon:
        text += f" (ε = {rounded_up(true, 3)})"
    return text


def progress_of(comparison: Comparison, record: TrainingRecord) -> str:
    """Say in a sentence how much of a comparison is trained."""
    cells = [*cells_of(comparison), *cells_over_clients(comparison)]
    levels = list(dict.fromkeys(cell.level for cell in cells))
    outcomes = [record.outcome(level) for level in levels]
    complete = sum(each is not None and each.complete for each in outcomes)
    begun = sum(each is not None for each in outcomes)
    if complete == len(levels):
        return f"All {len(levels)} levels of noise are trained ({len(record)} trainings)."
    return (
        f"{complete} of {len(levels)} levels of noise are complete, with the best learning rate "
        f"inside those tried and three seeds; {begun - complete} are begun ({PARTLY}: the best "
        f"rate, or seeds, may be missing), {len(levels) - begun} not yet ({UNTRAINED}). "
        "The command above trains what is missing."
    )
