"""Metrics of models on public test data. What the data does not define is None, never NaN."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coinflower.learning.tasks.task import Metrics

_BINS = 10
_SHARES = ("accuracy", "positives")
_TITLES = {
    "macro_f1": "macro F1",
    "auc": "AUC",
    "average_precision": "average precision",
    "calibration_error": "calibration error",
    "positives": "share of positives",
    "rmse": "RMSE",
    "mae": "MAE",
    "r2": "R²",
}

Array = NDArray[Any]


def title_of(name: str) -> str:
    """Return what people call a metric."""
    return _TITLES.get(name, name)


def shown(name: str, value: float | None) -> str:
    """Return the value of a metric as people read it."""
    if value is None:
        return "not defined"
    return f"{value:.1%}" if is_share(name) else f"{value:.4g}"


def sentence(metrics: Metrics | None) -> str:
    """Return all metrics in a line."""
    if not metrics:
        return "not measured"
    return ", ".join(f"{title_of(name)} {shown(name, value)}" for name, value in metrics.items())


def private_sentence(metrics: Mapping[str, Mapping[str, float | None]] | None) -> str:
    """Return in a line what clients' records said, each figure with twice its standard error."""
    return ", ".join(
        f"{title_of(name)} {_with_error(name, figure['value'], figure['standard_error'])}"
        for name, figure in (metrics or {}).items()
    )


def _with_error(name: str, value: float | None, error: float | None) -> str:
    if value is None or error is None:
        return "not found: too much noise"
    return f"{shown(name, value)} ± {shown(name, 2 * error)}"


def brief(metrics: Metrics | None) -> str:
    """Return the headline and what must stand beside it: no accuracy stands alone."""
    return sentence(dict(list((metrics or {}).items())[:2]))


def is_share(name: str) -> bool:
    """Return whether a metric is a share, which people read in percent."""
    return name in _SHARES


def class_metrics(logits: Array, classes: Array) -> Metrics:
    """Return accuracy and macro F1, which rare classes weigh in as much as frequent ones."""
    told, kinds = logits.argmax(axis=1), logits.shape[1]
    # Not scikit-learn's f1_score: importing that takes longer than many a training's evaluations.
    right = np.bincount(classes[told == classes], minlength=kinds)
    both = np.bincount(told, minlength=kinds) + np.bincount(classes, minlength=kinds)
    occurs = both > 0
    return {
        "accuracy": float((told == classes).mean()),
        "macro_f1": float(np.mean(2 * right[occurs] / both[occurs])),
    }


def binary_metrics(logits: Array, labels: Array) -> Metrics:
    """Return how well two classes are ranked and told apart, and the share of positives.

    The calibration error is the mean distance, over ten bins of equal width, between the
    probability that the model states and the share of positives.
    """
    scores = logits.astype(np.float64)
    accuracy = float(((scores > 0) == (labels == 1)).mean())
    return {
        "auc": _auc(scores, labels),
        "average_precision": _average_precision(scores, labels),
        "calibration_error": _calibration_error(scores, labels),
        "accuracy": accuracy,
        "positives": float(labels.mean(dtype=np.float64)),
    }


def label_metrics(logits: Array, labels: Array) -> Metrics:
    """Return means over the labels, each counted if the test data defines it."""
    from sklearn.metrics import f1_score

    columns = [
        (logits[:, one].astype(np.float64), labels[:, one]) for one in range(labels.shape[1])
    ]
    return {
        "auc": _mean([_auc(*column) for column in columns]),
        "average_precision": _mean([_average_precision(*column) for column in columns]),
        "macro_f1": _mean(
            [float(f1_score(wanted, told > 0, zero_division=0.0)) for told, wanted in columns]
        ),
    }


def number_metrics(predicted: Array, numbers: Array) -> Metrics:
    """Return errors in the unit of the numbers, and the share of their variance that is explained.

    R² is a mean over the numbers that vary.
    """
    from sklearn.metrics import mean_absolute_error, r2_score, root_mean_squared_error

    told, wanted = predicted.astype(np.float64), numbers.astype(np.float64)
    if not np.isfinite(told).all():
        return {"rmse": None, "mae": None, "r2": None}
    vary = np.ptp(wanted, axis=0) > 0
    return {
        "rmse": _finite(root_mean_squared_error(wanted, told)),
        "mae": _finite(mean_absolute_error(wanted, told)),
        "r2": _finite(r2_score(wanted[:, vary], told[:, vary])) if vary.any() else None,
    }


def _auc(scores: Array, labels: Array) -> float | None:
    from sklearn.metrics import roc_auc_score

    if not np.isfinite(scores).all() or np.ptp(labels) == 0:
        return None
    return float(roc_auc_score(labels, scores))


def _average_precision(scores: Array, labels: Array) -> float | None:
    from sklearn.metrics import average_precision_score

    if not np.isfinite(scores).all() or not labels.any():
        return None
    return float(average_precision_score(labels, scores))


def _calibration_error(scores: Array, labels: Array) -> float | None:
    from scipy.special import expit

    if not np.isfinite(scores).all():
        return None
    stated = expit(scores)
    bins = np.minimum((stated * _BINS).astype(np.int64), _BINS - 1)
    gaps = np.bincount(bins, weights=stated - labels, minlength=_BINS)
    return float(np.abs(gaps).sum() / len(labels))


def _mean(values: list[float | None]) -> float | None:
    defined = [value for value in values if value is not None]
    return sum(defined) / len(defined) if defined else None


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None
