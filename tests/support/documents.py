"""What documents say: the blocks of the operator's guide, and command lines, parsed but not run."""

from __future__ import annotations

import functools
import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click
from typer.main import get_command

from coinflower.cli.main import COMMANDS, app

GUIDE = Path(__file__).parents[2] / "deploy" / "README.md"
_BLOCK = re.compile(r"^```(sh|toml) ([a-z. ]+)\n(.*?)^```", re.M | re.S)
_JOINTS = {"&&", "|", ";"}


def blocks() -> dict[str, str]:
    """Return the marked blocks of the guide by their mark, as in "server run"."""
    found = {mark: text for _, mark, text in _BLOCK.findall(GUIDE.read_text())}
    assert len(found) == len(_BLOCK.findall(GUIDE.read_text())), "a mark is used twice"
    return found


def block(mark: str, client: str = "ward-7", index: int = 0) -> str:
    """Return a block as it is written, for a client of another name than the guide's."""
    text = blocks()[mark].strip()
    return text.replace("ward-7", client).replace("index = 0", f"index = {index}")


@functools.cache
def program() -> click.Command:
    """Return the whole tree of commands, all loaded; building it takes a while."""
    root = get_command(app)
    assert isinstance(root, click.Group)
    root.commands = {str(command.name): command.load() for command in COMMANDS}
    return root


def commands_in(line: str) -> Iterator[list[str]]:
    """Yield the commands of a line of a shell, each as a list of words; comments are left out."""
    words: list[str] = []
    for word in [*shlex.split(line, comments=True), ";"]:
        if word not in _JOINTS:
            words.append(word)
        elif words:
            yield words
            words = []


def command_of(words: Sequence[str]) -> tuple[click.Command, str, list[str]]:
    """Return the program's command that these words lead to, its name, and the words left over."""
    command, names, left = program(), list[str](), list(words)
    while isinstance(command, click.Group) and left and not left[0].startswith("-"):
        names.append(left.pop(0))
        if names[-1] not in command.commands:
            raise click.UsageError(f"there is no command {' '.join(names)!r}")
        command = command.commands[names[-1]]
    return command, " ".join(names), left


def parsed(line: str) -> dict[str, Any]:
    """Let the program parse what follows its name, as far as it goes without running it."""
    command, name, words = command_of(shlex.split(line, comments=True))
    return command.make_context(name, words).params


def all_commands() -> dict[str, click.Command]:
    """Return every command that does something, by its full name."""
    return dict(_below(program(), "coinflower"))


def _below(command: click.Command, name: str) -> Iterator[tuple[str, click.Command]]:
    for key, part in getattr(command, "commands", {}).items():
        if not isinstance(part, click.Group) or part.invoke_without_command:
            yield f"{name} {key}", part
        yield from _below(part, f"{name} {key}")
