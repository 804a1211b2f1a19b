"""The options of `run` and `simulate` that say how the model steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import click
import typer

if TYPE_CHECKING:
    from coinflower.learning import Update

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


@dataclass(frozen=True, kw_only=True)
class UpdateOptions:
    """How the model steps."""

    optimizer: OptimizerOption = "sgd"
    learning_rate: LearningRateOption = None
    momentum: MomentumOption = None
    nesterov: NesterovOption = False
    weight_decay: WeightDecayOption = 0.0
    schedule: ScheduleOption = "constant"
    warm_up_rounds: WarmUpOption = 0
    averaging: AveragingOption = None

    def fields(self) -> dict[str, Any]:
        """Return the fields of an update."""
        return dict(vars(self))

    def update(self) -> Update:
        """Return the update that they describe."""
        from coinflower.learning import Update

        return Update(**self.fields())
