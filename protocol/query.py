"""Queries: experiments that ask for sums of measurements in place of gradients.

A query is sampled, clipped, noised and charged like a training (docs/mathematics.md, "Queries").
Everything in it is public.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import Field

from coinflower.accounting.errors import UserError
from coinflower.protocol.strict import Listed, Positive, Text, strict

MetricName = Literal["accuracy", "auc", "loss", "rmse", "mae"]

_MOST_COLUMNS = 200
_OF_EVALUATIONS = ("metrics", "largest_loss", "largest_error")
_OF_STATISTICS = ("means", "histograms")


class QueryKind(StrEnum):
    """What a query is about."""

    EVALUATION = "evaluation"
    STATISTICS = "statistics"

    @property
    def told(self) -> str:
        """What it does with the data, in words."""
        return _TOLD[self]


_TOLD = {
    QueryKind.EVALUATION: "measured a model on this data",
    QueryKind.STATISTICS: "asked for counts, means or histograms of columns",
}


@strict
class Query:
    """What is asked of every record, or person.

    Attributes:
        kind: Whether a model is measured, or columns are counted.
        metrics: Of an evaluation: what is measured of the model.
        largest_loss: A larger loss counts as this one.
        largest_error: So does a larger distance between a number and what was predicted, in the
            unit that the model predicts in.
        means: Of statistics: columns of numbers whose mean is asked for.
        histograms: Columns whose values are counted: categories, or numbers in bins of equal width.
        bins: How many bins the scores of each class, or a column of numbers, are counted in.
    """

    kind: QueryKind
    metrics: Listed[MetricName] = ()
    largest_loss: Positive | None = None
    largest_error: Positive | None = None
    means: Listed[Text] = ()
    histograms: Listed[Text] = ()
    bins: Annotated[int, Field(ge=2, le=1000)] = 20

    def __post_init__(self) -> None:
        """Check that something is asked for, once, and nothing that belongs to the other kind."""
        is_evaluation = self.kind is QueryKind.EVALUATION
        for name in _OF_STATISTICS if is_evaluation else _OF_EVALUATIONS:
            if getattr(self, name) not in (None, ()):
                raise UserError(f"{name} does not go with a query of kind {self.kind}.")
        asked = [*self.metrics] if is_evaluation else [*self.means, *self.histograms]
        if not asked:
            what = "metrics" if is_evaluation else "means or histograms"
            raise UserError(f"a query of kind {self.kind} needs {what}.")
        for names in (self.metrics, self.means, self.histograms):
            if len(set(names)) < len(names):
                raise UserError(f"{', '.join(names)}: the query asks for one of them twice.")
        if len(asked) > _MOST_COLUMNS:
            raise UserError(f"a query asks for {_MOST_COLUMNS} columns at most, not {len(asked)}.")

    def to_fields(self) -> dict[str, Any]:
        """Return the query as plain values; what is left to its default is left out."""
        fields = {"kind": str(self.kind), "bins": self.bins}
        for name in (*_OF_EVALUATIONS, *_OF_STATISTICS):
            value = getattr(self, name)
            if value not in (None, ()):
                fields[name] = list(value) if isinstance(value, tuple) else float(value)
        return fields
