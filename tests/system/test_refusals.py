"""Who refuses or dies is named where the person looks, and nobody waits in silence."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from coinflower.accounting.ledger.stops import pause
from coinflower.deploy.local.cluster import prepare
from coinflower.deploy.machines.standing import read_server_status
from coinflower.protocol.policy import Refusal
from coinflower.server.journal import read_metrics
from coinflower.server.settings import load_settings, save_settings
from tests.support.federations import plan
from tests.support.waiting import wait_until

PROGRAM = str(Path(sys.executable).parent / "coinflower")
SECONDS = 300


@pytest.fixture
def cluster(tmp_path):
    return prepare(plan(clients=3, rounds=4), tmp_path / "run")


def change(cluster, **fields):
    """Change the server's settings."""
    save_settings(replace(load_settings(cluster.settings), **fields), cluster.settings)


def allow_less(policy):
    """Let an owner allow a smaller p than the run asks for."""
    text = policy.read_text()
    (line,) = (line for line in text.splitlines() if line.startswith("largest_p"))
    policy.write_text(text.replace(line, "largest_p = 0.01"))


@pytest.fixture
def resume(program, monkeypatch):
    """Return a function that goes on with a run, in a narrow terminal."""

    def run(cluster):
        monkeypatch.setenv("COLUMNS", "60")
        done = program("run", "--resume", cluster.folder)
        monkeypatch.delenv("COLUMNS")
        return subprocess.CompletedProcess("run", *done)

    return run


@pytest.fixture
def status(program):
    """Return a function that prints how a run is."""

    def run(cluster, *options):
        code, printed, told = program("status", cluster.folder, *options)
        assert code == 0, told
        return printed

    return run


def test_a_run_that_nobody_can_join_ends_with_the_reason(status, resume, cluster):
    for policy in cluster.policies:
        allow_less(policy)
    done = resume(cluster)
    sentence = f"3 of 3 clients refuse: {Refusal.PARTICIPATION.value}"
    assert done.returncode == 2
    assert done.stderr == f"Error: Too few can join this run: {sentence}\n"
    assert sentence in done.stdout.splitlines(), "a line of its own, not folded"
    found = json.loads(status(cluster, "--json"))
    assert (found["server"], found["run"], found["refusals"]) == ("stopped", "failed", sentence)


def test_a_run_goes_on_without_those_that_refuse_and_says_so(status, resume, cluster):
    allow_less(cluster.policies[1])
    done = resume(cluster)
    sentence = f"1 of 3 clients refuse: {Refusal.PARTICIPATION.value}"
    assert done.returncode == 0, done.stderr
    assert sentence in done.stdout.splitlines()
    found = json.loads(status(cluster, "--json"))
    assert (found["run"], found["round"], found["refusals"]) == ("finished", 4, sentence)
    assert "1 of 3 clients refuse" in status(cluster)


def test_a_refusal_that_may_pass_is_waited_for_and_named_at_the_end(resume, cluster):
    for index in range(3):
        pause(cluster.ledger(index))
    change(cluster, patience_seconds=20.0)
    done = resume(cluster)
    assert done.returncode == 2
    assert f"3 of 3 clients refuse: {Refusal.PAUSED.value}" in done.stderr
    assert "for 20 s" in done.stderr


def test_a_client_that_died_is_named_at_the_end(tmp_path):
    cluster = prepare(plan(clients=3, rounds=8), tmp_path / "run")
    change(cluster, reply_seconds=8.0, round_seconds=1.5)
    command = [PROGRAM, "run", "--resume", str(cluster.folder), "--processes", "--json"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as running:
        wait_until(lambda: read_metrics(cluster.server), alive=lambda: running.poll() is None)
        found = read_server_status(cluster.folder)
        os.kill(process_of(cluster.policies[2]), signal.SIGKILL)
        assert (found["server"], found["run"], found["online"]) == ("running", "running", 3)
        out, err = running.communicate(timeout=SECONDS)
    assert running.returncode == 0, err
    log = cluster.folder / "logs" / "client-2.log"
    assert json.loads(out)["died"] == [f"client-2 (see {log})"]
    assert f"client-2 (see {log}) died before the run was over" in err


def process_of(policy):
    """Return the client that runs with a policy: the child of its guard."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if str(policy).encode() in words and b"-I" not in words:
                found.append(int(entry.name))
    (pid,) = found
    return pid


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"test_data": "no/such/data"}, "'no/such/data' does not exist"),
        ({"model": "paper-cnn"}, "model 'paper-cnn' cannot take the test data 'digits'"),
        ({"model": "no_such:model"}, "model 'no_such:model' cannot be loaded"),
    ],
)
def test_settings_and_data_are_checked_before_anything_is_served(
    program, cluster, fields, sentence
):
    if "model" in fields:
        terms = replace(load_settings(cluster.settings).terms, **fields)
        change(cluster, terms=terms)
    else:
        change(cluster, **fields)
    folder = cluster.folder / "server-folder"
    words = ["server", "run", cluster.settings, "--folder", folder, "--port", "0"]
    code, _, told = program(*words)
    assert code == 2
    assert sentence in told
    assert "Serving" not in told
    assert "Traceback" not in told
    assert not folder.exists()
