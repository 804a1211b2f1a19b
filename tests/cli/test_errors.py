"""A mistake is one sentence, a defect keeps its trace, and any terminal can show both."""

import functools
import json
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from coinflower.accounting.rounding import rounded_down, rounded_up
from coinflower.cli import main as cli

PROGRAM = Path(sys.executable).parent / "coinflower"
QUESTION = ["epsilon", "-p", "0.2", "-q", "0.1", "-d", "3", "--sigma", "1.5", "--delta", "1e-5"]


@functools.cache  # several tests ask the same
def run(*arguments, **environment):
    """Run the installed program; returns exit code, output and errors as bytes."""
    done = subprocess.run(
        [PROGRAM, *map(str, arguments)],
        capture_output=True,
        check=False,
        env={"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", **environment},
    )
    return done.returncode, done.stdout, done.stderr


def test_the_version_is_that_of_the_package():
    assert run("--version") == (0, f"coinflower {version('coinflower')}\n".encode(), b"")


@pytest.mark.parametrize("place", [0, 1, -1])
def test_a_mistake_is_one_sentence_and_has_a_trace_if_asked(place):
    wrong = ["0" if word == "0.2" else word for word in QUESTION]
    code, out, err = run(*wrong)
    assert (code, out) == (2, b"")
    assert err == b"Error: p = 0.0 is not a probability in (0, 1].\n"
    wrong.insert(place, "--debug") if place >= 0 else wrong.append("--debug")
    code, out, traced = run(*wrong)
    assert (code, out) == (2, b"")
    assert b"Traceback" in traced
    assert traced.endswith(err)


def test_a_defect_is_not_shown_as_a_mistake(monkeypatch):
    def defective(*_, **__):
        raise ValueError("a sum came out wrong")

    monkeypatch.setattr("coinflower.accounting.validation.require_probability", defective)
    monkeypatch.setattr(sys, "argv", ["coinflower", *QUESTION])
    with pytest.raises(ValueError, match="a sum came out wrong"):  # Python exits with 1 on it
        cli.main()


@pytest.mark.parametrize(
    ("source", "line", "sentence"),
    [
        ("import torch\n\ndef net(classes)\n", 3, "SyntaxError"),
        ("import torch\nimport no_such_thing\n", 2, "ModuleNotFoundError"),
        ("def net(classes):\n    return classes.layers\n", 2, "AttributeError"),
        (
            "from torch import nn\n\nclass Net(nn.Module):\n    def __init__(self, classes):\n"
            "        super().__init__()\n        self.last = nn.Linear(64, classes)\n"
            "    def forward(self, x):\n        return self.last(x.flatten(1))[undefined]\n\n"
            "def net(classes):\n    return Net(classes)\n",
            8,
            "NameError",
        ),
    ],
)
def test_an_error_in_ones_own_model_is_one_sentence_with_its_place(
    program, monkeypatch, tmp_path, source, line, sentence
):
    own = tmp_path / "own.py"
    own.write_text(source)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    command = ["run", "--clients", "2", "--rounds", "1", "--model", "own:net", "--out", "out"]
    code, out, told = program(*command)
    sys.modules.pop("own", None)
    assert (code, out) == (2, "")
    assert f"model 'own:net' fails in {own}, line {line}: {sentence}" in told
    assert told.count("\n") == 1
    assert not (tmp_path / "out").exists()
    traced = program(*command, "--debug")[2]
    sys.modules.pop("own", None)
    assert "Traceback" in traced
    assert traced.endswith(told)


@pytest.mark.parametrize("encoding", ["latin-1", "ascii", "utf-8"])
def test_any_encoding_is_written(encoding):
    code, out, err = run(*QUESTION, PYTHONIOENCODING=encoding)
    assert (code, err) == (0, b"")
    exact = json.loads(run(*QUESTION, "--json")[1])
    letter, sign = ("ε", "≥") if encoding == "utf-8" else ("epsilon", ">=")
    told = out.decode(encoding)
    assert f"{letter} = {rounded_up(exact['epsilon'], 6)} at" in told
    assert f"{letter} {sign} {rounded_down(exact['realised_epsilon'], 6)};" in told


def test_a_narrow_window_keeps_every_figure():
    command = ["compare", "-p", "0.2", "-q", "0.1", "-d", "3", "--sigma", "1.5", "--delta", "1e-5"]
    code, out, _ = run(*command, COLUMNS="60", PYTHONIOENCODING="utf-8")
    assert code == 0
    table = [line for line in out.decode().splitlines() if line[0] in "┏┃┡│└"]
    assert max(map(len, table)) <= 60
    for row in json.loads(run(*command, "--json")[1])["schemes"]:
        shown = rounded_down if row["scheme"] == "realised" else rounded_up
        assert shown(row["epsilon"], 6) in out.decode()


PLAN = ["plan", "--clients", "100", "-d", "500", "--epsilon", "2", "--delta", "1e-5"]
PLAN += ["--rounds", "100", "--batch", "100"]


@pytest.mark.parametrize("encoding", ["latin-1", "utf-8"])
def test_a_narrow_table_of_many_columns_cuts_no_figure(encoding):
    code, out, _ = run(*PLAN, COLUMNS="60", PYTHONIOENCODING=encoding)
    assert code == 0
    wide = run(*PLAN, COLUMNS="200", PYTHONIOENCODING=encoding)[1]

    def figures(table):
        lines = table.decode(encoding).replace("│", "|").splitlines()
        return [[cell.strip() for cell in line.split("|")] for line in lines if "%" in line]

    assert len(figures(out)) > 2
    assert figures(out) == figures(wide)


def test_columns_are_as_wide_as_spelled_out_letters():
    out = run(*PLAN, COLUMNS="200", PYTHONIOENCODING="latin-1")[1].decode("latin-1")
    table = [line for line in out.splitlines() if line[:1] in {"+", "|"}]
    assert "epsilon" in table[1]
    assert len(set(map(len, table))) == 1
