"""Every example runs with the command that stands in it, and a new project is a copy of one."""

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from coinflower.cli.main import app
from coinflower.cli.new import LIKE
from coinflower.protocol.policy import load_policy
from coinflower.protocol.terms import Terms

EXAMPLES = Path(__file__).parents[2] / "examples"
NAMES = sorted(path.name for path in EXAMPLES.iterdir() if path.is_dir())
METRICS = {
    "hospital": {"auc", "average_precision", "positives"},
    "bank": {"rmse", "mae", "r2"},
    "images": {"accuracy", "macro_f1"},
    "sequences": {"auc", "average_precision", "positives"},
    "own-loss": {"kept", "pinball"},
}
SHELL = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def in_folder(folder: Path, command: str) -> str:
    """Run a line of a README as a person in that folder would, and return what it prints."""
    binaries = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-ec", command],
        cwd=folder,
        env={**os.environ, "PATH": binaries},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("name", NAMES)
def test_an_example_runs_with_the_command_that_stands_in_it(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "project"
    shutil.copytree(EXAMPLES / name, folder, ignore=shutil.ignore_patterns("data", "runs"))
    first, second = SHELL.findall((folder / "README.md").read_text())

    few = re.sub(r"--rounds \d+", "--rounds 4", first.strip())  # show as much as all of them
    printed = in_folder(folder, f"{few} --json --out run")

    results = json.loads(printed.splitlines()[-1])
    assert METRICS[name] <= results["metrics"].keys()
    assert len(results["clients"]) == 4
    assert all(0 < client["epsilon"] <= client["budget"] for client in results["clients"])
    terms = Terms.from_json((folder / "run" / "terms.json").read_text())
    assert results["unit"] == terms.unit == ("person" if name == "hospital" else "record")
    policy = load_policy(folder / "policy.toml")
    # Four rounds need less noise than all of them.
    policy.require(replace(terms, noise_multiplier=policy.least_noise_multiplier))
    for line in second.strip().splitlines():
        in_folder(folder, line)


def test_a_new_project_is_a_copy_of_an_example_and_overwrites_nothing(tmp_path: Path) -> None:
    assert sorted(LIKE.values()) == NAMES
    for like, name in LIKE.items():
        folder = tmp_path / like
        done = CliRunner().invoke(app, ["new", str(folder), "--like", like])
        assert done.exit_code == 0
        copied = {path.name for path in folder.iterdir()}
        assert copied >= {"README.md", "make_data.py", "policy.toml"}
        assert (folder / "README.md").read_text() == (EXAMPLES / name / "README.md").read_text()
    again = CliRunner().invoke(app, ["new", str(tmp_path / "images")])
    assert isinstance(again.exception, ValueError)
    assert "is not empty" in str(again.exception)
