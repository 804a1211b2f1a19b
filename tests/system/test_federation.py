"""Whole federations over real processes: a SuperLink, a ServerApp, clients with ledgers."""

import json
import math
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

import coinflower
from coinflower.accounting.ledger.entries import Budget
from coinflower.accounting.ledger.ledger import Ledger
from coinflower.deploy.flower.loopback import LOOPBACK, free_port
from coinflower.deploy.local.cluster import prepare
from coinflower.learning import Update, build_model, flatten_parameters, load_data, load_parameters
from coinflower.protocol.modes import PRIVATE_MODES, Mode
from coinflower.server.journal import read_metrics
from tests.support.federations import check_ledgers, plan, processes
from tests.support.waiting import PATIENCE

COINFLOWER = Path(sys.executable).parent / "coinflower"


def test_without_noise_and_sampling_it_is_centralised_gradient_descent(federation):
    run = federation(
        mode=Mode.NONE,
        p=1.0,
        q=1.0,
        clip_norm=math.inf,
        sigma=0.0,
        rounds=5,
        update=Update(learning_rate=0.3, momentum=0.9),
        waits_for_all=True,
    )
    assert run.finish() is None
    tensors = load_file(run.cluster.server / "model.safetensors")
    data = load_data("digits")
    model = build_model("digits", classes=10)
    inputs = torch.from_numpy(data.train.inputs)
    targets = torch.from_numpy(data.train.targets)
    weights, velocity = flatten_parameters(model).numpy(), 0.0
    for _ in range(5):
        load_parameters(model, weights)
        model.zero_grad()
        torch.nn.functional.cross_entropy(model(inputs), targets).backward()
        gradient = np.concatenate([w.grad.numpy().ravel() for w in model.parameters()])
        velocity = 0.9 * velocity + gradient
        weights = (weights - 0.3 * velocity).astype(np.float32)
    load_parameters(model, weights)
    for name, expected in model.state_dict().items():
        np.testing.assert_allclose(tensors[name], expected.numpy(), atol=1e-5)


@pytest.mark.parametrize("mode", PRIVATE_MODES)
def test_the_command_trains_in_every_private_mode(program, tmp_path, mode):
    out = tmp_path / "run"
    command = ["run", "--clients", "3", "--rounds", "4", "--mode", mode]
    code, printed, told = program(*command, "--out", out, "--json")
    assert code == 0, told
    result = json.loads(printed)
    assert result["rounds"] == 4
    assert result["mode"] == mode
    assert 0 <= result["accuracy"] <= 1
    assert len(result["clients"]) == 3
    for client in result["clients"]:
        assert 0 < client["epsilon"] <= 3.0
        assert client["charged_rounds"] == 4
        assert 0 <= client["participated_rounds"] <= 4
    if not mode.flips_coins:
        assert all(client["participated_rounds"] == 4 for client in result["clients"])
    for name in ("model.safetensors", "metrics.csv", "metrics.json", "results.json", "terms.json"):
        assert (out / name).exists()
    assert result["report"] == str(out / "report.html")
    assert (out / "report.html").exists()
    assert not processes(out)


def succeeded(done):
    """Return what a command printed, which must have gone well."""
    code, printed, told = done
    assert code == 0, told
    return printed


def test_the_command_trains_under_a_cap(program, tmp_path):
    out = tmp_path / "run"
    command = [COINFLOWER, "run", "--clients", "3", "--rounds", "4", "-p", "0.2", "-q", "0.05"]
    done = subprocess.run(
        [*command, "--cap", "2", "--epsilon", "0.1", "--out", out, "--json"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert (result["rounds"], result["cap"]) == (4, 2.0)
    assert json.loads((out / "terms.json").read_text())["cap"] == 2.0
    # The noise is that of the budget with the cap, and less than without it.
    target = {"p": 0.2, "q": 0.05, "d": 479, "rounds": 4, "epsilon": 0.1, "delta": 1e-3}
    assert result["sigma"] == coinflower.noise_multiplier(**target, cap=2)
    assert result["sigma"] < 0.9 * coinflower.noise_multiplier(**target)
    metrics = json.loads((out / "metrics.json").read_text())
    assert all(row["dropped"] == 0 for row in metrics)
    ledger = str(out / "clients" / "client-0.db")
    shown, told, exported = (
        succeeded(program(*words))
        for words in (
            ["ledger", "show", ledger, "--delta", "1e-3", "--json"],
            ["explain", ledger, "--delta", "1e-3", "--json"],
            ["ledger", "export", ledger, "--format", "json"],
        )
    )
    (experiment,) = json.loads(shown)["experiments"]
    assert (experiment["cap"], experiment["scheme"]) == (2.0, "certified")
    round_ = coinflower.Round(0.2, 0.05, 479, result["sigma"], 2.0)
    spent = coinflower.epsilon(round_, rounds=4, delta=1e-3)
    assert json.loads(shown)["epsilon"] == result["clients"][0]["epsilon"] == spent <= 0.1
    assert spent < json.loads(told)["client_epsilon"]
    entries = json.loads(exported)["entries"]
    assert all(json.loads(entry["terms"])["cap"] == 2.0 for entry in entries)
    backup = str(tmp_path / "backup.db")
    succeeded(program("ledger", "backup", ledger, backup))
    with Ledger.open(Path(backup), read_only=True) as copy:
        assert copy.spent(1e-3) == spent


def test_mode_none_needs_its_flag_and_says_what_it_is(program, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    command = ["run", "--clients", "2", "--rounds", "2", "--mode", "none"]
    code, _, told = program(*command)
    assert code == 2
    assert "--no-privacy" in told
    code, printed, told = program(*command, "--no-privacy")
    assert code == 0, told
    assert "NO PRIVACY" in told
    assert "NO PRIVACY" in printed
    (report,) = tmp_path.glob("runs/*/report.html")
    assert f"Report: {report}" in printed


def test_clients_that_may_not_take_part_stay_out_and_the_run_goes_on(federation, tmp_path):
    cluster = prepare(plan(clients=4), tmp_path / "run")
    strict = cluster.policies[0]
    strict.write_text(
        strict.read_text().replace("least_noise_multiplier = 1.0", "least_noise_multiplier = 1.5")
    )
    exhausted = cluster.terms.round_cost(360)
    with Ledger.open(cluster.ledger(1)) as ledger:
        ledger.reserve("earlier", exhausted, 500, Budget(epsilon=1e6, delta=1e-3))
        ledger.flip_all("earlier", range(1, 501))
    settings = cluster.settings.read_text()
    assert "least_clients = 1" in settings
    cluster.settings.write_text(settings.replace("least_clients = 1", "least_clients = 2"))
    run = federation(cluster)
    assert run.finish() is None
    charged = check_ledgers_without(cluster, 1)
    assert charged[0] == {}
    assert len(charged[2]) == len(charged[3]) == 4
    with Ledger.open(cluster.ledger(1)) as ledger:
        assert [tally.experiment for tally in ledger.tallies()] == ["earlier"]
    assert {row["available"] for row in read_metrics(cluster.server)} == {2}


def check_ledgers_without(cluster, index):
    """Check the invariants of all ledgers but one, which holds another experiment."""
    hidden = cluster.ledger(index).rename(cluster.ledger(index).with_suffix(".aside"))
    fresh = Ledger.create(cluster.ledger(index), f"share-{index}")
    fresh.close()
    try:
        return check_ledgers(cluster)
    finally:
        cluster.ledger(index).unlink()
        hidden.rename(cluster.ledger(index))


def test_when_nobody_may_take_part_the_run_stops_with_a_sentence(federation, tmp_path):
    cluster = prepare(plan(clients=2), tmp_path / "run")
    for policy in cluster.policies:
        text = policy.read_text()
        policy.write_text(text.replace("largest_q = 0.1", "largest_q = 0.01"))
    error = federation(cluster).finish()
    assert "2 of 2 clients refuse" in str(error)
    assert "sampling rate q is larger" in str(error)
    assert all(charges == {} for charges in check_ledgers(cluster).values())


def test_a_seeded_run_is_stamped_insecure_everywhere(federation):
    run = federation(insecure_seed=7, rounds=2)
    assert run.finish() is None
    assert run.results()["insecure"] is True
    assert all(row["insecure"] for row in read_metrics(run.cluster.server))
    for index in range(3):
        with Ledger.open(run.cluster.ledger(index)) as ledger:
            assert not any(tally.secure for tally in ledger.tallies())


def test_server_and_clients_meet_as_separate_programs(tmp_path):
    cluster = prepare(plan(clients=2, rounds=3, waits_for_all=True), tmp_path / "run")
    port = free_port(LOOPBACK)
    environment = {**os.environ, "RUN_FOLDER": str(tmp_path)}
    clients = [
        subprocess.Popen(
            [COINFLOWER, "client", policy, "--superlink", f"127.0.0.1:{port}", "--insecure"],
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for policy in cluster.policies
    ]
    try:
        first_words = clients[0].stderr.readline()
        assert "cannot be reached" in first_words
        assert "Ctrl-C stops" in first_words
        done = subprocess.run(
            [COINFLOWER, "server", "run", cluster.settings, "--port", str(port)],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
    finally:
        for client in clients:
            client.send_signal(signal.SIGTERM)
        told = [client.communicate(timeout=PATIENCE)[1] for client in clients]
    assert [client.returncode for client in clients] == [0, 0], told
    assert all("Traceback" not in text for text in told)
    assert [len(charges) for charges in check_ledgers(cluster).values()] == [3, 3]
    assert not processes(tmp_path)
