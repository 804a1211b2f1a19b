"""What `coinflower status` says of a server, at work or not."""

import json
import os
import sys
from dataclasses import replace

import pytest

from coinflower.cli import main as cli
from coinflower.deploy.machines.standing import read_server_status
from coinflower.deploy.machines.status_file import StatusFile
from coinflower.server.journal import Journal
from coinflower.server.settings import save_settings
from tests.support.federations import REPORT


@pytest.fixture
def folder(prepared, tmp_path):
    save_settings(replace(prepared, state=tmp_path / "state"), tmp_path / "settings.toml")
    return tmp_path


def test_a_server_at_work_is_described(folder):
    status_file = StatusFile(folder, "0.0.0.0:8443")
    status_file.note({"a": True, "b": False}, 1, [])
    journal = Journal(folder / "state", insecure=False)
    journal.round(replace(REPORT, round=3), {"accuracy": 0.75})
    journal.status("running", round_=3)
    found = read_server_status(folder)
    assert (found["server"], found["run"]) == ("running", "running")
    assert (found["round"], found["rounds"]) == (3, 4)
    assert (found["accuracy"], found["accuracy_round"]) == (0.75, 3)
    assert (found["online"], found["nodes"]) == (1, {"a": True, "b": False})
    assert found["last_error"] == ""
    assert "epsilon" not in json.dumps(found)


def test_metrics_of_the_task_are_shown_with_their_names(folder, monkeypatch, capsys):
    journal = Journal(folder / "state", insecure=False)
    journal.round(replace(REPORT, round=2), {"auc": 0.8125, "accuracy": 0.99, "positives": 0.01})
    journal.round(replace(REPORT, round=3), None)
    found = read_server_status(folder)
    assert (found["metrics"]["auc"], found["metrics_round"]) == (0.8125, 2)
    monkeypatch.setattr(sys, "argv", ["coinflower", "status", str(folder)])
    with pytest.raises(SystemExit):
        cli.main()
    out = capsys.readouterr().out
    for shown in ("AUC", "0.8125 (round 2)", "99.0% (round 2)", "share of positives"):
        assert shown in out


def test_what_clients_records_said_is_shown_apart_with_its_error(folder, monkeypatch, capsys):
    said = {"accuracy": {"value": 0.71, "standard_error": 0.02}}
    journal = Journal(folder / "state", insecure=False)
    journal.round(replace(REPORT, round=2, private_metrics=said), {"accuracy": 0.99})
    journal.round(replace(REPORT, round=3), None)
    found = read_server_status(folder)
    assert (found["private_metrics"], found["private_metrics_round"]) == (said, 2)
    assert (found["accuracy"], found["metrics"]) == (0.99, {"accuracy": 0.99})
    monkeypatch.setattr(sys, "argv", ["coinflower", "status", str(folder)])
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit):
        cli.main()
    lines = capsys.readouterr().out.splitlines()
    (line,) = [line for line in lines if "on clients' own records" in line]
    assert "accuracy 71.0% ± 4.0% (two standard errors, round 2)" in line
    assert "99.0%" not in line


def test_without_evaluations_nothing_is_said_of_clients_records(folder, monkeypatch, capsys):
    Journal(folder / "state", insecure=False).round(REPORT, {"accuracy": 0.99})
    found = read_server_status(folder)
    assert (found["private_metrics"], found["private_metrics_round"]) == (None, None)
    monkeypatch.setattr(sys, "argv", ["coinflower", "status", str(folder)])
    with pytest.raises(SystemExit):
        cli.main()
    assert "own records" not in capsys.readouterr().out


def test_a_run_that_was_seeded_before_its_settings_changed_is_still_insecure(folder):
    assert read_server_status(folder)["insecure"] is False
    Journal(folder / "state", insecure=True).status("stopped", round_=1)
    assert read_server_status(folder)["insecure"] is True


def test_a_server_that_was_killed_is_not_taken_for_running(folder):
    StatusFile(folder, "0.0.0.0:8443").note({"a": True}, 1, [])
    Journal(folder / "state", insecure=False).status("running", round_=1)
    status_file = json.loads((folder / "server.json").read_text())
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    (folder / "server.json").write_text(json.dumps({**status_file, "pid": child}))
    found = read_server_status(folder)
    assert (found["server"], found["run"], found["online"]) == ("stopped", "interrupted", 0)


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_the_last_error_is_shown(folder, monkeypatch, capsys, form):
    StatusFile(folder, "0.0.0.0:8443").note_error("The gateway ended.")
    monkeypatch.setattr(sys, "argv", ["coinflower", "status", str(folder), *form])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    out = capsys.readouterr().out
    assert not ended.value.code
    assert "The gateway ended." in out
    if form:
        assert json.loads(out)["rounds"] == 4


def test_another_folder_is_named(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["coinflower", "status", str(tmp_path)])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 2
    assert "holds neither a server nor a run" in capsys.readouterr().err
