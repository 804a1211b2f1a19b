"""Sums over fresh Poisson samples of the owner's records, or persons.

What is added up are clipped gradients, or the vectors of a query, which are as short.
"""

from __future__ import annotations

import logging
from collections import OrderedDict

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from coinflower.accounting.errors import UserError
from coinflower.client.data import require_schema
from coinflower.client.model import (
    ModelRules,
    build_fitting_model,
    fitting_task,
    require_query,
)
from coinflower.learning import (
    Randomness,
    Records,
    Task,
    capped_sum,
    clipped_gradient_sum,
    count_parameters,
    loss_of,
)
from coinflower.learning.data.persons import units_of
from coinflower.learning.data.tables.schema import Schema
from coinflower.learning.queries.evaluation import Evaluation
from coinflower.learning.queries.statistics import Statistics
from coinflower.protocol.foreign import printable
from coinflower.protocol.refusal import Refusal, RefusedError
from coinflower.protocol.terms import Terms
from coinflower.protocol.unit import Unit

Vector = npt.NDArray[np.float32]
Rows = npt.NDArray[np.int64]

logger = logging.getLogger("coinflower.client")
_MOST_CHARACTERS = 200
_KEPT_MODELS = 3


class GradientSums:
    """One owner's data and the models that were used last; one call at a time.

    Args:
        data: The owner's records.
        randomness: Where samples come from.
        rules: What the owner's policy says of models.
        unit: What is sampled and clipped as one.
        schema: How the data was read, if it is a table.
    """

    def __init__(
        self,
        data: Records,
        randomness: Randomness,
        rules: ModelRules,
        unit: Unit = Unit.RECORD,
        schema: Schema | None = None,
    ) -> None:
        self.data = data
        self._units = units_of(data, unit, "the data")
        self._of_persons = unit is Unit.PERSON
        self._randomness = randomness
        self._rules = rules
        self._schema = schema
        self._used: OrderedDict[object, tuple[Task, nn.Module]] = OrderedDict()

    def model_of(self, terms: Terms) -> nn.Module | None:
        """Return the model; those of experiments that run side by side are kept, and no more.

        None for statistics.
        """
        require_schema(self.data, terms)
        if not terms.has_model:
            self._statistics(terms)
            return None
        task, model = self._use(terms)
        if terms.query is not None:
            require_query(terms.query, task)
        return model

    def _statistics(self, terms: Terms) -> Statistics:
        assert terms.query is not None
        if self._schema is None or self._schema.hash != terms.schema:
            raise RefusedError(Refusal.SCHEMA, "statistics are of tables, read by a schema")
        try:
            return Statistics(terms.query, self._schema)
        except UserError as error:
            raise RefusedError(Refusal.QUERY, str(error)) from error

    def _use(self, terms: Terms) -> tuple[Task, nn.Module]:
        asked = repr(
            (
                *(terms.model, terms.classes, terms.row_shape, terms.model_options),
                *(terms.pretrained, terms.trained_parts, terms.lora_rank),
                *(terms.task, terms.task_options),
            )
        )
        if asked not in self._used:
            while len(self._used) >= _KEPT_MODELS:
                self._used.popitem(last=False)
            task = fitting_task(terms, self.data)
            self._used[asked] = (task, build_fitting_model(terms, task, self.data, self._rules))
        self._used.move_to_end(asked)
        return self._used[asked]

    def sampled_sum(self, terms: Terms, model: nn.Module | None) -> Vector:
        """Return the sum over a fresh sample, clipped as a whole if the terms have a cap."""
        units = self._randomness.sample_indices(len(self._units), terms.q)
        return capped_sum(self._sum_without_errors(terms, model, units), terms.cap_norm)

    def _sum_without_errors(self, terms: Terms, model: nn.Module | None, units: Rows) -> Vector:
        """Return the sum over some units; no single one shows as an error."""
        try:
            return self._sum_over(terms, model, units)
        except Exception:
            if not terms.mode.is_private:
                raise
            logger.exception("A gradient failed; whoever's own gradient fails counts as zero.")
        if not (terms.mode.client_adds_noise or terms.mode.answers_always):
            self._sum_over(terms, model, units[:0])  # raises errors that are not due to a record
        return self._sound_sum(terms, model, units)

    def _sum_over(self, terms: Terms, model: nn.Module | None, units: Rows) -> Vector:
        rows = self._units.rows_of(units)
        if model is None:
            whose = self._units.of[rows] if self._of_persons else None
            return self._statistics(terms).sum_over(self.data, rows, terms.clip_norm, whose)
        task, _ = self._use(terms)
        # A target that does not fit the task counts as zero: an error would reveal it.
        taken = task.take(self.data.targets[rows])
        rows = rows[taken.fit]
        inputs, _ = self.data.batch(rows)
        targets = torch.from_numpy(taken.values[taken.fit])
        persons = self._units.of[rows] if self._of_persons else None
        if terms.query is not None:
            evaluation = Evaluation(terms.query, task)
            return evaluation.sum_over(model, inputs, targets, terms.clip_norm, persons)
        weights = None if self.data.weights is None else self.data.weights[rows]
        targets, loss = loss_of(task, targets, weights)
        total: Vector = clipped_gradient_sum(
            model,
            inputs,
            targets,
            terms.clip_norm,
            clipping=terms.clipping,
            loss=loss,
            persons=None if persons is None else torch.from_numpy(persons),
        ).numpy()
        return total

    def length(self, terms: Terms) -> int:
        """Return how many numbers an answer has."""
        if not terms.has_model:
            return self._statistics(terms).length
        task, model = self._use(terms)
        if terms.query is not None:
            return Evaluation(terms.query, task).length
        return count_parameters(model)

    def _sound_sum(self, terms: Terms, model: nn.Module | None, units: Rows) -> Vector:
        """Return the sum over the units whose own gradient does not fail.

        One record or person must not move the sum by more than the clip norm, so one that fails may
        neither drop the others nor show as an error. Bisection finds it in few attempts.
        """
        try:
            return self._sum_over(terms, model, units)
        except Exception as error:
            if len(units) < 2:
                rows = ", ".join(map(str, self._units.rows_of(units)))
                said = printable(" ".join(str(error).split()), _MOST_CHARACTERS)
                logger.error("Of the records in use, counted from 0, %s is zero: %s", rows, said)
                return np.zeros(self.length(terms), np.float32)
        middle = len(units) // 2
        first = self._sound_sum(terms, model, units[:middle])
        return first + self._sound_sum(terms, model, units[middle:])
