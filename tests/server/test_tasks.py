"""What a server does with the task of its terms: it measures, or refuses before anybody waits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coinflower.learning import make_task
from coinflower.protocol.modes import Mode
from coinflower.server.app import _measured, require_ready
from coinflower.server.journal import last_measured, metrics_of
from coinflower.server.settings import Settings
from tests.support.builders import make_terms
from tests.support.own_tasks import HERE

LINEAR = f"{HERE}:one_number"


def settings(folder: Path, targets: Any, **terms: Any) -> Settings:
    """A server that measures with rows of two numbers."""
    path = folder / "public.npz"
    np.savez(path, x=np.ones((len(targets), 2)), y=targets, kind="rows")
    fields = {"model": LINEAR, "classes": 1, "task": "regression", **terms}
    return Settings(
        terms=make_terms(Mode.TRUSTED, **fields), state=folder / "state", test_data=str(path)
    )


def test_test_data_of_numbers_measures_a_regression(tmp_path: Path) -> None:
    test, model, task = require_ready(settings(tmp_path, np.linspace(-1, 2, 9)))
    assert list(_measured(model, test, task) or {}) == ["rmse", "mae", "r2"]


@pytest.mark.parametrize(
    ("targets", "terms", "sentence"),
    [
        (np.linspace(0.1, 2, 9), {"task": "binary"}, "9 of 9 records cannot be used; record 0"),
        (np.zeros((9, 2)), {}, "each record has 2 targets, but the task takes 1"),
        (np.arange(9), {"task": "binary", "classes": 2}, "classes = 2 must be 1"),
        (np.arange(9), {"task": "nonsense"}, "task 'nonsense' is unknown"),
        (np.arange(9), {"model": f"{HERE}:three_numbers"}, r"shape \(3,\), but the task needs 1"),
        (np.arange(9), {"task": f"{HERE}:Centred"}, "changes with the other records"),
        (np.arange(9), {"task": f"{HERE}:Failing"}, r"fails in .*own_tasks.py, line \d+: Lookup"),
        (np.arange(9), {"task_options": {"loss": "cubic"}}, "loss = 'cubic'"),
    ],
)
def test_what_does_not_go_together_is_told_before_anybody_waits(
    tmp_path: Path, targets: Any, terms: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence):
        require_ready(settings(tmp_path, targets, **terms))


def test_own_metrics_that_begin_to_fail_do_not_end_a_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    test, model, _ = require_ready(settings(tmp_path, np.arange(9)))
    failing = make_task(f"{HERE}:Failing", {}, outputs=1)
    assert _measured(model, test, failing) is None
    assert "The model cannot be measured" in caplog.text


def test_lines_of_earlier_versions_have_accuracy_alone() -> None:
    rows = [{"round": 1, "accuracy": None}, {"round": 2, "accuracy": 0.5}]
    assert metrics_of(rows[0]) is None
    assert last_measured(rows) == (2, {"accuracy": 0.5})
    new = {"round": 3, "accuracy": None, "metrics": {"rmse": 2.0}}
    assert last_measured([*rows, new]) == (3, {"rmse": 2.0})
