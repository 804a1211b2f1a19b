"""How fast accounting is: many rounds against dp-accounting, the ledger against bare SQLite.

Run with ``python -m experiments.bench`` together with the other benchmarks.
"""

from __future__ import annotations

import itertools
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from accounting.composition import epsilon_after
from accounting.ledger import Ledger
from accounting.ledger_entries import Budget
from accounting.schemes import Certified

TERMS = Certified(p=0.001, q=0.1, d=30, noise_multiplier=2.49)
ROUNDS = 10_000
DELTA = 1e-5
LATTICE_STEP = 1e-4
MOST_COMPOSITION_RATIO = 3.0
LEAST_CHARGE_RATIO = 0.5
MOST_SPENT_RATIO = 2.0


def run(*, repetitions: int = 15) -> list[dict[str, Any]]:
    """Measure everything.

    Args:
        repetitions: How often each side of a comparison runs; medians are compared.

    Returns:
        One row per figure: ``measure``, ``value``, ``limit`` (None where there is none to meet),
        ``at_least`` (whether the limit is a lower one) and ``met``.
    """
    # Beside the project, since a temporary folder may lie in memory and sync nothing.
    with tempfile.TemporaryDirectory(dir=".", prefix=".bench-") as folder:
        return [
            *_composition_rows(repetitions),
            *_charge_rows(Path(folder), repetitions),
            *_spent_rows(Path(folder), repetitions),
        ]


def _row(measure: str, value: float, limit: float | None = None, *, at_least: bool = False) -> Any:
    met = None if limit is None else (value >= limit if at_least else value <= limit)
    return {"measure": measure, "value": value, "limit": limit, "at_least": at_least, "met": met}


def _medians(
    methods: list[Callable[[], object]], repetitions: int, clock: Callable[[], float]
) -> list[float]:
    """Return the median time of each method; they take turns, so that all meet the same load."""
    seconds: list[list[float]] = [[] for _ in methods]
    for _ in range(repetitions):
        for method, times in zip(methods, seconds, strict=True):
            start = clock()
            method()
            times.append(clock() - start)
    return [statistics.median(times) for times in seconds]


def _composition_rows(repetitions: int) -> list[dict[str, Any]]:
    from dp_accounting.pld import privacy_loss_distribution

    # Answers are remembered; a δ that was never asked for is computed anew.
    deltas = (DELTA * (1 + 1e-9 * count) for count in itertools.count())

    def ours() -> float:
        return epsilon_after([(TERMS, ROUNDS)], next(deltas), step=LATTICE_STEP)

    def ours_on_its_own_lattice() -> float:
        return epsilon_after([(TERMS, ROUNDS)], next(deltas))

    def plain() -> float:
        distribution = privacy_loss_distribution.from_gaussian_mechanism(
            TERMS.noise_multiplier,
            value_discretization_interval=LATTICE_STEP,
            sampling_prob=TERMS.p * TERMS.q,
        )
        return float(distribution.self_compose(ROUNDS).get_epsilon_for_delta(DELTA))

    methods = [ours, ours_on_its_own_lattice, plain]
    same, own, theirs = _medians(methods, repetitions, time.process_time)
    return [
        _row("ε of 10 000 rounds, CPU ms", own * 1e3),
        _row(
            f"ε of 10 000 rounds, CPU time / plain subsampled Gaussian (lattice {LATTICE_STEP:g})",
            same / theirs,
            MOST_COMPOSITION_RATIO,
        ),
        _row("the same on the lattice that it chooses", own / theirs, MOST_COMPOSITION_RATIO),
    ]


def _charge_rows(folder: Path, repetitions: int, *, block: int = 50) -> list[dict[str, Any]]:
    bare = sqlite3.connect(folder / "bare.db", isolation_level=None)
    bare.execute("PRAGMA journal_mode = WAL")
    bare.execute("PRAGMA synchronous = FULL")
    bare.execute("CREATE TABLE rows (id INTEGER PRIMARY KEY, value INTEGER)")
    rounds = itertools.count(1)

    def commit_rows() -> None:
        for value in range(block):
            bare.execute("BEGIN IMMEDIATE")
            bare.execute("INSERT INTO rows (value) VALUES (?)", (value,))
            bare.execute("COMMIT")

    with _ledger(folder / "charges.db", block * repetitions) as ledger:

        def charge() -> None:
            for _ in range(block):
                ledger.charge("bench", next(rounds))

        plain, charged = _medians([commit_rows, charge], repetitions, time.perf_counter)
    bare.close()
    return [
        _row("durable charges per second", block / charged),
        _row(
            "durable charges / bare SQLite commits of one row",
            plain / charged,
            LEAST_CHARGE_RATIO,
            at_least=True,
        ),
    ]


def _spent_rows(folder: Path, repetitions: int) -> list[dict[str, Any]]:
    deltas = (DELTA * (1 + 1e-9 * count) for count in itertools.count())
    few, many = 1_000, 100_000
    with (
        _ledger(folder / "few.db", few) as short,
        _ledger(folder / "many.db", many) as long,
    ):
        for ledger, count in ((short, few), (long, many)):
            ledger.charge_all("bench", range(1, count + 1))
        methods: list[Callable[[], object]] = [
            lambda: short.spent(next(deltas)),
            lambda: long.spent(next(deltas)),
        ]
        before, after = _medians(methods, repetitions, time.process_time)
    return [
        _row("spent after 100 000 rounds, CPU ms", after * 1e3),
        _row(
            "spent after 100 000 rounds / after 1 000 rounds",
            after / before,
            MOST_SPENT_RATIO,
        ),
    ]


def _ledger(path: Path, rounds: int) -> Ledger:
    ledger = Ledger.create(path, "bench")
    ledger.commit("bench", TERMS, rounds, Budget(epsilon=1e6, delta=DELTA))
    return ledger
