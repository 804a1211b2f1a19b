"""The trainings of a study: played on all cores, kept one by one, tuned."""

from __future__ import annotations

import dataclasses
import functools
import json
import statistics
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from coinflower.accounting.errors import UserError
from coinflower.experiments.simulator.request import Request
from coinflower.experiments.simulator.scenarios import SETTINGS, load_training_data
from coinflower.experiments.simulator.simulated_run import federation_of, run_request, sigma_of
from coinflower.experiments.studies.side_by_side import played_side_by_side
from coinflower.experiments.studies.studies import Case, Study, training_key
from coinflower.learning import Dataset
from coinflower.server.checkpoint import write_atomically

_MOST_RATES = 12
"""Beyond so many learning rates a best one is not looked for: nothing is learnt at any of them."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a case came to, at the learning rate that served it best.

    Attributes:
        case: What was trained.
        learning_rate: The best of the study's, by the images set aside for that.
        tuning: Accuracy on those images by learning rate.
        sigma: Noise multiplier.
        epsilon: What the training costs at most; None without privacy.
        clients: Number of clients.
        accuracy: Final accuracy on the other images, by seed.
        curve: Accuracy by iteration, by seed.
        p: Participation probability.
        q: Sampling rate.
        d: Largest client.
    """

    case: Case
    learning_rate: float
    tuning: dict[float, float]
    sigma: float
    epsilon: float | None
    clients: int
    accuracy: list[float]
    curve: dict[int, list[float]]
    p: float
    q: float
    d: int

    @property
    def edge(self) -> str:
        """A mark for a learning rate at the edge of those tried, which may not be the best.

        Nothing can be said where only one was tried.
        """
        if len(self.tuning) == 1:
            return ""
        return {min(self.tuning): "≤ ", max(self.tuning): "≥ "}.get(self.learning_rate, "")

    @property
    def mean(self) -> float:
        """Mean final accuracy."""
        return statistics.fmean(self.accuracy)

    @property
    def spread(self) -> float:
        """Standard deviation of the final accuracy between seeds; 0 for one seed."""
        return statistics.stdev(self.accuracy) if len(self.accuracy) > 1 else 0.0


def play(
    study: Study,
    folder: Path,
    *,
    workers: int,
    progress: Callable[[int, int], None] = lambda _done, _all: None,
    stopped: Callable[[], bool] = lambda: False,
) -> list[Outcome] | None:
    """Play a study's trainings and return what each case came to.

    First every learning rate with the first seed, and rates beyond if the study extends them; then
    the best one with the other seeds. Each training is kept in ``folder`` when it ends, so that a
    stopped study continues where it was.

    Args:
        study: The study.
        folder: Where trainings are kept.
        workers: How many are played at a time.
        progress: Told how many of how many trainings are there.
        stopped: Asked between trainings.

    Returns:
        An outcome a case, or None if it was stopped.

    Raises:
        ValueError: The data does not make some case's clients, or no noise meets its budget; then
            nothing was trained.
    """
    cases = study.cases()
    _require_possible(study)
    folder.mkdir(parents=True, exist_ok=True)
    results: dict[Request, dict[str, Any]] = {}

    def played(requests: list[Request], later: int) -> bool:
        """Play what is missing, and tell how many there are and will be; whether all was played."""
        everything = len(results) + len(requests) + later
        for request, result in _played(requests, study, folder, workers, stopped):
            results[request] = result
            progress(len(results), everything)
        return all(request in results for request in requests)

    seeds = len(cases) * (study.seeds - 1)
    rates = {case: list(study.rates) for case in cases}
    asked = [study.request(case, rate, 0) for case in cases for rate in study.rates]
    while asked:
        if not played(asked, seeds):
            return None
        best = {
            case: max(
                tried,
                key=lambda rate: results[study.request(case, rate, 0)]["tuning_accuracy"],
            )
            for case, tried in rates.items()
        }
        asked = []
        for case, tried in rates.items() if study.extend else ():
            further = study.beyond(tried, best[case])
            if further is not None and len(tried) < _MOST_RATES:
                tried.append(further)
                asked.append(study.request(case, further, 0))
    more = [study.request(case, best[case], seed) for case in cases for seed in _later(study)]
    if not played(more, 0):
        return None
    return [_outcome(study, case, best[case], sorted(rates[case]), results) for case in cases]


def _require_possible(study: Study) -> None:
    """Refuse a study one of whose cases cannot be trained, before hours go into the others."""
    data = training_data(study)
    for case in study.cases():
        request = study.request(case, study.rates[0], 0)
        sigma_of(request, federation_of(request, data))


def training_data(study: Study) -> Dataset:
    """Return the data of a study; it is read once in a process."""
    return _data(study.data, study.scenario, study.split, study.download)


def _later(study: Study) -> range:
    return range(1, study.seeds)


def _outcome(
    study: Study,
    case: Case,
    rate: float,
    tried: list[float],
    results: dict[Request, dict[str, Any]],
) -> Outcome:
    runs = [results[study.request(case, rate, seed)] for seed in (0, *_later(study))]
    first = {each: results[study.request(case, each, 0)] for each in tried}
    return Outcome(
        case=case,
        learning_rate=rate,
        tuning={each: result["tuning_accuracy"] for each, result in first.items()},
        sigma=runs[0]["sigma"],
        epsilon=runs[0]["epsilon"],
        clients=runs[0]["clients"],
        accuracy=[run["accuracy"] for run in runs],
        curve={int(at): [run["curve"][at] for run in runs] for at in runs[0]["curve"]},
        p=runs[0]["p"],
        q=runs[0]["q"],
        d=runs[0]["d"],
    )


def _played(
    requests: Iterable[Request],
    study: Study,
    folder: Path,
    workers: int,
    stopped: Callable[[], bool],
) -> Iterator[tuple[Request, dict[str, Any]]]:
    """Yield trainings as they end, those kept from earlier first."""
    missing = []
    for request in requests:
        path = folder / f"{training_key(request, study.test_images)}.json"
        if path.exists():
            yield request, json.loads(path.read_text())
        else:
            missing.append((request, path))
    left = dict(missing)

    def wanted() -> list[Request]:
        return list(left)

    task = functools.partial(_play_into, left, study.test_images)
    for request, result in played_side_by_side(wanted, task, jobs=workers, stopped=stopped):
        del left[request]
        yield request, result


def _play_into(paths: dict[Request, Path], test_images: int, request: Request) -> dict[str, Any]:
    return play_one(request, test_images, paths[request])


def play_one(request: Request, test_images: int, path: Path) -> dict[str, Any]:
    """Play one training, keep what it came to in a file, and return it."""
    data = _data(request.data, request.scenario, request.split, request.download)
    reported, tuning = two_test_parts(data, test_images)
    result = run_request(request, data=reported, tuning=tuning)
    write_atomically(path, json.dumps(result).encode())
    return json.loads(path.read_text())  # type: ignore[no-any-return]


@functools.lru_cache(maxsize=1)
def _data(spec: str, scenario: str, split: str | None, download: bool) -> Dataset:
    return load_training_data(spec, SETTINGS[scenario], split=split, download=download)


def two_test_parts(data: Dataset, images: int) -> tuple[Dataset, Dataset]:
    """Return the data with two disjoint test parts: one to report, one to choose rates by."""
    order = np.random.default_rng(0).permutation(len(data.test.targets))
    if len(order) < 2:
        raise UserError(f"{data.name} needs at least two test images.")
    images = min(images, len(order) // 2)
    parts = [order[:images], order[images : 2 * images]]
    first, second = (dataclasses.replace(data, test_part=data.test.take(part)) for part in parts)
    return first, second
