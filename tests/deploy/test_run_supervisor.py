"""What follows from what a SuperLink says; the real one is met in tests/system and tests/hosts."""

import contextlib
import os
import shutil
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from coinflower.deploy.gateway.config import largest_body
from coinflower.deploy.machines import run_supervisor as supervisor
from coinflower.deploy.machines import serve
from coinflower.deploy.machines.queue import ExperimentQueue
from coinflower.deploy.machines.standing import standing
from coinflower.deploy.runs import RunFailedError
from coinflower.flower_internals.control import RunStatus
from coinflower.report.run import report_server_run
from coinflower.server.checkpoint import CheckpointFolder
from coinflower.server.journal import Journal
from coinflower.server.sole_use import sole_use
from tests.support.federations import REPORT

RUNNING = RunStatus(state="running", outcome="", details="")
COMPLETED = RunStatus(state="finished", outcome="completed", details="")
FAILED = RunStatus(state="finished", outcome="failed", details="out of memory")


def dead_process():
    """Return the id of a process that is gone."""
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    return child


class Superlink:
    """Says what it is told to say about each run, then stops the server."""

    authenticates_nodes = True
    log_file = Path("superlink.log")

    def __init__(self, stop, queue, says):
        self.stop = stop
        self.states = {one.name: one.settings.state for one in queue.all()}
        self.says = {name: list(said) for name, said in says.items()}
        self.started = []
        self.stopped = []
        self.most_at_once = 0

    def start_run(self, app):
        self.started.append(app.parent.name)
        over = [COMPLETED, FAILED]
        at_work = {one for one in self.started if self.says[one] and self.says[one][0] not in over}
        self.most_at_once = max(self.most_at_once, len(at_work))
        return len(self.started)

    def status(self, run_id):
        name = self.started[run_id - 1]
        said = self.says[name]
        if sum(map(len, self.says.values())) == 1:
            self.stop.set()
        answer = said.pop(0) if said else RUNNING
        state = self.states[name]
        if callable(answer):
            answer = answer(state)
        if answer is COMPLETED:
            Journal(state, insecure=False).status("finished")
        return answer

    def stop_run(self, run_id):
        self.stopped.append(self.started[run_id - 1])

    def online_nodes(self):
        return []


class NodeAdmission:
    def __init__(self, *_):
        self.shut_out = []

    def apply(self):
        return {}


@pytest.fixture
def queue(prepared, tmp_path):
    """A queue with the experiment that the server is started with."""
    made = ExperimentQueue(tmp_path)
    made.enter(named(prepared, tmp_path, "main"))
    return made


def named(settings, folder, name, **changes):
    terms = replace(settings.terms, experiment=name)
    return replace(settings, state=folder / f"state-{name}", terms=terms, **changes)


@pytest.fixture
def follow(queue, tmp_path, monkeypatch):
    """Return a function that follows runs of a SuperLink that says those things."""
    monkeypatch.setattr(supervisor, "NodeAdmission", NodeAdmission)
    monkeypatch.setattr(supervisor, "_LOOK_SECONDS", 0.01)

    def run(*says, stay=False, shut_out=(), side_by_side=1, main="main", passes=None, **others):
        stop = threading.Event()
        superlink = Superlink(stop, queue, {"main": says, **others})
        made = supervisor.RunSupervisor(
            tmp_path,
            superlink,
            None,
            "here:1",
            stay=stay,
            side_by_side=side_by_side,
            main=main,
            write_report=report_server_run,
            passes=passes,
        )
        made._admission.shut_out = list(shut_out)
        return made.follow(stop, 0.0), superlink

    return run


def test_a_complete_run_ends_the_server(follow):
    told, superlink = follow(RUNNING, COMPLETED, COMPLETED)
    assert told.startswith("The run is complete")
    assert superlink.says == {"main": [COMPLETED]}


def test_a_server_that_is_to_stay_does_so_until_told_to_stop(follow, queue, tmp_path):
    queue.enter(named(queue.get("main").settings, tmp_path, "later"))
    told, superlink = follow(RUNNING, COMPLETED, stay=True, later=[RUNNING, RUNNING])
    assert told.startswith("The run is complete")
    assert superlink.says == {"main": [], "later": []}


def test_a_failed_run_is_an_error_with_its_reason(follow, queue):
    with pytest.raises(RunFailedError, match="out of memory"):
        follow(FAILED, RUNNING, stay=True)
    assert queue.get("main").error == "out of memory"


def test_a_run_that_was_told_to_stop_says_how_to_go_on(follow):
    told, superlink = follow(RUNNING, RUNNING)
    assert told == "Stopped after round 0 of 4; continue with --resume."
    assert superlink.stopped == ["main"]


def test_a_run_that_the_operator_stopped_ends_the_server_and_waits_to_be_resumed(follow, queue):
    def hold(_):
        queue.hold("main")
        return RUNNING

    told, superlink = follow(hold, RUNNING, stop_as_asked, RUNNING)
    assert told == "Stopped after round 0 of 4; continue with coinflower server resume main."
    assert superlink.started == ["main"]
    assert not queue.get("main").is_due


def stop_as_asked(state):
    assert (state / "stop").exists()
    Journal(state, insecure=False).status("stopped")
    return RunStatus(state="finished", outcome="completed", details="")


def test_one_after_the_other_unless_told_otherwise(follow, queue, tmp_path):
    queue.enter(named(queue.get("main").settings, tmp_path, "later"))
    _, superlink = follow(RUNNING, COMPLETED, later=[RUNNING, COMPLETED, COMPLETED])
    assert superlink.started == ["main", "later"]
    assert superlink.most_at_once == 1


def test_side_by_side_if_told_so(follow, queue, tmp_path):
    queue.enter(named(queue.get("main").settings, tmp_path, "beside"))
    _, superlink = follow(
        RUNNING, RUNNING, COMPLETED, side_by_side=2, beside=[RUNNING, COMPLETED, COMPLETED]
    )
    assert superlink.most_at_once == 2


def test_a_model_too_large_for_a_gateway_elsewhere_is_refused_before_its_first_round(
    follow, queue, tmp_path
):
    main = queue.get("main").settings
    larger = replace(main, terms=replace(main.terms, model="paper-cnn"))
    queue.enter(named(larger, tmp_path, "larger"))
    passes = largest_body(main.terms)
    assert largest_body(larger.terms) > passes
    _, superlink = follow(RUNNING, COMPLETED, COMPLETED, passes=passes, larger=[])
    assert superlink.started == ["main"]
    assert "docker compose up" in queue.get("larger").error
    assert "coinflower server resume larger" in queue.get("larger").error


def test_what_must_not_run_beside_another_waits_and_is_not_overtaken(follow, queue, tmp_path):
    main = queue.get("main").settings
    queue.enter(named(main, tmp_path, "paced", round_seconds=9.0))
    queue.enter(named(main, tmp_path, "behind"))
    _, superlink = follow(
        RUNNING,
        COMPLETED,
        paced=[RUNNING, COMPLETED],
        behind=[RUNNING, COMPLETED, COMPLETED],
        side_by_side=2,
    )
    assert superlink.started == ["main", "paced", "behind"]
    assert superlink.most_at_once == 1


def test_an_experiment_waits_until_its_process_of_before_is_gone(follow, queue, caplog):
    holding = contextlib.ExitStack()
    holding.enter_context(sole_use(queue.get("main").settings.state))
    threading.Timer(0.2, holding.close).start()
    told, superlink = follow(RUNNING, COMPLETED, COMPLETED)
    assert told.startswith("The run is complete")
    assert superlink.started == ["main"]
    assert caplog.text.count("Waits until no other process is at work") == 1


def test_another_experiments_failure_ends_nothing_else(follow, queue, tmp_path):
    queue.enter(named(queue.get("main").settings, tmp_path, "bad"))
    told, _ = follow(RUNNING, RUNNING, COMPLETED, COMPLETED, bad=[FAILED], side_by_side=2)
    assert told.startswith("The run is complete")
    assert queue.get("bad").error == "out of memory"


@pytest.mark.parametrize("ending", [RUNNING, COMPLETED])
def test_what_has_begun_and_lost_its_state_does_not_begin_anew(follow, queue, ending):
    def play(state):
        CheckpointFolder(state, queue.get("main").settings.terms.hash).use_rounds_through(1)
        Journal(state, insecure=False).round(REPORT, None)
        return RUNNING

    follow(play, RUNNING, ending)
    state = queue.get("main").settings.state
    away = state.rename(state.with_name("not-mounted"))
    with pytest.raises(RunFailedError, match=f"Its state is gone from {state}; is a disk not"):
        follow(RUNNING)
    assert not queue.get("main").is_due
    shutil.rmtree(state)
    away.rename(state)
    back = standing(queue.get("main"), [])["state"]
    assert back == ("finished" if ending is COMPLETED else "failed")


@pytest.mark.parametrize("file", ["status.json", "metrics.jsonl"])
def test_another_experiments_damaged_files_end_nothing_else(follow, queue, tmp_path, file):
    def damage(state):
        (state / file).write_text("nonsense\n")
        return RUNNING

    queue.enter(named(queue.get("main").settings, tmp_path, "bad"))
    told, superlink = follow(
        RUNNING, RUNNING, COMPLETED, COMPLETED, bad=[RUNNING, damage], side_by_side=2
    )
    assert told.startswith("The run is complete")
    assert superlink.stopped == ["bad"]
    assert f"{file} is damaged" in queue.get("bad").error


def killed(after_a_round):
    def answer(state):
        journal = Journal(state, insecure=False)
        if after_a_round:
            journal.round(REPORT, None)
        gone = dead_process()  # before: a fork may ask for the process id itself
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "getpid", lambda: gone)
            journal.status("running", round_=1)
        return RUNNING

    return answer


def test_a_run_whose_process_was_killed_goes_on(follow):
    told, superlink = follow(killed(after_a_round=True), RUNNING, RUNNING, COMPLETED, COMPLETED)
    assert told.startswith("The run is complete")
    assert superlink.started == ["main", "main"]


def test_a_run_whose_process_dies_before_any_round_is_not_begun_for_ever(follow):
    with pytest.raises(RunFailedError, match="ended in the middle of the run"):
        follow(killed(after_a_round=False), RUNNING, RUNNING)


@pytest.mark.parametrize("file", ["settings.toml", "experiment.json"])
def test_a_damaged_queue_ends_nothing_and_is_told_once(follow, queue, caplog, file):
    def damage(state):
        Journal(state, insecure=False).round(REPORT, None)
        (queue.get("main").folder / file).write_text("[]")
        return RUNNING

    told, superlink = follow(damage, RUNNING, RUNNING)
    assert told == "Stopped after round 1 of 4; continue with --resume."
    assert superlink.started == ["main"]
    assert caplog.text.count("The queue cannot be read") == 1


@pytest.mark.parametrize("says", [(RUNNING, RUNNING), (COMPLETED, COMPLETED)])
def test_a_node_that_is_allowed_again_needs_another_superlink(follow, says):
    told, _ = follow(*says, RUNNING, stay=True, shut_out=["carl"])
    assert told is None


@pytest.fixture
def asked(prepared, tmp_path):
    """Return a function that makes the plan of a server."""
    settings = prepared.state.parent / "settings.toml"

    def plan(**changes):
        return serve.ServerPlan(
            settings=settings, folder=tmp_path, write_report=report_server_run, **changes
        )

    return plan


def test_with_another_superlink_the_run_goes_on_from_its_checkpoint(asked, monkeypatch):
    seen = []

    def once(_, main, *__):
        seen.append(main.settings.resume)
        return "done" if len(seen) == 3 else None

    monkeypatch.setattr(serve, "_serve_once", once)
    assert serve.serve(asked(), threading.Event()) == "done"
    assert seen == [True, True, True]


def test_a_second_server_in_the_same_folder_is_refused(asked, monkeypatch):
    def meanwhile(*_):
        with pytest.raises(ValueError, match="Another process is at work in"):
            serve.serve(asked(), threading.Event())
        return "done"

    monkeypatch.setattr(serve, "_serve_once", meanwhile)
    assert serve.serve(asked(), threading.Event()) == "done"


def test_a_server_started_with_what_was_stopped_says_how_to_resume(asked, monkeypatch, tmp_path):
    monkeypatch.setattr(serve, "_serve_once", lambda *_: "done")
    serve.serve(asked(), threading.Event())
    queue = ExperimentQueue(tmp_path)
    (name,) = [one.name for one in queue.all()]
    (tmp_path / "server.json").touch()
    queue.hold(name)
    with pytest.raises(ValueError, match=f"coinflower server resume {name} --folder"):
        serve.serve(asked(), threading.Event())
    assert serve.serve(asked(stay=True), threading.Event()) == "done"


@pytest.mark.parametrize(("host", "warned"), [("0.0.0.0", True), ("127.0.0.1", False)])
def test_a_superlink_that_others_can_reach_is_warned_of(
    asked, tmp_path, monkeypatch, caplog, host, warned
):
    monkeypatch.setattr(serve, "_serve_once", lambda *_: "done")
    monkeypatch.setattr(serve, "_tls_files", lambda _: None)
    serve.serve(asked(keys=tmp_path, host=host), threading.Event())
    told = f"Port 8000 on {host} is the SuperLink itself, whose Control API has no password"
    assert (told in caplog.text) == warned
