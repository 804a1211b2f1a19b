"""Options that several commands share, bundled: a command takes them as one value."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import typing
from collections.abc import Callable, Iterator
from typing import Any


def bundling(command: Callable[..., None]) -> Callable[..., None]:
    """Let a command have a dataclass of options as a parameter; its fields are the options.

    Typer sees one parameter for each field, in the place of the parameter.
    """
    hints: dict[str, Any] = typing.get_type_hints(command, include_extras=True)
    bundles: dict[str, Any] = {
        name: kind for name, kind in hints.items() if dataclasses.is_dataclass(kind)
    }
    parameters = [
        option
        for name, parameter in inspect.signature(command).parameters.items()
        for option in (
            _options_of(bundles[name])
            if name in bundles
            else [parameter.replace(annotation=hints[name], kind=inspect.Parameter.KEYWORD_ONLY)]
        )
    ]

    @functools.wraps(command)
    def unbundled(**values: Any) -> None:
        for name, kind in bundles.items():
            values[name] = kind(**{each.name: values.pop(each.name) for each in _fields_of(kind)})
        command(**values)

    made: Any = unbundled
    made.__signature__ = inspect.Signature(parameters)
    made.__annotations__ = {option.name: option.annotation for option in parameters}
    return unbundled


def _options_of(kind: Any) -> Iterator[inspect.Parameter]:
    hints = typing.get_type_hints(kind, include_extras=True)
    for each in _fields_of(kind):
        yield inspect.Parameter(
            each.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=each.default,
            annotation=hints[each.name],
        )


def _fields_of(kind: Any) -> tuple[dataclasses.Field[Any], ...]:
    return dataclasses.fields(kind)
