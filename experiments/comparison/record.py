"""The trainings of a comparison in a CSV file: what was trained is never trained again."""

from __future__ import annotations

import csv
import math
import statistics
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from coinflower.accounting.errors import UserError
from coinflower.experiments.comparison.lines import Level

TRAININGS = "trainings.csv"
SEEDS = 3
_FACTOR = 2.0  # between two learning rates
_MOST_RATES = 9


@dataclass(frozen=True, kw_only=True)
class Training:
    """A training to be played.

    Attributes:
        level: What it is trained under.
        rate: Learning rate.
        seed: Seeds everything.
    """

    level: Level
    rate: float
    seed: int

    @property
    def key(self) -> tuple[str, str]:
        """What tells it from others of its level."""
        return _text(self.rate), _text(self.seed)

    @property
    def fields(self) -> dict[str, float]:
        """All that it depends on, by name."""
        return {**asdict(self.level), "rate": self.rate, "seed": self.seed}


@dataclass(frozen=True, kw_only=True)
class Accuracy:
    """What a training came to.

    Attributes:
        first_half: On one half of the test part.
        second_half: On the other half.
    """

    first_half: float
    second_half: float


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a level came to so far.

    Each half of the test part chooses the learning rate that the other half reports, so accuracy is
    measured on all of it, and nowhere on records that chose the rate.

    Attributes:
        rates: The best learning rate by the first half, and by the second half, first seed.
        inside: Whether both lie inside those tried.
        accuracies: By seed, the mean over the two halves.
    """

    rates: tuple[float, float]
    inside: bool
    accuracies: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Mean accuracy."""
        return statistics.fmean(self.accuracies)

    @property
    def spread(self) -> float:
        """Standard deviation between seeds; 0 for one."""
        return statistics.stdev(self.accuracies) if len(self.accuracies) > 1 else 0.0

    @property
    def complete(self) -> bool:
        """Whether nothing is left to train."""
        return self.inside and len(self.accuracies) >= SEEDS


class TrainingRecord:
    """The trainings that were played, in a file that grows by a row for each.

    Args:
        path: The file; it need not exist.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._found: dict[_LevelKey, dict[tuple[str, str], Accuracy]] = {}
        if path.exists():
            with path.open(newline="") as file:
                for row in csv.DictReader(file):
                    self._take(row)

    def __len__(self) -> int:
        return sum(len(trainings) for trainings in self._found.values())

    def _take(self, row: dict[str, str]) -> None:
        try:
            halves = {each.name: float(row.pop(each.name)) for each in fields(Accuracy)}
            *level, rate, seed = row.values()
            self._found.setdefault(tuple(level), {})[rate, seed] = Accuracy(**halves)
        except (KeyError, ValueError, TypeError) as error:
            raise UserError(
                f"{self._path} has a row that is no training ({error}); mend or remove the row."
            ) from None

    def add(self, training: Training, accuracy: Accuracy) -> None:
        """Keep what a training came to."""
        terms = [_text(value) for value in training.fields.values()]
        begun = self._path.exists()
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            if not begun:
                writer.writerow([*training.fields, *asdict(accuracy)])
            writer.writerow([*terms, *(f"{value:.5f}" for value in asdict(accuracy).values())])
        self._found.setdefault(_key(training.level), {})[training.key] = accuracy

    def _tried(self, level: Level) -> dict[float, Accuracy]:
        """Return what each learning rate came to with the first seed."""
        trainings = self._found.get(_key(level), {})
        return {float(rate): each for (rate, seed), each in trainings.items() if seed == _text(0)}

    def outcome(self, level: Level) -> Outcome | None:
        """Return what a level came to so far; None if nothing of it was trained."""
        tried = self._tried(level)
        if not tried:
            return None
        first = max(tried, key=lambda rate: tried[rate].first_half)
        second = max(tried, key=lambda rate: tried[rate].second_half)
        trainings = self._found[_key(level)]
        played = [
            (
                trainings.get((_text(first), _text(seed))),
                trainings.get((_text(second), _text(seed))),
            )
            for seed in range(SEEDS)
        ]
        return Outcome(
            rates=(first, second),
            inside=len(tried) >= _MOST_RATES
            or all(min(tried) < rate < max(tried) for rate in (first, second)),
            accuracies=tuple(
                (by_first.second_half + by_second.first_half) / 2
                for by_first, by_second in played
                if by_first is not None and by_second is not None
            ),
        )

    def wanted(self, level: Level, first_rate: float) -> list[Training]:
        """Return what must be trained next to complete a level; nothing if it is complete.

        First learning rates are doubled and halved from a first one until the best ones, with the
        first seed, lie inside those tried; then these are played with the other seeds.
        """
        tried = self._tried(level)
        outcome = self.outcome(level)
        if outcome is None:
            return [Training(level=level, rate=first_rate, seed=0)]
        best = dict.fromkeys(outcome.rates)
        if not outcome.inside:
            further = dict.fromkeys(
                _rounded(next_) for rate in best for next_ in (rate * _FACTOR, rate / _FACTOR)
            )
            return [Training(level=level, rate=r, seed=0) for r in further if r not in tried]
        trainings = [Training(level=level, rate=r, seed=s) for s in range(SEEDS) for r in best]
        return [each for each in trainings if each.key not in self._found[_key(level)]]


_LevelKey = tuple[str, ...]


def _key(level: Level) -> _LevelKey:
    return tuple(_text(value) for value in asdict(level).values())


def _rounded(rate: float) -> float:
    return float(f"{rate:.4g}")


def _text(value: float) -> str:
    return "" if math.isinf(value) else f"{value:.6g}"
