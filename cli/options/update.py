"""The options of `run` and `simulate` that say how the model steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import click
import typer

if TYPE_CHECKING:
    from coinflower.learning import Update

_FIELDS = (
    *("optimizer", "learning_rate", "momentum", "nesterov", "weight_decay"),
    *("schedule", "warm_up_rounds", "averaging"),
)

OptimizerOption = Annotated[
    str,
    typer.Option(click_type=click.Choice(["sgd", "adam", "adamw"]), help="How the server steps."),
]
LearningRateOption = Annotated[
    float | None, typer.Option(help="Step size (default: 2 for sgd, 0.01 for adam and adamw).")
]
MomentumOption = Annotated[
    float | None, typer.Option(help="Momentum (default: 0 for sgd, 0.9 for adam and adamw).")
]
NesterovOption = Annotated[bool, typer.Option("--nesterov", help="Nesterov's momentum, for sgd.")]
WeightDecayOption = Annotated[float, typer.Option(help="Pull of the weights towards zero.")]
ScheduleOption = Annotated[
    str,
    typer.Option(
        click_type=click.Choice(["constant", "cosine"]), help="Step size over the rounds."
    ),
]
WarmUpOption = Annotated[int, typer.Option(help="Rounds until the step size has its full value.")]
AveragingOption = Annotated[
    float | None,
    typer.Option(help="Keep the running average of the weights with this decay, such as 0.99."),
]


def make_update(*values: Any) -> Update:
    """Return the update that the options above describe, given in their order."""
    from coinflower.learning import Update

    return Update(**update_fields(*values))


def update_fields(*values: Any) -> dict[str, Any]:
    """Return the options above by name, given in their order."""
    return dict(zip(_FIELDS, values, strict=True))
