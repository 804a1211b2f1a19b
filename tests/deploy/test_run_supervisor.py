"""What follows from what a SuperLink says; the real one is met in tests/hosts and tests/compose."""

import threading
from dataclasses import replace
from pathlib import Path

import pytest

from coinflower.deploy.machines import run_supervisor as supervisor
from coinflower.deploy.machines import serve
from coinflower.deploy.runs import RunFailedError
from coinflower.flower_internals.control import RunStatus
from coinflower.report.run import report_server_run
from coinflower.server.journal import Journal

RUNNING = RunStatus(state="running", outcome="", details="")
COMPLETED = RunStatus(state="finished", outcome="completed", details="")
FAILED = RunStatus(state="finished", outcome="failed", details="out of memory")


class Superlink:
    """Says what it is told to say, then stops the server."""

    authenticates_nodes = True
    log_file = Path("superlink.log")

    def __init__(self, stop, *says):
        self.stop = stop
        self.says = list(says)
        self.stopped = []

    def start_run(self, *_):
        return 7

    def status(self, *_):
        if len(self.says) == 1:
            self.stop.set()
        return self.says.pop(0) if self.says else RUNNING

    def stop_run(self, run_id):
        self.stopped.append(run_id)

    def online_nodes(self):
        return []


class NodeAdmission:
    def __init__(self, *_):
        self.shut_out = []

    def apply(self):
        return {}


@pytest.fixture
def follow(prepared, tmp_path, monkeypatch):
    """Return a function that follows a run of a SuperLink that says those things."""
    monkeypatch.setattr(supervisor, "NodeAdmission", NodeAdmission)
    monkeypatch.setattr(supervisor, "_LOOK_SECONDS", 0.01)
    settings = replace(prepared, state=tmp_path / "state")
    Journal(settings.state, insecure=False)
    stop = threading.Event()

    def run(*says, stay=False, shut_out=()):
        superlink = Superlink(stop, *says)
        made = supervisor.RunSupervisor(
            settings, tmp_path, superlink, None, "here:1", stay=stay, write_report=report_server_run
        )
        made._admission.shut_out = list(shut_out)
        return made.follow(stop, 0.0), superlink

    return run


def test_a_complete_run_ends_the_server(follow):
    told, superlink = follow(RUNNING, COMPLETED, COMPLETED)
    assert told.startswith("The run is complete")
    assert superlink.says == [COMPLETED]


def test_a_server_that_is_to_stay_does_so_until_told_to_stop(follow):
    told, superlink = follow(RUNNING, COMPLETED, COMPLETED, COMPLETED, stay=True)
    assert told.startswith("The run is complete")
    assert superlink.says == []


def test_a_failed_run_is_an_error_with_its_reason(follow):
    with pytest.raises(RunFailedError, match="out of memory"):
        follow(FAILED, RUNNING, stay=True)


def test_a_run_that_was_told_to_stop_says_how_to_go_on(follow):
    told, superlink = follow(RUNNING, RUNNING)
    assert told == "Stopped after round 0 of 4; continue with --resume."
    assert superlink.stopped == [7]


@pytest.mark.parametrize("says", [(RUNNING, RUNNING), (COMPLETED, COMPLETED)])
def test_a_node_that_is_allowed_again_needs_another_superlink(follow, says):
    told, superlink = follow(*says, RUNNING, stay=True, shut_out=["carl"])
    assert told is None
    assert superlink.says == [RUNNING]


def test_with_another_superlink_the_run_goes_on_from_its_checkpoint(
    prepared, tmp_path, monkeypatch
):
    seen = []

    def once(plan_, settings, *_):
        seen.append(settings.resume)
        return "done" if len(seen) == 3 else None

    monkeypatch.setattr(serve, "_serve_once", once)
    asked = serve.ServerPlan(
        settings=prepared.state.parent / "settings.toml",
        folder=tmp_path,
        write_report=report_server_run,
    )
    assert serve.serve(asked, threading.Event()) == "done"
    assert seen == [False, True, True]


@pytest.mark.parametrize(("host", "warned"), [("0.0.0.0", True), ("127.0.0.1", False)])
def test_a_superlink_that_others_can_reach_is_warned_of(
    prepared, tmp_path, monkeypatch, caplog, host, warned
):
    monkeypatch.setattr(serve, "_serve_once", lambda *_: "done")
    monkeypatch.setattr(serve, "_tls_files", lambda _: None)
    settings = prepared.state.parent / "settings.toml"
    asked = serve.ServerPlan(
        settings=settings, folder=tmp_path, keys=tmp_path, host=host, write_report=report_server_run
    )
    serve.serve(asked, threading.Event())
    told = f"Port 8000 on {host} is the SuperLink itself, whose Control API has no password"
    assert (told in caplog.text) == warned
