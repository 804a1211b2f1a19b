"""Checks whether a model and a data set fit together."""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from numpy.typing import NDArray
from torch import nn

from coinflower.accounting.errors import UserError
from coinflower.learning.data.dataset import Dataset
from coinflower.learning.data.records import Records, are_indices
from coinflower.learning.device import device_holding
from coinflower.learning.gradients.clipped import clipped_gradient_sum, refuse_mixing_layers
from coinflower.learning.mixing import refuse_mixing_model
from coinflower.learning.models.build import MADE_TO_MEASURE, MODELS, build_model
from coinflower.learning.models.sequences import Vocabulary
from coinflower.learning.models.tuning import ALL_OF_IT, FineTuning
from coinflower.learning.own_code import blamed_on_its_author, place_of
from coinflower.learning.tasks.independence import refuse_mixing_loss
from coinflower.learning.tasks.task import Task
from coinflower.learning.whole_gradient import require_whole_gradient
from coinflower.protocol.usual import usual_model

_TRIED = 32


def usual_model_for(records: Records) -> str:
    """Return the model of whoever does not choose one."""
    return usual_model(records.inputs.shape[1:], words=are_indices(records.inputs))


def shape_for(name: str, records: Records) -> tuple[int, ...] | None:
    """Return the shape of a row, if the model is made to measure."""
    return records.inputs.shape[1:] if name in MADE_TO_MEASURE else None


def model_for(
    name: str,
    data: Dataset,
    task: Task,
    *,
    options: Mapping[str, Any] | None = None,
    tuning: FineTuning = ALL_OF_IT,
    device: torch.device | None = None,
) -> nn.Module:
    """Return a model for a task on a public data set, tried on a blank row and on some others.

    Raises:
        UserError: If there is no such model, or it cannot take these rows or learn the task.
    """
    shape = shape_for(name, data.train)
    model = build_model(
        name, classes=task.outputs, row_shape=shape, options=options, tuning=tuning
    ).to(device)
    described = " with ".join(map(_described, data.train.arrays))
    with trial(name, f"the {described} of {data.name}"):
        try_out(model, name, data.train, task)
        with torch.no_grad():
            rows, _ = data.measuring.batch(slice(_TRIED))
            model(*(one.to(device_holding(model)) for one in rows))
    require_vocabulary(model, data.measuring)
    return model


def try_out(
    model: nn.Module, name: str, records: Records, task: Task, *, clip_norm: float = 1.0
) -> None:
    """Show now, not in a round, whether model, records and task go together.

    A blank row shows it, and a few random ones if the model is the user's own, so that it depends
    on no record.

    Args:
        model: The model.
        name: Its name.
        records: Rows that it is to take.
        task: What it is to learn.
        clip_norm: Bound on a record's gradient.

    Raises:
        UserError: The model answers with another number of outputs than the task has, the targets
            are for another task, the model or the loss mixes records, or weights are used past
            their layers.
        Exception: Whatever the user's own model raises.
    """
    blank, target = records.blank_row()
    taken = torch.from_numpy(task.take(target.numpy()).values)
    refuse_mixing_loss(task, taken)
    refuse_mixing_layers(model)
    device = device_holding(model)
    with torch.no_grad():
        answer = model(*(one.to(device) for one in blank))
    if tuple(answer.shape) != (1, task.outputs):
        raise UserError(
            f"model {name!r} answers a record with shape {tuple(answer.shape[1:])}, but the task "
            f"needs {task.outputs} number{'s' * (task.outputs != 1)}: check the model's last layer"
        )
    clipped_gradient_sum(model, blank, taken, clip_norm, loss=task.losses)
    require_whole_gradient(model, name, blank, taken, task)
    if name not in MODELS:
        refuse_mixing_model(model, name, blank, taken, task)


def require_vocabulary(model: nn.Module, public: Records) -> None:
    """Refuse a vocabulary that public rows go beyond: the words beyond would all be word 0.

    Raises:
        UserError: With the vocabulary that would do.
    """
    for part in model.modules():
        if isinstance(part, Vocabulary) and (most := int(public.inputs.max())) >= part.words:
            raise UserError(
                f"the public rows hold words up to {most}, but the model knows words 0 to "
                f"{part.words - 1}: state its option words, here at least {most + 1}"
            )


def _described(rows: NDArray[Any]) -> str:
    """Return what people call rows of this shape."""
    row = rows.shape[1:]
    indices = f", which are indices because they are {rows.dtype}," if are_indices(rows) else ""
    if len(row) == 3:
        return f"{' x '.join(map(str, row[1:] if row[0] == 1 else row))} images{indices}"
    return f"rows of {' x '.join(map(str, row))} values{indices}"


@contextlib.contextmanager
def trial(name: str, data: str) -> Iterator[None]:
    """Try a model on some data, and say in one sentence if they do not fit together.

    Args:
        name: The model's name.
        data: The data, as people call it.

    Raises:
        UserError: The model cannot take the data, or is the user's own and raised something.
    """
    try:
        yield
    except (RuntimeError, TypeError) as error:
        if not place_of(error):  # shapes, in a layer of torch's, or the number of arrays
            raise UserError(
                f"model {name!r} cannot take {data}: choose another model or other data"
            ) from error
        with blamed_on_its_author(f"model {name!r}"):
            raise
    except Exception:
        if name in MODELS:
            raise
        with blamed_on_its_author(f"model {name!r}"):
            raise
