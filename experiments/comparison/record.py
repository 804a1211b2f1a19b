"""The trainings of a comparison in a CSV file: what was trained is never trained again."""

from __future__ import annotations

import csv
import math
import statistics
from dataclasses import asdict, dataclass
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
        tuning: On the part of the test records that chooses learning rates.
        reported: On the other part.
    """

    tuning: float
    reported: float


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a level came to so far.

    Attributes:
        rate: The best learning rate, by the tuning part, first seed.
        inside: Whether it lies inside those tried.
        reported: Accuracy by seed at that rate.
    """

    rate: float
    inside: bool
    reported: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Mean accuracy."""
        return statistics.fmean(self.reported)

    @property
    def spread(self) -> float:
        """Standard deviation between seeds; 0 for one."""
        return statistics.stdev(self.reported) if len(self.reported) > 1 else 0.0

    @property
    def complete(self) -> bool:
        """Whether nothing is left to train."""
        return self.inside and len(self.reported) >= SEEDS


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
            tuning, reported = (float(row.pop(name)) for name in ("tuning", "reported"))
            *level, rate, seed = row.values()
            trainings = self._found.setdefault(tuple(level), {})
            trainings[rate, seed] = Accuracy(tuning=tuning, reported=reported)
        except (KeyError, ValueError, TypeError) as error:
            raise UserError(
                f"{self._path} has a row that is no training ({error}); mend or remove the row."
            ) from None

    def add(self, training: Training, accuracy: Accuracy) -> None:
        """Keep what a training came to."""
        fields = [_text(value) for value in training.fields.values()]
        begun = self._path.exists()
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            if not begun:
                writer.writerow([*training.fields, *asdict(accuracy)])
            writer.writerow([*fields, f"{accuracy.tuning:.5f}", f"{accuracy.reported:.5f}"])
        self._found.setdefault(_key(training.level), {})[training.key] = accuracy

    def tried(self, level: Level) -> dict[float, float]:
        """Return the accuracy on the tuning part by learning rate, first seed."""
        trainings = self._found.get(_key(level), {})
        return {
            float(rate): accuracy.tuning
            for (rate, seed), accuracy in trainings.items()
            if seed == _text(0)
        }

    def outcome(self, level: Level) -> Outcome | None:
        """Return what a level came to so far; None if nothing of it was trained."""
        tried = self.tried(level)
        if not tried:
            return None
        best = max(tried, key=tried.__getitem__)
        found = [self._found[_key(level)].get((_text(best), _text(s))) for s in range(SEEDS)]
        return Outcome(
            rate=best,
            inside=min(tried) < best < max(tried) or len(tried) >= _MOST_RATES,
            reported=tuple(each.reported for each in found if each is not None),
        )

    def wanted(self, level: Level, first_rate: float) -> list[Training]:
        """Return what must be trained next to complete a level; nothing if it is complete.

        First learning rates are doubled and halved from a first one until the best of them, with
        the first seed, lies inside those tried; then that one is played with the other seeds.
        """
        tried = self.tried(level)
        outcome = self.outcome(level)
        if outcome is None:
            return [Training(level=level, rate=first_rate, seed=0)]
        if not outcome.inside:
            further = [outcome.rate * _FACTOR, outcome.rate / _FACTOR]
            return [
                Training(level=level, rate=_rounded(rate), seed=0)
                for rate in further
                if _rounded(rate) not in tried
            ]
        trainings = [Training(level=level, rate=outcome.rate, seed=s) for s in range(SEEDS)]
        return [each for each in trainings if each.key not in self._found[_key(level)]]


_LevelKey = tuple[str, ...]


def _key(level: Level) -> _LevelKey:
    return tuple(_text(value) for value in asdict(level).values())


def _rounded(rate: float) -> float:
    return float(f"{rate:.4g}")


def _text(value: float) -> str:
    return "" if math.isinf(value) else f"{value:.6g}"
