"""The commands of a notary: what they make, whom they count, and what they refuse."""

import json
import os
import shlex
import stat

import pytest
from typer.testing import CliRunner

from coinflower.accounting.errors import UserError
from coinflower.cli.machines import notary as cli_notary
from coinflower.cli.main import app
from coinflower.deploy.keys.keys import make_node_key
from coinflower.deploy.machines.notary_folder import NotaryFolder
from coinflower.masking.tickets import owner_name
from coinflower.protocol.notary_key import notary_key
from coinflower.protocol.policy import load_policy
from tests.support.builders import write_policy


def call(arguments):
    return CliRunner().invoke(app, shlex.split(f"notary {arguments}"), catch_exceptions=False)


@pytest.fixture(autouse=True)
def _surroundings(monkeypatch):
    monkeypatch.setattr(cli_notary, "start_logging", lambda _: None)
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.fixture
def notary(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    call("create")
    return NotaryFolder(tmp_path / "notary")


def test_a_notary_is_made_once_with_private_files_for_its_owner_only(notary):
    for name in ("notary.key", "notary-node.key", "record.db"):
        assert stat.S_IMODE((notary.path / name).stat().st_mode) == 0o600
    assert stat.S_IMODE(notary.path.stat().st_mode) == 0o700
    before = {path: path.read_bytes() for path in notary.path.iterdir() if path.is_file()}
    with pytest.raises(UserError, match="a notary is never overwritten"):
        call("create")
    assert {path: path.read_bytes() for path in before} == before


def test_what_owners_pin_is_what_the_notary_has(notary, tmp_path):
    told = json.loads(call("create --folder other --json").stdout)
    assert notary_key("notary.pub", tmp_path / "other") == told["key"]
    assert notary_key("notary/notary.pub", tmp_path) == notary.public_key != told["key"]
    policy = write_policy(tmp_path / "policy.toml", notaries=["notary/notary.pub", told["key"]])
    assert load_policy(policy).notaries == {notary.public_key, told["key"]}


@pytest.mark.parametrize("content", ["", "a" * 64, "coinflower-notary xyz", "ssh-rsa AAAA", "\xff"])
def test_a_file_that_is_no_key_of_a_notary_is_refused(tmp_path, content):
    (tmp_path / "notary.pub").write_text(content, encoding="latin-1")
    policy = write_policy(tmp_path / "policy.toml", notaries=["notary.pub"])
    with pytest.raises(UserError, match="is not a notary's public key"):
        load_policy(policy)


@pytest.mark.parametrize("text", ["missing.pub", "A" * 64, "ab"])
def test_a_policy_that_names_neither_a_key_nor_a_file_is_refused(tmp_path, text):
    policy = write_policy(tmp_path / "policy.toml", notaries=[text])
    with pytest.raises(UserError, match="neither a file nor a key of 64 hexadecimal digits"):
        load_policy(policy)


def test_owners_count_from_when_they_are_allowed_until_they_are_revoked(notary, tmp_path):
    key = make_node_key(tmp_path, "ward-7").path
    assert notary.owners() == {}
    assert "ward-7 (SHA256:" in call(f"allow {key}").stdout
    assert "is allowed already" in call(f"allow {key}").stdout
    (found,) = notary.owners().items()
    assert found[0] == owner_name(found[1])
    assert "ward-7" in call("show").stdout
    assert json.loads(call("show --json").stdout)["owners"] == ["ward-7"]
    assert "may not be counted" in " ".join(call(f"revoke {key}").stdout.split())
    assert notary.owners() == {}


def test_a_key_that_was_replaced_in_place_is_read_again(notary, tmp_path):
    first, second = (make_node_key(tmp_path, name).path for name in ("a", "b"))
    call(f"allow {first}")
    before = set(notary.owners())
    allowed = notary.path / "owners" / "a.pub"
    allowed.write_bytes(second.read_bytes())
    os.utime(allowed, ns=(1, 1))
    assert not before & set(notary.owners())


@pytest.mark.parametrize("command", ["show", "allow ward-7.pub", "run --superlink h:1"])
def test_where_there_is_no_notary_it_says_how_to_make_one(tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    make_node_key(tmp_path, "ward-7")
    with pytest.raises(UserError, match="coinflower notary create --folder notary"):
        call(command)
    assert not (tmp_path / "notary").exists()


def test_a_key_that_others_may_read_or_that_is_damaged_is_refused(notary):
    key = notary.path / "notary.key"
    key.chmod(0o644)
    with pytest.raises(UserError, match="chmod 600"):
        call("show")
    key.chmod(0o600)
    key.write_text("no key")
    with pytest.raises(UserError, match="is not a notary's private key"):
        call("show")


def test_it_does_not_run_without_its_record(notary):
    (notary.path / "record.db").unlink()
    with pytest.raises(UserError, match="rounds might be opened twice"):
        call("run --superlink 127.0.0.1:1 --insecure")


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ("--superlink nowhere", "must be host:port"),
        ("--superlink fl.example.org:8443 --insecure", "for this machine only"),
        ("--superlink 127.0.0.1:1 --insecure --root-certificates ca.pem", "would have no effect"),
    ],
)
def test_a_server_that_cannot_be_meant_is_refused(notary, options, match):
    with pytest.raises(UserError, match=match):
        call(f"run {options}")
