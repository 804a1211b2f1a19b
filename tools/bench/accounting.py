"""How fast accounting is: many rounds against dp-accounting, the ledger against bare SQLite.

Run with ``python -m tools.bench`` together with the other benchmarks.
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

from coinflower.accounting.analyses.certified import Certified, CertifiedBySample
from coinflower.accounting.composition.compose import epsilon_after, lattice_step
from coinflower.accounting.composition.losses import round_losses
from coinflower.accounting.ledger.entries import Budget
from coinflower.accounting.ledger.ledger import Ledger
from coinflower.accounting.mechanism import Round

TERMS = Certified(Round(p=0.001, q=0.1, d=30, noise_multiplier=2.49))
ROUNDS = 10_000
DELTA = 1e-5
LATTICE_STEP = 1e-4
MOST_COMPOSITION_RATIO = 1.5
MOST_CONSTRUCTION_RATIO = 0.7
# Losses beyond it are too rare to count in so many rounds.
_REACH = 1.0
LEAST_CHARGE_RATIO = 0.5
MOST_SPENT_RATIO = 2.0
MOST_ENROLMENT_RATIO = 2.0
# Answers are remembered; a δ that was never asked for is computed anew.
_DELTAS = (DELTA * (1 + 1e-9 * count) for count in itertools.count())


def run(*, repetitions: int = 15) -> list[dict[str, Any]]:
    """Measure everything.

    Args:
        repetitions: How often each side of a comparison runs; medians are compared.

    Returns:
        Rows as ``tools.bench.table`` describes them.
    """
    # Beside the project, since a temporary folder may lie in memory and sync nothing.
    with tempfile.TemporaryDirectory(dir=".", prefix=".bench-") as folder:
        return [
            *_composition_rows(repetitions),
            *_charge_rows(Path(folder), 20 * repetitions),
            *_spent_rows(Path(folder), repetitions),
            *_enrolment_rows(Path(folder)),
        ]


def _row(measure: str, value: float, limit: float | None = None) -> dict[str, Any]:
    met = None if limit is None else value <= limit
    return {"measure": measure, "value": value, "limit": limit, "met": met}


def _at_least(measure: str, value: float, limit: float) -> dict[str, Any]:
    return {**_row(f"{measure} (at least)", value, limit), "met": value >= limit}


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
    own_step = lattice_step([(TERMS, ROUNDS)], DELTA)
    first = CertifiedBySample(TERMS.round)
    methods: list[Callable[[], object]] = [
        lambda: epsilon_after([(TERMS, ROUNDS)], next(_DELTAS), step=LATTICE_STEP),
        lambda: _plain_epsilon(LATTICE_STEP),
        lambda: epsilon_after([(TERMS, ROUNDS)], next(_DELTAS)),
        lambda: _plain_epsilon(own_step),
        lambda: round_losses(TERMS, own_step, _REACH),
        lambda: round_losses(first, own_step, _REACH),
    ]
    same, plain, own, plain_on_own, built, built_at_first = _medians(
        methods, repetitions, time.process_time
    )
    return [
        _row("ε of 10 000 rounds, CPU ms", own * 1e3),
        _row(
            f"its CPU time / plain subsampled Gaussian in dp-accounting, lattice {LATTICE_STEP:g}",
            same / plain,
            MOST_COMPOSITION_RATIO,
        ),
        _row(
            f"the same on the lattice it chooses, {own_step:.2g}",
            own / plain_on_own,
            MOST_COMPOSITION_RATIO,
        ),
        _row("losses of one round, CPU ms", built * 1e3),
        _row(
            "its CPU time / that of the first certified bound",
            built / built_at_first,
            MOST_CONSTRUCTION_RATIO,
        ),
    ]


def _plain_epsilon(step: float) -> float:
    from dp_accounting.pld import privacy_loss_distribution

    distribution = privacy_loss_distribution.from_gaussian_mechanism(
        TERMS.round.noise_multiplier,
        value_discretization_interval=step,
        sampling_prob=TERMS.round.p * TERMS.round.q,
    )
    return float(distribution.self_compose(ROUNDS).get_epsilon_for_delta(DELTA))


def _charge_rows(folder: Path, repetitions: int, *, block: int = 5) -> list[dict[str, Any]]:
    # Short turns, since how long a disk takes to sync changes all the time.
    bare = sqlite3.connect(folder / "bare.db", isolation_level=None)
    # As durable as a ledger: the row is in the file itself when a commit returns.
    bare.execute("PRAGMA journal_mode = PERSIST")
    bare.execute("PRAGMA synchronous = EXTRA")
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
                ledger.flip("bench", next(rounds))

        plain, charged = _medians([commit_rows, charge], repetitions, time.perf_counter)
    bare.close()
    return [
        _row("durable charges per second", block / charged),
        _at_least(
            "durable charges / bare SQLite commits of one row",
            plain / charged,
            LEAST_CHARGE_RATIO,
        ),
    ]


def _spent_rows(folder: Path, repetitions: int) -> list[dict[str, Any]]:
    few, many = 1_000, 100_000
    with (
        _ledger(folder / "few.db", few) as short,
        _ledger(folder / "many.db", many) as long,
    ):
        for ledger, count in ((short, few), (long, many)):
            ledger.flip_all("bench", range(1, count + 1))
        methods: list[Callable[[], object]] = [
            lambda: short.spent(next(_DELTAS)),
            lambda: long.spent(next(_DELTAS)),
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


def _enrolment_rows(
    folder: Path, *, few: int = 10, many: int = 1_000, measured: int = 8
) -> list[dict[str, Any]]:
    """Enrol in one experiment after the other, no two with the same terms, and play each."""
    budget = Budget(epsilon=1e6, delta=DELTA)
    seconds: list[float] = []
    with Ledger.create(folder / "experiments.db", "bench") as ledger:
        for index in range(many + measured):
            terms = Certified(
                Round(p=0.01 + 1e-4 * index, q=0.01, d=30, noise_multiplier=5 + 0.01 * index)
            )
            start = time.process_time()
            ledger.reserve(f"bench-{index}", terms, 3, budget)
            seconds.append(time.process_time() - start)
            ledger.flip_all(f"bench-{index}", range(1, 4))
    before, after = (statistics.mean(seconds[past:][:measured]) for past in (few, many))
    return [
        _row(f"enrolment after {many:,} experiments, CPU ms", after * 1e3),
        _row(
            f"enrolment after {many:,} experiments with distinct terms / after {few}",
            after / before,
            MOST_ENROLMENT_RATIO,
        ),
    ]


def _ledger(path: Path, rounds: int) -> Ledger:
    ledger = Ledger.create(path, "bench")
    ledger.reserve("bench", TERMS, rounds, Budget(epsilon=1e6, delta=DELTA))
    return ledger
