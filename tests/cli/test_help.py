"""What a person sees before any command runs: at once, complete, and the same everywhere."""

import subprocess
import sys

import pytest

from coinflower.cli.main import COMMANDS
from tests.support.documents import all_commands

HEAVY = ("cryptography", "flwr", "matplotlib", "numpy", "opacus", "pydantic", "scipy", "torch")
ASK = """
import sys
from coinflower.cli.main import main
sys.argv = ["coinflower", *sys.argv[1:]]
try:
    main()
except SystemExit as end:
    assert not end.code, end.code
print("imported:", *sorted(set(sys.modules) & set(HEAVY)))
"""


def imported_by(*words):
    code = f"HEAVY = {HEAVY}\n{ASK}"
    done = subprocess.run(
        [sys.executable, "-c", code, *words], capture_output=True, text=True, check=True
    )
    return done.stdout.rpartition("imported:")[2].split()


@pytest.mark.parametrize("word", ["--help", "--version"])
def test_help_imports_nothing_heavy(word):
    assert imported_by(word) == []


def test_a_price_needs_neither_torch_nor_flower():
    asked = ["epsilon", "-p", "0.5", "-q", "0.1", "-d", "3", "--sigma", "1", "--delta", "1e-5"]
    assert imported_by(*asked) == ["numpy", "scipy"]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_the_list_says_how_the_help_of_the_command_begins(command):
    loaded = command.load()
    assert loaded.name == command.name
    assert loaded.help.split("\n\n")[0] == command.help


def test_every_option_and_argument_of_every_command_says_what_it_is():
    found = all_commands()
    assert len(found) > 20
    unsaid = [
        (name, param.name)
        for name, command in found.items()
        for param in command.params
        if not param.help
    ]
    assert unsaid == []
