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
from coinflower.learning.tasks.targets import width_of
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
    return "classification" if data.class_count is not None else "regression"


def task_for(data: Dataset, name: str, options: Mapping[str, Any]) -> Task:
    """Return a task with as many outputs as the targets of some data need.

    Raises:
        UserError: The targets are for another task, or most of them do not fit.
    """
    outputs = data.class_count or width_of(data.train.targets)
    if _is_own(name):
        outputs = OwnTask(name, options).stated_outputs or outputs
    elif name != "regression" and data.train.target_scale is not None:
        raise UserError(
            f"{data.name}: the schema's target is a number, but task {name!r} takes classes: let "
            "its kind be category"
        )
    elif name == "binary":
        outputs = 1
        if (data.class_count or 2) > 2:
            raise UserError(
                f"{data.name} has {data.class_count} classes, but task 'binary' takes two: choose "
                "'classification'"
            )
    elif name == "classification":
        outputs = data.classes
    else:
        outputs = width_of(data.train.targets)
    task = make_task(name, options, outputs=outputs)
    for part in (data.train, data.test_part):
        if part is not None:
            task.take(part.targets).require_most(f"{data.name} for task {name!r}")
    return task


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
