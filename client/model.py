"""The task and the model that the terms name, tried on this client's kind of data before use."""

from __future__ import annotations

from torch import nn

from coinflower.accounting.errors import UserError
from coinflower.learning import Records, Task, make_task, model_of, size_of, try_out
from coinflower.protocol.policy import Refusal, RefusedError
from coinflower.protocol.terms import Terms


def fitting_task(terms: Terms, data: Records) -> Task:
    """Return the task of the terms, if the targets are of its kind; the log names those that fail.

    Raises:
        RefusedError: It is unknown, has other options, or takes targets of another shape.
    """
    try:
        task = make_task(terms.task, terms.task_options, outputs=terms.classes)
        task.take(data.targets).log_misfits()
    except Exception as error:  # the owner's own task may fail in any way
        raise RefusedError(Refusal.TASK, str(error)) from error
    return task


def build_fitting_model(terms: Terms, task: Task, data: Records, most_parameters: int) -> nn.Module:
    """Return the model of the terms, if it is not too large and fits data and task.

    Raises:
        RefusedError: It has more parameters than the owner allows.
        ValueError: The model is unknown, or has another number of outputs than the task.
        Exception: Whatever the owner's own model raises.
    """
    shape = data.inputs.shape[1:]
    if terms.row_shape not in (None, shape):
        raise UserError(f"the model is made for rows of shape {terms.row_shape}, not {shape}")
    _require_at_most(most_parameters, size_of(terms))  # before there is memory for them
    model = model_of(terms)
    _require_at_most(most_parameters, sum(each.numel() for each in model.parameters()))
    try_out(model, terms.model, data, task, clip_norm=terms.clip_norm)
    return model


def _require_at_most(most_parameters: int, parameters: int | None) -> None:
    if parameters is not None and parameters > most_parameters:
        detail = f"the model has {parameters} parameters > most_parameters = {most_parameters}"
        raise RefusedError(Refusal.EXTENT, detail)
