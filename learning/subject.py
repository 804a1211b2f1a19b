"""What the terms say of data, task and model, from public data and what somebody asked for."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from coinflower.learning.data.dataset import Dataset
from coinflower.learning.fit import shape_for, usual_model_for
from coinflower.learning.models.frozen import hash_of_weights
from coinflower.learning.models.tuning import FineTuning
from coinflower.learning.tasks.named import usual_task
from coinflower.learning.tasks.task import Task


def subject_of(
    data: Dataset,
    made: Task,
    *,
    model: str | None,
    model_options: Mapping[str, Any],
    tuning: FineTuning,
    task: str | None,
    task_options: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the fields of the terms that say what learns what from which rows.

    Args:
        data: Public data, or the data of a trial.
        made: The task.
        model: Name of the model; chosen by the data if None.
        model_options: Its options.
        tuning: What it begins with, and which of its parts are trained.
        task: Name of the task; chosen by the data if None.
        task_options: Its options.

    Raises:
        UserError: The file of weights cannot be read.
    """
    name = model or usual_model_for(data.train)
    return {
        "model": name,
        "classes": made.outputs,
        "task": task or usual_task(data),
        "task_options": dict(task_options),
        "row_shape": shape_for(name, data.train),
        "model_options": dict(model_options),
        **tuning_fields(tuning),
        "schema": data.train.schema,
    }


def tuning_fields(tuning: FineTuning) -> dict[str, Any]:
    """Return the fields of the terms that say what a model begins with and what is trained.

    Raises:
        UserError: The file of weights cannot be read.
    """
    weights: Path | None = tuning.pretrained
    return {
        "pretrained": None if weights is None else hash_of_weights(weights),
        "trained_parts": tuning.trained_parts,
        "lora_rank": tuning.lora_rank,
    }
