"""Evaluations between the rounds of a training: queries with terms, rounds and prices of their own.

Clients enrol in the training and in its evaluations separately, and may refuse either.
"""

from __future__ import annotations

import logging
import math
from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import Field

from coinflower.learning import Randomness, Task
from coinflower.learning.queries.evaluation import Evaluation, usual_evaluation
from coinflower.protocol.query import MetricName
from coinflower.protocol.strict import Count, Listed, Positive, Probability, strict
from coinflower.protocol.terms import Terms
from coinflower.server.checkpoint import CheckpointFolder, Vector
from coinflower.server.clients.attendance import Attendance, TooFewClientsError
from coinflower.server.clients.echoes import Echoes
from coinflower.server.clients.roster import SizeLimits
from coinflower.server.grid import PromptGrid
from coinflower.server.masked.opening import NotaryError
from coinflower.server.pace import Pace
from coinflower.server.rounds import Rounds

logger = logging.getLogger("coinflower.server")

_ENDING = "-evaluation"
_LONGEST_NAME = 64
_RING_BITS: Literal[64] = (
    64  # of a few numbers; the smallest ring that would do is not worth looking for
)
_PATIENCE_SECONDS = 30.0


@strict
class EvaluationSettings:
    """How often, and how, a model in training is measured on clients' own records.

    Attributes:
        every: Rounds of training between two evaluations; the last model is always measured.
        noise_multiplier: Noise over clip norm of an evaluation.
        p: Participation probability; the training's if left out.
        q: Sampling rate; the training's if left out.
        metrics: What is measured; the one that is looked at first if left out.
        largest_loss: A larger loss counts as this one.
        largest_error: So does a larger distance from a number that is predicted.
        bins: How many bins the scores of each class are counted in.
    """

    every: Count
    noise_multiplier: Positive
    p: Probability | None = None
    q: Probability | None = None
    metrics: Listed[MetricName] = ()
    largest_loss: Positive | None = None
    largest_error: Positive | None = None
    bins: Annotated[int, Field(ge=2, le=1000)] = 20

    def terms(self, training: Terms, task: Task) -> Terms:
        """Return what clients are asked to agree to, beside a training.

        Raises:
            UserError: The task has no such metric, or the training protects nothing.
        """
        query = usual_evaluation(
            task,
            metrics=self.metrics,
            largest_loss=self.largest_loss,
            largest_error=self.largest_error,
            bins=self.bins,
        )
        return replace(
            training,
            experiment=training.experiment[: _LONGEST_NAME - len(_ENDING)] + _ENDING,
            query=query,
            rounds=math.ceil(training.rounds / self.every),
            rounds_per_invitation=1,
            p=training.p if self.p is None else self.p,
            q=training.q if self.q is None else self.q,
            noise_multiplier=self.noise_multiplier,
            clipping="flat",
            learning_rate=None,
            momentum=None,
            ring_bits=_RING_BITS if training.mode.masks_sums else None,
        )

    def to_fields(self) -> dict[str, Any]:
        """Return the settings as plain values; what is left to its default is left out."""
        given = {name: value for name, value in vars(self).items() if value not in (None, ())}
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in given.items()
        }


class Evaluations:
    """Measures the model of a training now and then.

    Args:
        settings: How often.
        training: The terms of the training.
        task: What it learns.
        checkpoints: Of the evaluations: which of their rounds are used up.
        randomness: Where central noise comes from.
        least_clients: Fewest clients whose records measure a model.
        expected_clients: How many there will be.
        sizes: How much data clients may declare.
    """

    _rounds: Rounds  # from `begin` on

    def __init__(
        self,
        settings: EvaluationSettings,
        training: Terms,
        task: Task,
        *,
        checkpoints: CheckpointFolder,
        randomness: Randomness,
        least_clients: int = 1,
        expected_clients: int = 1,
        sizes: SizeLimits | None = None,
    ) -> None:
        self.terms = settings.terms(training, task)
        self._every = settings.every
        self._last = training.rounds
        assert self.terms.query is not None
        self._evaluation = Evaluation(self.terms.query, task)
        self._checkpoints = checkpoints
        self._randomness = randomness
        self._least = max(least_clients, self.terms.threshold or 1)
        self._expected = max(expected_clients, self._least)
        self._sizes = sizes

    def begin(self, grid: PromptGrid, pace: Pace, echoes: Echoes, timeout: float) -> None:
        """Ask clients to enrol, so that they set aside what evaluations cost before they train."""
        self._rounds = Rounds(
            self.terms,
            grid=grid,
            checkpoints=self._checkpoints,
            randomness=self._randomness,
            attendance=Attendance(
                least_clients=self._least,
                expected_clients=self._expected,
                patience_seconds=min(timeout, _PATIENCE_SECONDS),
                no_other_clients=True,
            ),
            pace=pace,
            echoes=echoes,
            timeout=timeout,
            sizes=self._sizes,
            invites_ahead=False,
        )
        self._is_there(gather=True)

    def is_due(self, round_: int) -> bool:
        """Return whether the model is measured after a round of training."""
        return round_ % self._every == 0 or round_ == self._last

    def measure(self, weights: Vector) -> dict[str, Any] | None:
        """Return what clients' records say of a model, with the error of each figure.

        None if no round of evaluation is left, or too few clients answered.
        """
        round_ = self._checkpoints.used_through() + 1
        if round_ > self.terms.rounds or not self._is_there():
            return None
        try:
            played = self._rounds.play(round_, weights, length=self._evaluation.length)
        except (TooFewClientsError, NotaryError) as error:
            logger.warning("The model was not measured on clients' records: %s", error)
            return None
        if played.total is None:
            return None
        noises = self.terms.mode.noises_in_sum(
            asked=played.report.answered,
            took_part=played.report.answered,
            honest=self.terms.honest_shares,
        )
        found = self._evaluation.read(
            played.total,
            clip_norm=self.terms.clip_norm,
            noise_std=self.terms.noise_std * math.sqrt(noises),
        )
        return {name: estimate.to_fields() for name, estimate in found.items()}

    def _is_there(self, *, gather: bool = False) -> bool:
        try:
            self._rounds.wait(gather=gather)
        except TooFewClientsError as error:
            logger.warning("The model is not measured on clients' records: %s", error)
            return False
        return True
