"""Nodes behind a forward proxy: which one is asked, what it may do, and what the owner is told."""

import os
import socket

import httpx
import pytest

from coinflower.accounting.errors import UserError
from coinflower.client.node.link import UnreachableError
from coinflower.client.node.proxies import environment_proxy, proxy_address
from tests.support.proxies import Proxy
from tests.support.tls import certificate, join, serving_tls

SERVER = "fl.example.org:8443"
PROXY = "http://proxy.example.org:3128"


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch):
    for name in list(os.environ):
        if name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)


@pytest.mark.parametrize("variable", ["HTTPS_PROXY", "https_proxy", "ALL_PROXY"])
@pytest.mark.parametrize("address", [SERVER, "10.1.2.3:8443", "[fd00::1]:8443"])
def test_the_environment_names_the_proxy(monkeypatch, variable, address):
    monkeypatch.setenv(variable, "http://ann:pa%40ss@proxy.example.org:3128")
    found = environment_proxy(address)
    assert proxy_address(found) == "proxy.example.org:3128"
    assert found.auth == ("ann", "pa@ss")


def test_without_a_word_in_the_environment_there_is_no_proxy(monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", PROXY)  # for plain HTTP, which is not spoken
    assert environment_proxy(SERVER) is None


@pytest.mark.parametrize("address", ["localhost:8000", "127.0.0.1:8000", "[::1]:8000"])
def test_this_machine_is_reached_without_the_proxy(monkeypatch, address):
    monkeypatch.setenv("HTTPS_PROXY", PROXY)
    assert environment_proxy(address) is None


@pytest.mark.parametrize(
    ("exceptions", "address", "excepted"),
    [
        ("fl.example.org", SERVER, True),
        ("a.org, example.org", SERVER, True),
        (".example.org", SERVER, True),
        ("*.EXAMPLE.org", SERVER, True),
        ("fl.example.org:8443", SERVER, True),
        ("fl.example.org:443", SERVER, False),
        ("*", SERVER, True),
        ("ample.org", SERVER, False),
        ("fl.example.org.uk,.", SERVER, False),
        ("10.0.0.0/8", "10.1.2.3:8443", True),
        ("10.1.2.3:8443", "10.1.2.3:8443", True),
        ("10.2.0.0/16", "10.1.2.3:8443", False),
        ("fd00::/8", "[fd00::1]:8443", True),
        ("[fd00::1]:8443", "[fd00::1]:8443", True),
        ("10.0.0.0/8", "[fd00::1]:8443", False),
        ("", SERVER, False),
    ],
)
def test_exceptions_are_honoured(monkeypatch, exceptions, address, excepted):
    monkeypatch.setenv("HTTPS_PROXY", PROXY)
    monkeypatch.setenv("NO_PROXY", exceptions)
    assert (environment_proxy(address) is None) == excepted


@pytest.mark.parametrize("url", ["socks5://h:1", "http://", "http://ann:s3cret/x@h:1", "ftp://h"])
def test_what_is_no_http_proxy_is_refused_without_showing_a_password(monkeypatch, url):
    monkeypatch.setenv("HTTPS_PROXY", url)
    with pytest.raises(UserError, match="HTTPS_PROXY must be http://HOST:PORT") as refused:
        environment_proxy(SERVER)
    assert "s3cret" not in str(refused.value)


def refused_through(url, address, authority):
    """Try to join through a proxy and return the sentence that says why it did not work."""
    with pytest.raises(UnreachableError) as refused:
        join(address, authority, proxy=httpx.Proxy(url))
    return str(refused.value)


@pytest.mark.parametrize(
    ("behaviour", "sentence"),
    [
        ("forbidden", "it does not allow connections to fl.example.org:8443"),
        ("unreachable", "it makes no connection to fl.example.org:8443"),
        ("portal", "the connection is closed before TLS begins; nothing was sent"),
    ],
)
def test_a_proxy_that_does_not_let_through_is_named_with_its_reason(tmp_path, behaviour, sentence):
    authority, _ = certificate(tmp_path)
    with Proxy(behaviour=behaviour) as proxy:
        told = refused_through(proxy.url, SERVER, authority)
    assert told.startswith(f"through the proxy {proxy.url.removeprefix('http://')}: {sentence}")


def test_a_proxy_that_hangs_is_given_up_in_time(tmp_path, monkeypatch):
    monkeypatch.setattr("coinflower.flower_internals.fleet._TIMEOUT_SECONDS", 0.3)
    authority, _ = certificate(tmp_path)
    with Proxy(behaviour="hang") as proxy:
        assert refused_through(proxy.url, SERVER, authority).endswith(": no answer in time")


def test_a_proxy_that_is_not_there_is_named(tmp_path):
    authority, _ = certificate(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as gone:
        url = f"http://127.0.0.1:{gone.getsockname()[1]}"
    assert refused_through(url, SERVER, authority).startswith("through the proxy 127.0.0.1:")


@pytest.mark.parametrize("name", ["server", "proxy"])
def test_a_name_without_an_address_is_told(tmp_path, name):
    authority, _ = certificate(tmp_path)
    proxy = httpx.Proxy("http://proxy.invalid:3128") if name == "proxy" else None
    with pytest.raises(UnreachableError, match=f"no address is known for the name {name}.invalid"):
        join("server.invalid:8443", authority, proxy=proxy)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ("", "it wants a password: HTTPS_PROXY=http://USER:PASSWORD@127.0.0.1:"),
        ("ann:wr0ng@", "it does not accept the user and password in HTTPS_PROXY"),
    ],
)
def test_a_missing_and_a_wrong_password_are_told_apart_and_never_shown(tmp_path, given, sentence):
    authority, _ = certificate(tmp_path)
    with Proxy(login="ann:s3cret") as proxy:
        url = proxy.url.replace("//", f"//{given}")
        told = refused_through(url, SERVER, authority)
    assert sentence in told
    assert "wr0ng" not in told


def test_the_right_password_opens_the_way_to_the_server(tmp_path):
    cert, key = certificate(tmp_path)
    with serving_tls(cert, key) as (port, received), Proxy(login="ann:s3:cret") as proxy:
        url = proxy.url.replace("//", "//ann:s3%3Acret@")
        refused_through(url, f"127.0.0.1:{port}", cert)  # it is no SuperLink
    assert proxy.asked[0] == (f"127.0.0.1:{port}", True)
    assert b"POST /v1/fleet/activate-node" in b"".join(received)
    assert b"Proxy-Authorization" not in b"".join(received)


def test_a_proxy_that_opens_connections_is_refused_by_name_and_reads_nothing(tmp_path):
    authority, _ = certificate(tmp_path / "servers")
    posing = certificate(tmp_path / "inspectors", signer="Ward Inspection CA")
    with Proxy(behaviour="inspect", certificate=posing) as proxy:
        told = refused_through(proxy.url, "127.0.0.1:8443", authority)
        assert "not signed by the authority given here but by 'CN=Ward Inspection CA'" in told
        assert "exempt 127.0.0.1:8443 from TLS inspection" in told
        assert told.endswith("nothing was sent")
    assert b"".join(proxy.read) == b""


def test_an_inspector_that_the_environment_trusts_is_refused_all_the_same(tmp_path, monkeypatch):
    posing = certificate(tmp_path, signer="Ward Inspection CA")
    monkeypatch.setenv("SSL_CERT_FILE", str(posing[0]))
    with Proxy(behaviour="inspect", certificate=posing) as proxy:
        told = refused_through(proxy.url, "127.0.0.1:8443", None)
    assert "by 'CN=Ward Inspection CA'" in told
    assert b"".join(proxy.read) == b""
