"""Tasks by name."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping
from typing import Any

from coinflower.accounting.errors import UserError
from coinflower.learning.data.dataset import Dataset
from coinflower.learning.tasks.classification import Binary, Classification, Multilabel
from coinflower.learning.tasks.own import OwnTask
from coinflower.learning.tasks.regression import Regression
from coinflower.learning.tasks.targets import take_classes, width_of
from coinflower.learning.tasks.task import Task

TASKS: dict[str, type[Classification | Binary | Multilabel | Regression]] = {
    "classification": Classification,
    "binary": Binary,
    "multilabel": Multilabel,
    "regression": Regression,
}


def make_task(name: str, options: Mapping[str, Any], *, outputs: int) -> Task:
    """Return a task.

    Args:
        name: A built-in task, or ``package.module:Task`` for a class of the user's own.
        options: Its options, all public.
        outputs: How many numbers the model answers with.

    Raises:
        UserError: It is unknown, or an option or the number of outputs does not suit it.
    """
    if _is_own(name):
        return OwnTask(name, options, outputs=outputs)
    kind = TASKS[name]
    known = [field.name for field in dataclasses.fields(kind) if field.name != "outputs"]
    for option in options:
        if option not in known:
            raise UserError(f"task {name!r} has no option {option!r}; it has {', '.join(known)}")
    return kind(**options, outputs=outputs)


def usual_task(data: Dataset) -> str:
    """Return the task of whoever does not choose one."""
    if data.class_count is not None:
        return "classification"
    # Of a table's targets, those that were not scaled are categories, and several of them here.
    are_labels = data.train.schema is not None and data.train.target_scale is None
    return "multilabel" if are_labels else "regression"


def task_for(data: Dataset, name: str, options: Mapping[str, Any]) -> Task:
    """Return a task with as many outputs as the targets of some data need.

    Raises:
        UserError: The targets are for another task, or most of them do not fit.
    """
    task = make_task(name, options, outputs=_outputs_for(data, name, options))
    for part in (data.train, data.test_part):
        if part is not None:
            task.take(part.targets).require_most(f"{data.name} for task {name!r}")
    return task


def _outputs_for(data: Dataset, name: str, options: Mapping[str, Any]) -> int:
    width = width_of(data.train.targets)
    if _is_own(name):
        return OwnTask(name, options).stated_outputs or data.class_count or width
    if name != "regression" and data.train.target_scale is not None:
        raise UserError(
            f"{data.name}: the schema's target is a number, but task {name!r} takes classes: let "
            "its kind be category"
        )
    if name == "binary" and (data.class_count or 2) > 2:
        raise UserError(
            f"{data.name} has {data.class_count} classes, but task 'binary' takes two: choose "
            "'classification'"
        )
    if name == "classification":
        return data.class_count or _classes_among(data)
    return 1 if name == "binary" else width


def _classes_among(data: Dataset) -> int:
    """Return how many classes there are, if some targets are no classes."""
    taken = take_classes(data.train.targets)
    taken.require_most(f"{data.name} for task 'classification'")
    return max(2, int(taken.values.max(initial=0)) + 1)


def _is_own(name: str) -> bool:
    """Return whether a task is of the user's own.

    Raises:
        UserError: It is neither that nor built in.
    """
    module, colon, kind = name.partition(":")
    if not (colon and module and kind) and name not in TASKS:
        near = difflib.get_close_matches(name, TASKS, n=1, cutoff=0.5)
        hint = f" (did you mean {near[0]}?)" if near else ""
        raise UserError(
            f"task {name!r} is unknown{hint}: choose one of {', '.join(TASKS)}, or "
            "package.module:Task"
        )
    return name not in TASKS
