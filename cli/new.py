"""The command that begins a project of one's own with a copy of an example."""

from __future__ import annotations

import shutil
from importlib.resources import as_file, files
from pathlib import Path
from typing import Annotated

import click
import typer

from coinflower.accounting.errors import UserError
from coinflower.deploy.terminal import say

LIKE = {
    "tabular": "hospital",
    "regression": "bank",
    "images": "images",
    "sequences": "sequences",
    "own-loss": "own-loss",
}
"""What a project is like, and the folder of the example that it is copied from."""
_LEFT_BEHIND = shutil.ignore_patterns("data", "runs", "__pycache__", "*.db*")


def new(
    folder: Annotated[Path, typer.Argument(help="A folder that does not exist yet, or is empty.")],
    like: Annotated[
        str, typer.Option(click_type=click.Choice(list(LIKE)), help="What your data is like.")
    ] = "tabular",
) -> None:
    """Begin a project: data to try, a schema, a policy and the command to type."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder} is not empty; choose another folder: nothing is overwritten.")
    with as_file(files("coinflower") / "examples" / LIKE[like]) as example:
        shutil.copytree(example, folder, ignore=_LEFT_BEHIND, dirs_exist_ok=True)
    say(f"Wrote {', '.join(sorted(path.name for path in folder.iterdir()))} into {folder}.")
    say(f"Read {folder / 'README.md'}; it begins with the one command to type there.")
