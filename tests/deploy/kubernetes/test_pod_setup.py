"""What a pod's init container makes: keys for their owner alone, and the gateway's settings."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from coinflower.deploy.containers import pod_setup
from coinflower.deploy.gateway.config import largest_body, render_limit
from coinflower.deploy.keys import keys
from coinflower.deploy.machines.queue import ExperimentQueue
from coinflower.server.settings import load_settings

SETTINGS = Path(__file__).parents[3] / "deploy" / "kubernetes" / "server" / "settings.toml"


@pytest.fixture
def secrets(tmp_path):
    """A secret as Kubernetes mounts it: links into a hidden folder, open to the group."""
    made = tmp_path / "made"
    keys.make_authority(made)
    keys.make_server_certificate(made, ["fl.example.org"])
    folder = tmp_path / "secrets"
    hidden = folder / "..2026_01_01"
    hidden.mkdir(parents=True)
    (folder / "..data").symlink_to(hidden.name)
    for name in ("ca.pem", "server.pem", "server.key"):
        (hidden / name).write_bytes((made / name).read_bytes())
        (hidden / name).chmod(0o440)
        (folder / name).symlink_to(Path("..data") / name)
    return folder


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """Return a function that sets up a pod and gives exit code and errors."""
    (tmp_path / "keys").mkdir()

    def call(secrets, *further):
        words = [f"--secrets={secrets}", f"--keys={tmp_path / 'keys'}", *further]
        monkeypatch.setattr(sys, "argv", ["pod_setup", *words])
        try:
            pod_setup.main()
        except SystemExit as ended:
            return ended.code, capsys.readouterr().err
        return 0, ""

    return call


def test_keys_are_for_their_owner_alone_and_a_server_takes_them(secrets, run, tmp_path):
    with pytest.raises(ValueError, match="can be read by others"):
        keys.require_server_files(secrets)
    assert run(secrets) == (0, "")
    assert sorted(path.name for path in (tmp_path / "keys").iterdir()) == [
        "ca.pem",
        "server.key",
        "server.pem",
    ]
    assert keys.require_server_files(tmp_path / "keys")


def test_a_container_that_starts_again_finds_its_keys_replaced(secrets, run, tmp_path):
    assert run(secrets) == (0, "")
    hidden = secrets / "..2026_01_01" / "ca.pem"
    hidden.chmod(0o600)
    hidden.write_bytes(b"new")
    assert run(secrets) == (0, "")
    assert (tmp_path / "keys" / "ca.pem").read_bytes() == b"new"


def test_the_gateway_takes_messages_of_the_models_size_and_finds_the_superlink(
    secrets, run, tmp_path
):
    config = tmp_path / "nginx.conf"
    assert run(secrets, f"--settings={SETTINGS}", f"--gateway={config}") == (0, "")
    text = config.read_text()
    assert render_limit(largest_body(load_settings(SETTINGS).terms)) in text
    assert "127.0.0.1:8000" in text
    assert "listen 0.0.0.0:8443 ssl" in text
    assert "proxy_ssl_name localhost" in text
    assert "resolver" not in text
    assert f'"{tmp_path}/keys/server.key"' in text


def test_the_authoritys_key_does_not_get_into_a_pod(secrets, run, tmp_path):
    (secrets / "ca.key").write_text("secret")
    code, told = run(secrets)
    assert code == 2
    assert "The secret holds ca.key" in told
    assert list((tmp_path / "keys").iterdir()) == []


def test_settings_that_cannot_be_used_are_named(secrets, run, tmp_path):
    code, told = run(secrets, f"--settings={tmp_path}/none.toml", f"--gateway={tmp_path}/x")
    assert code == 2
    assert "There is no file" in told


def test_a_restarted_pod_lets_a_larger_model_pass_that_was_submitted_since(secrets, run, tmp_path):
    settings = load_settings(SETTINGS)
    terms = replace(settings.terms, experiment="larger", model="paper-cnn")
    assert largest_body(terms) > largest_body(settings.terms)
    folder, config = tmp_path / "superlink", tmp_path / "nginx.conf"
    ExperimentQueue(folder).enter(replace(settings, terms=terms, state=tmp_path / "state"))
    words = [f"--settings={SETTINGS}", f"--folder={folder}", f"--gateway={config}"]
    assert run(secrets, *words) == (0, "")
    assert render_limit(largest_body(terms)) in config.read_text()
