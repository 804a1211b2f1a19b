"""The options of `run` and `simulate` that choose a model."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from coinflower.accounting.errors import UserError
from coinflower.protocol.policy import BUILT_IN_MODELS
from coinflower.protocol.strict import Option, Options

if TYPE_CHECKING:  # takes torch along
    from coinflower.learning import FineTuning

ModelName = Annotated[
    str | None,
    typer.Option(
        help=f"{', '.join(sorted(BUILT_IN_MODELS))} or package.module:function (default: by the "
        "data)."
    ),
]
ModelOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--model-option", help="Option of the model, such as widths=64,32; may be repeated."
    ),
]

ClippingOption = Annotated[
    Literal["flat", "automatic"],
    typer.Option(help="Scale gradients longer than C down to it, or nearly all of them to it."),
]

Pretrained = Annotated[
    Path | None,
    typer.Option(help="Public weights that the model begins with, a safetensors file."),
]
TrainedParts = Annotated[
    list[str] | None,
    typer.Option(
        "--trained-part",
        help="Beginning of the names of parameters that are trained; may be repeated (default: "
        "all).",
    ),
]
LoraRank = Annotated[
    int, typer.Option(help="Rank of what is learned beside each frozen Linear layer (LoRA).")
]
DeviceOption = Annotated[
    str | None,
    typer.Option(help="Where gradients are computed: cpu, cuda, mps or auto (default: cpu)."),
]


RowShape = Annotated[
    str | None, typer.Option(help="Shape of a record, such as 3,32,32; 12 for 12 columns.")
]


def parse_shape(text: str | None) -> tuple[int, ...] | None:
    """Return the shape that a text such as 3,32,32 says.

    Raises:
        UserError: It is none.
    """
    if text is None:
        return None
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise UserError(f"--row-shape {text} must be integers, such as 3,32,32.") from None


def make_tuning(
    pretrained: Path | None, trained_parts: list[str] | None, lora_rank: int
) -> FineTuning:
    """Return what the options of that name describe."""
    from coinflower.learning import FineTuning

    return FineTuning(
        pretrained=pretrained, trained_parts=tuple(trained_parts or ()), lora_rank=lora_rank
    )


def parse_options(texts: list[str] | None, *, of: str = "--model-option") -> Options:
    """Return what ``key=value`` texts say, numbers as numbers.

    Args:
        texts: The texts.
        of: The option that they were given to.

    Raises:
        UserError: A text has no key or no value, or a key is there twice.
    """
    options: Options = {}
    for text in texts or []:
        key, _, value = text.partition("=")
        if not key or not value:
            raise UserError(f"{of} {text} must be key=value, such as widths=64,32.")
        if key in options:
            raise UserError(f"{of} {key} is given twice; give it once.")
        options[key] = _value(value)
    return options


def _value(text: str) -> Option:
    if text in ("true", "false"):
        return text == "true"
    parts = text.split(",")
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            numbers = [kind(part) for part in parts]
            return numbers if len(numbers) > 1 else numbers[0]
    return text
