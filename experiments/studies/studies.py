"""The paper's settings as studies: which trainings are compared, and on what.

What every mode and analysis leaves of a model at equal ε is compared in `experiments.comparison`.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from coinflower.accounting import validation
from coinflower.accounting.analyses.baselines import CentralShuffling
from coinflower.accounting.analyses.names import SCHEMES
from coinflower.accounting.errors import UserError
from coinflower.experiments.simulator.request import NO_SCHEME, Request, require_one_of
from coinflower.experiments.simulator.scenarios import SETTINGS
from coinflower.learning import Update

COMPARED = (NO_SCHEME, "cs", "paper", "certified", "wcs", "ols")
"""Without privacy, the ideal, the paper's noise, and the analyses that hold."""


_FORMAT = 2
"""Of kept trainings; raised whenever the same request gives other figures than before."""


class Question(StrEnum):
    """What a study asks."""

    PER_ITERATION = "per-iteration"
    """Every analysis meets the paper's (0.015, 1e-6) in each iteration."""
    CAP = "cap"
    """The certified noise under caps on clients' sums, for total budgets and the paper's."""


def parse_question(text: str) -> Question:
    """Return the question of that name, or say which there are."""
    try:
        return Question(text)
    except ValueError:
        raise UserError(
            f"question = {text!r} is unknown; choose one of {', '.join(Question)}."
        ) from None


@dataclass(frozen=True, kw_only=True)
class Study:
    """A comparison.

    Attributes:
        question: What it asks.
        scenario: many-small or few-large.
        data: Name or path of the data.
        partition: How it is shared out.
        iterations: Length of every training.
        epsilons: Total budgets.
        delta: Their δ.
        caps: Caps on a client's sum in clip norms, ∞ for none, for the study of the cap.
        rates: Learning rates to choose from.
        extend: Whether a case whose best rate lies at the edge of those tried tries the next one
            beyond, and so on until it lies inside.
        seeds: Trainings of each kind.
        test_images: How many measure accuracy; as many others choose the learning rate.
        model: The model.
        split: Split of EMNIST.
        download: Whether missing data may be fetched.
    """

    question: Question
    scenario: str
    data: str
    partition: str = "equal"
    iterations: int = 600
    epsilons: tuple[float, ...] = (0.5, 1.0, 2.0, 4.0)
    delta: float = 1e-5
    caps: tuple[float, ...] = (1.0, 1.5, 2.0, 3.0, 5.0, math.inf)
    rates: tuple[float, ...] = (0.005, 0.02, 0.08)
    extend: bool = False
    seeds: int = 3
    test_images: int = 2000
    model: str = "paper-cnn"
    split: str | None = None
    download: bool = False

    def __post_init__(self) -> None:
        """Check everything before the first training; requests check themselves."""
        require_one_of("scenario", self.scenario, list(SETTINGS))
        if not self.rates:
            raise UserError("rates must name at least one learning rate.")
        for rate in self.rates:
            validation.require_positive("rates: learning rate", rate)
        for epsilon in self.epsilons:
            validation.require_positive("epsilons: epsilon", epsilon)
        validation.require_count("seeds", self.seeds, least=1)
        validation.require_count("test images", self.test_images, least=1)
        if self.question is not Question.PER_ITERATION and not self.epsilons:
            raise UserError("epsilons must name at least one budget.")
        if self.question is Question.CAP and not self.caps:
            raise UserError("caps must name at least one cap.")
        if self.extend and len(set(self.rates)) == 1:
            raise UserError("rates must name at least two learning rates to go beyond them.")
        for case in self.cases():
            self.request(case, self.rates[0], 0)

    def cases(self) -> list[Case]:
        """Return what is compared."""
        if self.question is Question.PER_ITERATION:
            return [Case(scheme=scheme) for scheme in COMPARED]
        return [
            *(
                Case(scheme="certified", epsilon=value, cap=cap)
                for value in (*self.epsilons, None)
                for cap in self.caps
            ),
            Case(scheme="paper"),
        ]

    def beyond(self, tried: Iterable[float], best: float) -> float | None:
        """Return the learning rate to try next, if the best of those tried lies at their edge.

        Steps are as wide as those of the study's own rates.
        """
        rates = sorted(set(self.rates))
        if best == min(tried):
            return float(f"{best * rates[0] / rates[1]:.3g}")
        if best == max(tried):
            return float(f"{best * rates[-1] / rates[-2]:.3g}")
        return None

    def request(self, case: Case, rate: float, seed: int) -> Request:
        """Return one training of the study."""
        return Request(
            scenario=self.scenario,
            data=self.data,
            split=self.split,
            download=self.download,
            partition=self.partition,
            iterations=self.iterations,
            delta=self.delta,
            scheme=case.scheme,
            total_epsilon=case.epsilon,
            cap=case.cap,
            model=self.model,
            update=Update(learning_rate=rate, momentum=0.9),
            evaluate_every=_interval(self.iterations),
            seed=seed,
            threads=1,  # trainings are played side by side
        )


@dataclass(frozen=True, kw_only=True)
class Case:
    """One curve of a study: all that distinguishes it from the others.

    Attributes:
        scheme: The analysis that chooses the noise.
        epsilon: The budget; None for the paper's per iteration, or without privacy.
        cap: Cap on a client's sum in clip norms; ∞ for none.
    """

    scheme: str
    epsilon: float | None = None
    cap: float = math.inf

    @property
    def title(self) -> str:
        """What the curve is called."""
        if self.scheme == NO_SCHEME:
            return "no privacy"
        why = "" if self.holds else " (not an upper bound)"
        if math.isfinite(self.cap):
            why = f", cap {self.cap:g}"
        return "cs (the ideal)" if self.scheme == CentralShuffling.name else self.scheme + why

    @property
    def holds(self) -> bool:
        """Whether the analysis bounds what a client loses here."""
        scheme = SCHEMES.get(self.scheme)
        return scheme is not None and scheme.is_chargeable


def _interval(iterations: int) -> int:
    """Return how many iterations lie between two of the six or more points of a curve.

    It divides the iterations, so that the points are evenly spaced, unless that would take more
    than twelve of them.
    """
    longest = max(1, iterations // 6)
    fitting = [each for each in range(longest // 2 + 1, longest + 1) if iterations % each == 0]
    return max(fitting, default=longest)


def training_key(request: Request, test_images: int) -> str:
    """Return a file name that only the same training has."""
    fields = {**dataclasses.asdict(request), "test_images": test_images, "format": _FORMAT}
    for elsewhere in ("out", "resume", "download", "threads"):
        del fields[elsewhere]
    if math.isinf(request.cap):
        del fields["cap"]  # trainings that were kept before there was a cap
    if request.schema is None:
        del fields["schema"]  # or a schema
    if request.d is None:
        del fields["d"]  # or another size of clients than the scenario's
    if not request.model_options:
        del fields["model_options"]  # or options of a model
    digest = hashlib.sha256(json.dumps(fields, sort_keys=True, default=str).encode())
    return f"{request.chosen_scheme}-{digest.hexdigest()[:16]}"
