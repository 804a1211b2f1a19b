"""Commands that are listed by a summary and imported when somebody calls them."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import click
import typer
import typer.main

from coinflower.cli.stated import StatedOnce


class Later(click.Command):
    """A command, or a group of them, whose module is imported when it is called.

    Args:
        name: What a person types.
        home: Where it is below `coinflower.cli`: a function or a Typer, as MODULE:NAME.
        summary: The first sentence of its help.
    """

    def __init__(self, name: str, home: str, summary: str) -> None:
        super().__init__(name, help=summary)
        self._home = home

    def load(self) -> click.Command:
        """Import and return the command itself."""
        module, _, attribute = self._home.partition(":")
        found = getattr(import_module(f"coinflower.cli.{module}"), attribute)
        app = found if isinstance(found, typer.Typer) else _alone(found)
        for info in app.registered_commands:
            info.cls = StatedOnce
        command = typer.main.get_command(app)
        command.name = self.name
        command.help = command.help or self.help
        return command

    def make_context(self, *args: Any, **extra: Any) -> click.Context:
        """Load the command; the context is the loaded command's."""
        return self.load().make_context(*args, **extra)


def _alone(command: Callable[..., None]) -> typer.Typer:
    app = typer.Typer(add_completion=False)
    app.command()(command)
    return app
