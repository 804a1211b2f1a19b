"""Whether a model of the user's own keeps the records of a batch apart."""

import contextlib
import math
from collections.abc import Iterator

import torch
from torch import nn

from coinflower.accounting.errors import UserError
from coinflower.learning.device import device_holding
from coinflower.learning.gradients.clipped import clipped_gradient_sum
from coinflower.learning.gradients.per_record import Inputs, trainable_parameters
from coinflower.learning.seeded import seeded
from coinflower.learning.tasks.independence import random_targets
from coinflower.learning.tasks.task import Task
from coinflower.learning.whole_gradient import require_whole_gradient

_RECORDS = 3  # there may be memory for few at a time
_TRIALS = 3  # of gradients: three records may be in order by chance
_CLIP_NORM = 1e-3  # so small that about every gradient is clipped
_SAME_SHAPE = 1e-5  # rounding of numbers that are computed in the same order
_OTHER_SHAPE = 1e-3  # generous for deep models in single precision
_GRADIENTS = 0.02  # rounding moves a few of a million units across the bend of their ReLU


def refuse_mixing_model(
    model: nn.Module, name: str, blank: Inputs, target: torch.Tensor, task: Task
) -> None:
    """Refuse a model in whose own code one record's gradient depends on other records.

    Tried on random rows and weights, which are public. A record must get the same answer whatever
    the others are, alone as among them, and after other batches as before; and the clipped
    gradients of a batch must be those of its records, one by one. Where a model draws at random,
    only the first of these can be compared, unless eval mode stops that.

    Args:
        model: The model; its weights are left as they were.
        name: Its name.
        blank: A row, for shapes and types.
        target: Its target.
        task: What is learned.

    Raises:
        UserError: The model mixes records, keeps something of them, or uses weights past their
            layers.
    """
    generator = torch.Generator().manual_seed(0)

    def drawn() -> tuple[Inputs, torch.Tensor]:
        rows = tuple(_random_rows(one, generator).to(device_holding(model)) for one in blank)
        return rows, next(random_targets(task, target, _RECORDS, generator))

    with _other_weights(model, generator):
        rows, targets = drawn()
        answers = _compare_neighbours(model, name, rows)
        with _without_chance(model, rows, answers) as is_certain:
            if is_certain:
                _compare_alone(model, name, rows)
                for _ in range(_TRIALS):
                    _compare_sums(model, name, *drawn(), task)
            count = _RECORDS if is_certain else 1  # else chance would tell two ways apart
            some = tuple(one[:count] for one in rows)
            require_whole_gradient(model, name, some, targets[:count], task, rounding=_GRADIENTS)


def _compare_neighbours(model: nn.Module, name: str, rows: Inputs) -> torch.Tensor:
    """Give one record another content: nobody else's answer may change. Return all answers."""
    before = _answers(model, rows)
    _compare_again(model, name, rows, before)
    for changed in (0, _RECORDS - 1):
        other = tuple(one.clone() for one in rows)
        for one in other:
            one[changed] = 1 - one[changed]  # beyond all others, where they are not integers
        after = _answers(model, other)
        others = torch.arange(_RECORDS, device=before.device) != changed
        if not _same(before[others], after[others], _SAME_SHAPE):
            raise _mixes(name)
    return before


def _compare_again(model: nn.Module, name: str, rows: Inputs, before: torch.Tensor) -> None:
    if not _same(before, _answers(model, rows), _SAME_SHAPE):
        raise UserError(
            f"model {name!r} answers the same records differently the second time, so clipping "
            "cannot bound what one record does: keep nothing from one batch to the next, and draw "
            "at random by torch alone"
        )


def _compare_alone(model: nn.Module, name: str, rows: Inputs) -> None:
    alone = [_answers(model, tuple(one[i : i + 1] for one in rows)) for i in range(_RECORDS)]
    if not _same(_answers(model, rows), torch.cat(alone), _OTHER_SHAPE):
        raise _mixes(name)


def _compare_sums(
    model: nn.Module, name: str, rows: Inputs, targets: torch.Tensor, task: Task
) -> None:
    def clipped(some: slice) -> torch.Tensor:
        return clipped_gradient_sum(
            model,
            tuple(one[some] for one in rows),
            targets[some],
            _CLIP_NORM,
            loss=task.losses,
            chunk_size=_RECORDS,
        )

    together = clipped(slice(None))
    alone = sum(clipped(slice(i, i + 1)) for i in range(_RECORDS))
    if float((together - alone).norm()) > _GRADIENTS * _RECORDS * _CLIP_NORM:
        raise UserError(
            f"model {name!r} lets no gradient be told from those of other records, so clipping "
            "cannot bound what one record does: give every layer all records, in their order, in "
            "the first dimension"
        )


def _mixes(name: str) -> UserError:
    return UserError(
        f"model {name!r} mixes the records of a batch: its answer to one changes with the others, "
        "so clipping cannot bound what one record does: compute each row from that row alone, and "
        "let the first dimension count the records in every layer (batch_first=True)"
    )


def _answers(model: nn.Module, rows: Inputs, seed: int = 0) -> torch.Tensor:
    with torch.no_grad():
        answers: torch.Tensor = seeded(lambda: model(*rows), seed)
    if answers.dim() < 1 or len(answers) != len(rows[0]):
        raise UserError(
            f"the model answered {len(rows[0])} records with shape {tuple(answers.shape)}; it must "
            "return one row per record, the batch dimension first"
        )
    return answers.float()


def _same(one: torch.Tensor, other: torch.Tensor, rounding: float) -> bool:
    return torch.allclose(one, other, rtol=rounding, atol=rounding / 100, equal_nan=True)


def _random_rows(blank: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Return rows of numbers from 0.1 to 0.5, or of indices 0 and 1, which any vocabulary has."""
    shape = (_RECORDS, *blank.shape[1:])
    if blank.is_floating_point():
        return torch.rand(shape, generator=generator).to(blank.dtype) * 0.4 + 0.1
    return torch.randint(2, shape, generator=generator).to(blank.dtype)


@contextlib.contextmanager
def _other_weights(model: nn.Module, generator: torch.Generator) -> Iterator[None]:
    """Add random numbers to the weights: behind one that begins at zero nothing would show."""
    parameters = trainable_parameters(model)
    before = [parameter.detach().clone() for parameter in parameters]
    try:
        with torch.no_grad():
            for parameter in parameters:
                inputs = parameter[0].numel() if parameter.dim() > 1 else 1
                noise = torch.randn(parameter.shape, generator=generator) / math.sqrt(inputs)
                parameter.add_(noise.to(parameter) / 10)
        yield
    finally:
        with torch.no_grad():
            for parameter, values in zip(parameters, before, strict=True):
                parameter.copy_(values)


@contextlib.contextmanager
def _without_chance(model: nn.Module, rows: Inputs, answers: torch.Tensor) -> Iterator[bool]:
    """Stop a model from drawing at random if that can be done, and say whether it does not."""
    if _same(answers, _answers(model, rows, seed=1), _SAME_SHAPE):
        yield True
        return
    modes = {module: module.training for module in model.modules()}
    # Layers that learn may need their mode for gradients; those that draw mostly do not learn.
    for module in modes:
        if not trainable_parameters(module, recurse=False):
            module.training = False
    try:
        yield _same(_answers(model, rows), _answers(model, rows, seed=1), _SAME_SHAPE)
    finally:
        for module, mode in modes.items():
            module.training = mode
