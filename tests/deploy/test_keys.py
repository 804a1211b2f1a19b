"""Keys and certificates: what is made, who may read it, how long it lasts, what is refused."""

import functools
import ipaddress
import json
import ssl
import stat
import subprocess
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.x509.verification import PolicyBuilder, Store
from flwr.cli.supernode.register import try_load_public_key

from coinflower.client.node.private_key import load_private_key
from coinflower.deploy.keys import keys
from coinflower.deploy.keys.key_files import (
    fingerprint,
    load_certificate,
    load_public_key,
    require_private,
)


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def backdate(monkeypatch, days):
    """Let certificates be made as if it were so many days ago."""

    class Past(datetime):
        @classmethod
        def now(cls, tz=None):
            return datetime.now(tz) - timedelta(days=days)

    monkeypatch.setattr(keys, "datetime", Past)


@pytest.fixture
def folder(tmp_path):
    keys.make_authority(tmp_path / "keys")
    return tmp_path / "keys"


@pytest.fixture
def command(program):
    return functools.partial(program, "keys")


def test_private_files_are_for_their_owner_only(folder):
    keys.make_server_certificate(folder, ["fl.example.org"])
    keys.make_node_key(folder, "ward-7")
    assert mode(folder) == 0o700
    for name in ("ca.key", "server.key", "ward-7.key"):
        assert mode(folder / name) == 0o600
    assert sorted(path.name for path in folder.iterdir()) == [
        "ca.key", "ca.pem", "server.key", "server.pem", "ward-7.key", "ward-7.pub",
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["fl.example.org", "10.77.0.1", "localhost", "127.0.0.1", "::1"])
def test_the_certificate_is_accepted_at_every_address_asked_for(folder, name):
    keys.make_server_certificate(folder, ["fl.example.org", "10.77.0.1", "::1"])
    store = Store([load_certificate(folder / "ca.pem")])
    try:
        subject = x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        subject = x509.DNSName(name)
    verifier = PolicyBuilder().store(store).build_server_verifier(subject)
    assert verifier.verify(load_certificate(folder / "server.pem"), [])


def test_openssl_accepts_the_files_in_strict_mode(folder):
    keys.make_server_certificate(folder, ["fl.example.org"])
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "server.pem", folder / "server.key")
    done = subprocess.run(
        ["openssl", "verify", "-x509_strict", "-CAfile", folder / "ca.pem", folder / "server.pem"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_an_authority_is_never_overwritten_but_can_be_renewed(folder):
    keys.make_server_certificate(folder, ["fl.example.org"])
    before = (folder / "ca.key").read_bytes()
    with pytest.raises(ValueError, match="holds an authority already"):
        keys.make_authority(folder)
    item = keys.make_authority(folder, days=7000, renew=True)
    assert (item.expires - datetime.now(UTC)).days in (6999, 7000)
    assert (folder / "ca.key").read_bytes() == before
    load_certificate(folder / "server.pem").verify_directly_issued_by(
        load_certificate(folder / "ca.pem")
    )


def test_renewal_keeps_the_key_and_the_names(folder):
    first = keys.make_server_certificate(folder, ["fl.example.org", "10.77.0.1"], days=10)
    key = (folder / "server.key").read_bytes()
    second = keys.make_server_certificate(folder, [])
    assert (folder / "server.key").read_bytes() == key
    assert second.name == first.name == "fl.example.org, 10.77.0.1, localhost, 127.0.0.1"
    assert (second.expires - datetime.now(UTC)).days in (396, 397)
    third = keys.make_server_certificate(folder, ["new.example.org"])
    assert third.name == "new.example.org, localhost, 127.0.0.1"


@pytest.mark.parametrize(
    ("names", "days", "sentence"),
    [
        ([], None, "Name at least one host name"),
        (["fl example"], None, "'fl example' is neither a host name nor an IP address"),
        (["https://fl.example.org"], None, "is neither a host name nor an IP address"),
        (["fl.example.org"], 0, "days = 0 must lie in 1 to 36500"),
        (["fl.example.org"], 5000, "days = 5000 is longer than the authority's own"),
    ],
)
def test_a_certificate_that_makes_no_sense_is_refused(folder, names, days, sentence):
    with pytest.raises(ValueError, match=sentence):
        keys.make_server_certificate(folder, names, days=days)
    assert not (folder / "server.key").exists()


def test_a_node_key_is_what_flower_and_the_client_take(tmp_path):
    keys.make_node_key(tmp_path, "ward-7")
    private = load_private_key(tmp_path / "ward-7.key")
    assert private.curve.name == "secp384r1"
    public = load_public_key(tmp_path / "ward-7.pub")
    assert private.public_key() == public
    assert b"BEGIN PUBLIC KEY" in try_load_public_key(tmp_path / "ward-7.pub")
    assert fingerprint(public).startswith("SHA256:")
    with pytest.raises(ValueError, match="never overwritten"):
        keys.make_node_key(tmp_path, "ward-7")


@pytest.mark.parametrize("name", ["", "../evil", "a b", "server", "-x", "x" * 65])
def test_a_node_name_that_is_no_file_name_is_refused(tmp_path, name):
    with pytest.raises(ValueError, match="cannot name a node"):
        keys.make_node_key(tmp_path / "keys", name)
    assert not (tmp_path / "keys").exists()


def test_a_key_that_others_may_read_is_refused(folder):
    keys.make_server_certificate(folder, ["fl.example.org"])
    keys.require_server_files(folder)
    (folder / "server.key").chmod(0o640)
    with pytest.raises(ValueError, match=r"can be read by others on this machine.*chmod 600"):
        require_private(folder / "server.key")
    with pytest.raises(ValueError, match="can be read by others"):
        keys.require_server_files(folder)
    (folder / "ca.key").chmod(0o604)
    with pytest.raises(ValueError, match="can be read by others"):
        keys.make_server_certificate(folder, ["fl.example.org"])


def test_an_expired_certificate_is_named(folder, monkeypatch):
    with monkeypatch.context() as patch:
        backdate(patch, 20)
        keys.make_authority(folder, renew=True)
        keys.make_server_certificate(folder, ["fl.example.org"], days=10)
    with pytest.raises(ValueError, match=r"server's certificate in .* expired on .*keys server"):
        keys.require_server_files(folder)


def test_files_that_do_not_belong_together_are_named(folder, tmp_path):
    keys.make_server_certificate(folder, ["fl.example.org"])
    other = tmp_path / "other"
    keys.make_authority(other)
    keys.make_server_certificate(other, ["fl.example.org"])
    (folder / "ca.pem").write_bytes((other / "ca.pem").read_bytes())
    with pytest.raises(ValueError, match=r"server\.pem was not signed by .*ca\.pem"):
        keys.require_server_files(folder)
    (folder / "server.pem").write_bytes((other / "server.pem").read_bytes())
    with pytest.raises(ValueError, match=r"server\.key is not the key of .*server\.pem"):
        keys.require_server_files(folder)


def test_a_private_key_in_place_of_a_public_one_is_noticed(tmp_path):
    keys.make_node_key(tmp_path, "a")
    with pytest.raises(ValueError, match="is a private key, which must stay where it is"):
        load_public_key(tmp_path / "a.key")
    (tmp_path / "b.pub").write_text("nonsense")
    with pytest.raises(ValueError, match="is not a public key in OpenSSH's format"):
        load_public_key(tmp_path / "b.pub")


def test_the_commands_make_and_show_everything(command, tmp_path):
    folder = tmp_path / "keys"
    code, out, _ = command("init", folder, "--name", "fl.example.org", "--json")
    assert code == 0
    assert [item["kind"] for item in json.loads(out)["made"]] == ["authority", "server"]
    code, out, _ = command("client", folder, "ward-7")
    assert code == 0
    assert "stays here" in out
    code, out, _ = command("server", folder)
    assert "Renewed" in out
    assert "The key stayed the same" in out
    code, out, _ = command("show", folder, "--json")
    items = json.loads(out)["items"]
    assert [item["kind"] for item in items] == ["authority", "server", "node"]
    assert items[2]["expires"] is None
    assert all(item["private"] for item in items)
    code, out, err = command("show", folder)
    assert "when revoked" in out
    assert err == ""


def test_an_expiry_that_is_near_is_warned_of(command, folder):
    keys.make_server_certificate(folder, ["fl.example.org"], days=20)
    code, _, err = command("show", folder)
    assert code == 0
    assert "server.pem: expires" in err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["show", "nowhere"], "nowhere holds no keys"),
        (["server", "nowhere", "--name", "a"], "There is no certificate at nowhere/ca.pem"),
        (["init", "new", "--renew"], "There is no key at new/ca.key"),
        (["init", "new", "--days", "0"], "days = 0 must lie in"),
    ],
)
def test_a_mistake_is_named_in_one_sentence(command, tmp_path, monkeypatch, arguments, sentence):
    monkeypatch.chdir(tmp_path)
    code, _, err = command(*arguments)
    assert code == 2
    assert sentence in err
    assert not (tmp_path / "new").exists()
