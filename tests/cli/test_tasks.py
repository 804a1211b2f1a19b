"""Tasks in `run` and `simulate`: what is measured, what is written, and what is refused in time."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from coinflower.learning.data.tables.schema import load_schema
from tests.support import tables
from tests.support.own_tasks import HERE

ROOT = Path(__file__).parents[2]
COST = """\
target = "age"

[columns.sex]
kind = "category"
values = ["f", "m"]

[columns.ill]
kind = "category"
values = ["no", "yes"]

[columns.age]
kind = "number"
range = [0, 100]
"""


@pytest.fixture
def command(program, monkeypatch, tmp_path):
    """The program, in a folder of the test's own; its processes find modules of the tests."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    return program


@pytest.fixture
def wards(tmp_path):
    """Four wards in a folder, and a schema for each task."""
    for index in range(4):
        tables.write_ward(tmp_path / "wards" / f"w{index}.csv", tables.ward_rows(60, seed=index))
    tables.write_schema(tmp_path / "ill.toml")
    tables.write_schema(tmp_path / "age.toml", COST)
    return tmp_path


def simulated(command, *arguments):
    """Return the figures of a short simulation, and all that was said."""
    code, out, err = command("simulate", "many-small", "--iterations", 4, "--json", *arguments)
    assert not code, err
    return json.loads(out), err


def test_a_run_of_two_classes_states_auc_and_the_share_of_positives(command, wards):
    code, out, err = command(
        *("run", "--data", "wards", "--partition", "files", "--schema", "ill.toml"),
        *("--task", "binary", "--class-weights", "1,2", "--model", "mlp"),
        *("--rounds", 2, "--out", "out", "--json"),
    )
    assert not code, err
    found = json.loads(out)
    metrics = ["auc", "average_precision", "calibration_error", "accuracy", "positives"]
    assert list(found["metrics"]) == metrics
    assert found["task"] == "binary"
    assert found["accuracy"] == found["metrics"]["accuracy"]
    terms = json.loads((wards / "out" / "terms.json").read_text())
    assert (terms["task"], terms["classes"]) == ("binary", 1)
    assert terms["task_options"] == {"class_weights": [1.0, 2.0]}
    with (wards / "out" / "metrics.csv").open() as file:
        *_, last = csv.DictReader(file)
    assert float(last["auc"]) == found["metrics"]["auc"]
    report = (wards / "out" / "report.html").read_text()
    assert "AUC over rounds" in report
    assert "Share of positives" in report
    code, out, _ = command("status", "out")
    assert "AUC" in out
    assert "share of positives" in out


def test_a_regression_is_measured_in_the_units_of_the_schema(command, wards):
    found, _ = simulated(
        command, "--data", "wards", "--partition", "files", "--schema", "age.toml", "--out", "out"
    )
    assert found["task"] == "regression"
    assert list(found["metrics"]) == ["rmse", "mae", "r2"]
    assert found["accuracy"] is None
    assert found["curve"]["4"] == found["metrics"]["rmse"]
    # Ages from 1 to 99 spread by some 28 years; their scale is 50 years.
    assert load_schema(wards / "age.toml").target_scale == (50.0,)
    assert 10 < found["metrics"]["rmse"] < 60
    assert "RMSE over iterations" in (wards / "out" / "report.html").read_text()


def write(folder, targets):
    inputs = np.random.default_rng(0).normal(size=(len(targets), 2))
    np.savez(folder / "rows.npz", x=inputs, y=targets, kind="rows")


@pytest.mark.parametrize(
    ("arguments", "targets", "headline"),
    [
        (["--loss", "huber", "--huber-threshold", 0.5], np.linspace(-2, 2, 90), "rmse"),
        (["--task", "regression"], np.arange(90), "rmse"),
        (["--task", "multilabel"], np.eye(3)[np.arange(90) % 3], "auc"),
        (["--task", "binary"], np.arange(90) % 2, "auc"),
        ([], np.arange(90) % 3, "accuracy"),
        (["--task", f"{HERE}:Pinball", "--task-option", "quantile=0.9"], np.arange(90), "missed"),
    ],
)
def test_arrays_of_any_targets_can_be_learned(command, tmp_path, arguments, targets, headline):
    write(tmp_path, targets)
    found, _ = simulated(command, "--data", "rows.npz", "--model", "linear", *arguments)
    assert next(iter(found["metrics"])) == headline
    assert found["metrics"][headline] is not None


def test_a_simulation_goes_on_with_its_own_task_only(command, tmp_path):
    write(tmp_path, np.arange(90) % 2)
    arguments = ["--data", "rows.npz", "--model", "linear", "--out", "out"]
    simulated(command, *arguments, "--task", "binary")
    again = ("simulate", "many-small", "--iterations", 6, "--resume", "--json", *arguments)
    code, _, err = command(*again, "--task", "regression")
    assert code == 2
    assert "began with task = binary, but task = regression is asked for" in " ".join(err.split())
    code, out, err = command(*again, "--task", "binary")
    assert not code, err
    assert list(json.loads(out)["curve"]) == ["4", "6"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--task", "regresion"], "task 'regresion' is unknown (did you mean regression?)"),
        (["--task", "classification"], "record 0: its target 0.5 is not a class"),
        (["--task", "binary"], "88 of 90 records cannot be used; record 0: its target 0.5 is ne"),
        (["--task", "multilabel"], "record 0: its target 0.5 is neither 0 nor 1"),
        (["--loss", "huber", "--huber-threshold", "-1"], "huber_threshold = -1.0 must be above 0"),
        (["--huber-threshold", "2"], "huber_threshold = 2 goes with loss = 'huber' only"),
        (["--class-weights", "1,2"], "task 'regression' has no option 'class_weights'"),
        (["--class-weights", "many"], "--class-weights many must be numbers with commas between"),
        (["--task-option", "quantile"], "--task-option quantile must be key=value"),
        (["--loss", "huber", "--task-option", "loss=huber"], "loss is stated twice"),
        (["--task", f"{HERE}:Centred"], "changes with the other records of a batch"),
        (["--task", f"{HERE}:Averaging"], "must be one number per record"),
        (["--task", "nowhere:Task"], "task 'nowhere:Task' cannot be loaded"),
        (
            ["--model", "tests.support.participants:five_classes"],
            "cannot take the rows of 2 values",
        ),
        (
            ["--model", f"{HERE}:three_numbers"],
            "answers a record with shape (3,), but the task nee",
        ),
    ],
)
def test_what_does_not_go_together_is_one_sentence_before_anybody_waits(
    command, tmp_path, arguments, sentence
):
    write(tmp_path, np.concatenate([np.linspace(0.5, 3.25, 88), [0, 1]]))
    usual = [] if "--model" in arguments else ["--model", "linear"]
    code, out, err = command("run", "--data", "rows.npz", "--rounds", 2, *usual, *arguments)
    assert (code, out) == (2, "")
    assert sentence in " ".join(err.split())
    assert not (tmp_path / "runs").exists()
