"""Separate machines: who may join over TLS, what is refused, and stopping without loss."""

import contextlib
import json
import logging
import os
import re
import signal
import subprocess
import sys
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from flwr.clientapp import ClientApp

from coinflower.accounting.ledger.ledger import Ledger
from coinflower.cli.machines import client as cli_client
from coinflower.client.app import make_app
from coinflower.client.node.private_key import load_private_key
from coinflower.client.node.resident import ResidentNode
from coinflower.client.participant import Participant
from coinflower.deploy.flower.loopback import LOOPBACK, free_port
from coinflower.deploy.flower.superlink import Superlink, TlsFiles
from coinflower.deploy.gateway import process as gateway_process
from coinflower.deploy.keys import keys
from coinflower.deploy.local.cluster import prepare
from coinflower.deploy.machines.health import ask_health
from coinflower.deploy.machines.node_registry import NodeAdmission, Registry
from coinflower.deploy.machines.standing import read_server_status
from coinflower.deploy.machines.status_file import read_status_file
from coinflower.server.journal import read_metrics
from tests.support.builders import policy_text
from tests.support.federations import check_ledgers, plan
from tests.support.waiting import PATIENCE, wait_until

COINFLOWER = Path(sys.executable).parent / "coinflower"


@contextlib.contextmanager
def node(address, folder, name, app=None, **options):
    """Run a resident node with the key of that name."""
    stop = threading.Event()
    resident = ResidentNode(
        address,
        app or ClientApp(),
        stop=stop,
        root_certificates=(folder / "ca.pem").read_bytes(),
        private_key=load_private_key(folder / f"{name}.key"),
        max_backoff=0.5,
        logger=logging.getLogger(f"node.{name}"),
        **options,
    )
    thread = threading.Thread(target=resident.run)
    thread.start()
    try:
        yield resident
    finally:
        stop.set()
        thread.join(PATIENCE)
        assert not thread.is_alive()


@pytest.fixture(scope="module")
def secrets(tmp_path_factory):
    folder = tmp_path_factory.mktemp("keys")
    keys.make_authority(folder)
    keys.make_server_certificate(folder, ["fl.example.org"])
    for name in ("anna", "bert", "carl"):
        keys.make_node_key(folder, name)
    return folder


@pytest.fixture(scope="module")
def superlink(secrets, tmp_path_factory):
    tls = TlsFiles(
        ca=secrets / "ca.pem", certificate=secrets / "server.pem", key=secrets / "server.key"
    )
    folder = tmp_path_factory.mktemp("superlink")
    with Superlink(folder, tls=tls, authenticate_nodes=True) as running:
        yield running


@pytest.fixture
def registry(tmp_path):
    return Registry(tmp_path / "nodes")


@pytest.fixture
def door(superlink, registry):
    return NodeAdmission(superlink, registry)


def test_an_allowed_key_joins_and_a_stranger_is_told_why(
    superlink, secrets, registry, door, caplog
):
    registry.allow(secrets / "anna.pub")
    door.apply()
    with node(superlink.address, secrets, "anna") as anna:
        wait_until(lambda: anna.joined)
        with node(superlink.address, secrets, "bert") as bert:
            wait_until(lambda: "its key is not allowed there" in caplog.text)
            assert not bert.joined
        wait_until(lambda: door.apply() == {"anna": True})
    wait_until(lambda: door.apply() == {"anna": False})


def test_of_two_clients_with_one_key_the_second_is_kept_out(
    superlink, secrets, registry, door, caplog
):
    registry.allow(secrets / "anna.pub")
    door.apply()
    with node(superlink.address, secrets, "anna") as first:
        wait_until(lambda: first.joined)
        with node(superlink.address, secrets, "anna") as second:
            wait_until(lambda: "another client is using the same key" in caplog.text)
            assert not second.joined
        wait_until(lambda: first.joined)


def test_a_revoked_node_is_dropped_and_stays_out(superlink, secrets, registry, door, caplog):
    registry.allow(secrets / "carl.pub")
    door.apply()
    with node(superlink.address, secrets, "carl") as carl:
        wait_until(lambda: carl.joined)
        registry.revoke(secrets / "carl.pub")
        assert door.apply() == {}
        wait_until(lambda: "its key is not allowed there" in caplog.text)
        assert not carl.joined
        # The SuperLink never takes a key back: whoever runs it has to start it anew.
        assert door.shut_out == []
        registry.allow(secrets / "carl.pub")
        assert door.apply() == {"carl": False}
        assert door.shut_out == ["carl"]


def test_a_clock_that_is_minutes_off_is_told_by_how_much(
    superlink, secrets, registry, door, caplog, monkeypatch
):
    class Ahead(datetime):
        @classmethod
        def now(cls, tz=None):
            return datetime.now(tz) + timedelta(minutes=3)

    registry.allow(secrets / "bert.pub")
    door.apply()
    monkeypatch.setattr("coinflower.flower_internals.fleet.now", lambda: Ahead.now(UTC))
    monkeypatch.setattr("coinflower.client.node.connection_errors.datetime", Ahead)
    with node(superlink.address, secrets, "bert") as bert:
        wait_until(lambda: "does not accept this node" in caplog.text)
        assert not bert.joined
    (told,) = [line for line in caplog.messages if "does not accept this node" in line]
    found = re.search(r"this machine's clock is (\d+) s ahead of the server's", told)
    # A busy server's own date lags behind by seconds.
    assert 170 <= int(found[1]) <= 300


def test_allowing_and_revoking_keep_names_and_keys_apart(secrets, registry, tmp_path):
    assert "anna (SHA256:" in registry.allow(secrets / "anna.pub")
    assert "is allowed already" in registry.allow(secrets / "anna.pub")
    (tmp_path / "anna.pub").write_bytes((secrets / "bert.pub").read_bytes())
    with pytest.raises(ValueError, match="Another key is allowed under the name 'anna'"):
        registry.allow(tmp_path / "anna.pub")
    with pytest.raises(ValueError, match="is not among those allowed"):
        registry.revoke(secrets / "bert.pub")
    (tmp_path / "renamed.pub").write_bytes((secrets / "anna.pub").read_bytes())
    assert registry.revoke(tmp_path / "renamed.pub").startswith("anna (SHA256:")
    assert registry.names() == {}


def test_a_file_that_holds_no_key_lets_nobody_in(registry, tmp_path):
    (tmp_path / "nodes" / "x.pub").write_text("ssh-rsa nonsense")
    assert registry.names() == {}


POLICY = policy_text(modes=["trusted"])


@pytest.fixture
def command(program, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cli_client, "start_logging", lambda _: None)
    (tmp_path / "policy.toml").write_text(POLICY)

    def run(*arguments):
        code, out, err = program(*arguments)
        return code, out, err.replace("\n", " ")

    return run


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--superlink", "fl.example.org:8443", "--insecure"], "is for this machine only, not for"),
        (["--superlink", "10.0.0.1:8443", "--insecure"], "is for this machine only, not for 10.0."),
        (["--superlink", "fl.example.org"], "must be host:port"),
        (["--superlink", "fl.example.org:99999"], "must be host:port"),
        (["--superlink", "a:1", "--root-certificates", "ca.pem"], "There is no certificate at ca"),
        (["--superlink", "a:1", "--root-certificates", "policy.toml"], "is not a PEM certificate"),
        (["--superlink", "a:1", "--private-key", "anna.key"], "There is no key at anna.key"),
    ],
)
def test_a_client_that_would_speak_unprotected_is_refused(command, arguments, sentence):
    code, _, err = command("client", "policy.toml", *arguments)
    assert code == 2
    assert sentence in err


def test_a_private_key_open_to_others_is_refused(command, tmp_path):
    keys.make_node_key(tmp_path, "anna")
    (tmp_path / "anna.key").chmod(0o644)
    code, _, err = command(
        "client", "policy.toml", "--superlink", "a:1", "--private-key", "anna.key"
    )
    assert code == 2
    assert "anna.key can be read by others on this machine" in err


def test_a_read_only_ledger_is_named_before_joining(command, tmp_path, monkeypatch):
    (tmp_path / "ledger.db").touch()
    monkeypatch.setattr(os, "access", lambda path, _: Path(path).name != "ledger.db")
    code, _, err = command("client", "policy.toml", "--superlink", "a:1")
    assert code == 2
    assert "ledger.db is read-only, so nothing could be charged" in err


def test_a_data_set_that_outgrew_its_declared_size_is_refused(command, tmp_path):
    (tmp_path / "policy.toml").write_text(POLICY.replace("1437", "1400"))
    Ledger.create(tmp_path / "ledger.db", "ward 7").close()
    code, _, err = command("client", "policy.toml", "--superlink", "a:1")
    assert code == 2
    assert "'ward 7' has 1437 records, more than the declared 1400" in err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--host", "0.0.0.0"], "plain HTTP, on this machine's loopback only"),
        (["--keys", "keys", "--host", "0.0.0.0"], "would bypass the gateway"),
        (["--keys", "keys", "--no-gateway"], "There is no certificate at keys/ca.pem"),
        (["--keys", "keys", "--listen", "8443"], "must be host:port"),
        (["--page", "0.0.0.0:8610"], "must be on this machine's loopback"),
    ],
)
def test_a_server_that_would_be_open_is_refused(
    command, tmp_path, monkeypatch, arguments, sentence
):
    monkeypatch.setattr(gateway_process, "find_program", lambda _: "/usr/sbin/nginx")
    prepare(plan(clients=2), tmp_path / "run")
    code, _, err = command("server", "run", "run/settings.toml", *arguments)
    assert code == 2
    assert sentence in err


def test_a_missing_nginx_is_named(command, monkeypatch):
    monkeypatch.setattr(gateway_process, "find_program", lambda _: None)
    code, _, err = command("server", "run", "settings.toml", "--keys", "keys")
    assert code == 2
    assert "needs nginx, which is not installed" in err


@pytest.mark.usefixtures("nginx")
def test_told_to_stop_a_server_ends_between_rounds_resumes_and_stays(secrets, tmp_path):
    cluster = prepare(plan(clients=2, rounds=12), tmp_path / "run")
    folder = tmp_path / "superlink"
    registry = Registry(folder / "nodes")
    for name in ("anna", "bert"):
        registry.allow(secrets / f"{name}.pub")
    address = f"127.0.0.1:{free_port(LOOPBACK)}"
    health = free_port(LOOPBACK)
    command = [COINFLOWER, "server", "run", cluster.settings, "--keys", secrets, "--folder", folder]
    command += ["--listen", address, "--port", str(free_port(LOOPBACK)), "--resume", "--stay"]
    command += ["--health-port", str(health), "--log-format", "json"]

    def played():
        rounds = read_metrics(cluster.server)
        return rounds[-1]["round"] if rounds else 0

    with contextlib.ExitStack() as stack:
        for name, policy in zip(("anna", "bert"), cluster.policies, strict=True):
            owner = Participant.open(policy)
            stack.callback(owner.ledger.close)
            stack.enter_context(node(address, secrets, name, make_app(owner), drain_seconds=10))
        first = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        wait_until(lambda: read_status_file(folder).get("online") == 2)
        ask = [COINFLOWER, "health", str(health)]
        wait_until(lambda: subprocess.run(ask, check=False).returncode == 0)
        wait_until(played)
        standing = read_server_status(folder)
        assert (standing["online"], standing["server"]) == (2, "running")

        first.send_signal(signal.SIGTERM)
        _, told = first.communicate(timeout=PATIENCE)
        assert first.returncode == 0, told
        assert f"Stopped after round {played()} of 12; continue with --resume." in told
        lines = [json.loads(line) for line in told.splitlines()]
        enrolled = [one for one in lines if "enrolled with declared size" in one["message"]]
        assert [(one["logger"], one["level"]) for one in enrolled] == [
            ("coinflower.server", "info")
        ] * 2
        assert "ListRuns" not in (folder / "superlink.log").read_text()
        assert not [one for one in folder.iterdir() if one.stat().st_mode & 0o077]
        assert read_server_status(folder)["run"] == "stopped"

        second = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        said = iter(second.stderr.readline, "")
        assert any("Nodes may stay until the server is stopped." in line for line in said)
        assert read_server_status(folder)["run"] == "finished"
        wait_until(lambda: ask_health(health) == "SERVING")
        wait_until(lambda: read_status_file(folder)["online"] == 2)
        second.send_signal(signal.SIGTERM)
        _, told = second.communicate(timeout=PATIENCE)
        assert second.returncode == 0, told
        assert "The run is complete" in told
    rounds = [row["round"] for row in read_metrics(cluster.server)]
    assert rounds == sorted(set(rounds))
    assert rounds[-1] == 12
    assert all(len(charges) > 0 for charges in check_ledgers(cluster).values())
