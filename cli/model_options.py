"""The options of `run` and `simulate` that choose a model."""

from __future__ import annotations

import contextlib
from typing import Annotated, Literal

import typer

from coinflower.accounting.errors import UserError
from coinflower.protocol.policy import BUILT_IN_MODELS
from coinflower.protocol.strict import Option, Options

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
