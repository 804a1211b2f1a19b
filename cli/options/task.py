"""The options of `run` and `simulate` that say what is learned."""

from __future__ import annotations

from typing import Annotated

import click
import typer

from coinflower.accounting.errors import UserError
from coinflower.cli.options.model import parse_options
from coinflower.protocol.strict import Options

TaskName = Annotated[
    str | None,
    typer.Option(
        help="What is learned: classification, binary, multilabel, regression or "
        "package.module:Task (default: by the targets)."
    ),
]
LossName = Annotated[
    str | None,
    typer.Option(
        click_type=click.Choice(["squared", "huber"]), help="Loss of regression (default: squared)."
    ),
]
HuberThreshold = Annotated[
    float | None,
    typer.Option(help="Distance beyond which the Huber loss grows linearly (default: 1)."),
]
ClassWeights = Annotated[
    str | None,
    typer.Option(help="What each class weighs in the loss, such as 1,5; from public knowledge."),
]
TaskOptions = Annotated[
    list[str] | None,
    typer.Option("--task-option", help="Option of a task of your own, key=value; may be repeated."),
]


def make_task_options(
    loss: str | None,
    huber_threshold: float | None,
    class_weights: str | None,
    more: list[str] | None,
) -> Options:
    """Return the task's options that the options above state.

    Raises:
        UserError: A weight is no number, or an option is given twice.
    """
    named: dict[str, str | float | list[float] | None] = {
        "loss": loss,
        "huber_threshold": huber_threshold,
        "class_weights": None if class_weights is None else _weights(class_weights),
    }
    options: Options = {name: value for name, value in named.items() if value is not None}
    for name, value in parse_options(more, of="--task-option").items():
        if name in options:
            raise UserError(f"--task-option {name} is stated twice; state it once.")
        options[name] = value
    return options


def _weights(text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise UserError(
            f"--class-weights {text} must be numbers with commas between, such as 1,5."
        ) from None
