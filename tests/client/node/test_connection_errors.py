"""Every way a connection can be refused has its own sentence, and nothing is sent."""

import datetime
import email.utils
import http.server
import threading

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from coinflower.client.node.connection_errors import clock_trouble
from coinflower.client.node.link import ForgottenError, Link, UnreachableError
from coinflower.client.node.polling_group import PollingGroup
from tests.support.tls import certificate, join, serving_tls

SERVERS_TIME = datetime.datetime(2026, 1, 1, 12, tzinfo=datetime.UTC)


@pytest.fixture(autouse=True)
def _patience(monkeypatch):
    """Let a busy machine take its time to answer."""
    monkeypatch.setattr("coinflower.flower_internals.fleet._TIMEOUT_SECONDS", 240.0)


def set_clock(monkeypatch, ahead):
    """Set this machine's clock, as messages about it read it, ahead of the server's."""

    class Clock(datetime.datetime):
        @classmethod
        def now(cls, tz=None):
            return (SERVERS_TIME + datetime.timedelta(seconds=ahead)).astimezone(tz)

    monkeypatch.setattr("coinflower.client.node.connection_errors.datetime", Clock)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"days": (-20, -10)}, "its certificate has expired .this machine's clock says 20"),
        ({"days": (10, 20)}, "its certificate is not valid yet"),
        ({"name": x509.DNSName("fl.example.org")}, "its certificate is for another address"),
    ],
)
def test_a_certificate_that_does_not_hold_is_named(tmp_path, options, sentence):
    cert, key = certificate(tmp_path, **options)
    with (
        serving_tls(cert, key) as (port, received),
        pytest.raises(UnreachableError, match=f"{sentence}.*nothing was sent"),
    ):
        join(f"127.0.0.1:{port}", cert)
    assert b"".join(received) == b""


def test_a_foreign_authority_is_named(tmp_path):
    cert, key = certificate(tmp_path / "theirs", signer="Theirs\n\x1b[31m")
    mine, _ = certificate(tmp_path / "mine")
    with serving_tls(cert, key) as (port, received), pytest.raises(UnreachableError) as refused:
        join(f"127.0.0.1:{port}", mine)
    told = str(refused.value)
    assert "was not signed by the authority given here but by 'CN=Theirs" in told
    assert told.isprintable()
    assert b"".join(received) == b""


class Answer(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        self.send_response_only(self.server.status)
        self.send_header("Date", email.utils.format_datetime(SERVERS_TIME, usegmt=True))
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


def test_plain_http_in_place_of_tls_is_named(tmp_path):
    cert, _ = certificate(tmp_path)
    with http.server.HTTPServer(("127.0.0.1", 0), Answer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with pytest.raises(UnreachableError, match="does not speak TLS; nothing was sent"):
            join(f"127.0.0.1:{server.server_port}", cert)
        server.shutdown()


@pytest.mark.parametrize(
    ("ahead", "sentence"),
    [
        (0, ""),
        (180, "this machine's clock is 180 s ahead of the server's; set it by NTP"),
        (-600, "this machine's clock is 600 s behind the server's; set it by NTP"),
    ],
)
def test_a_clock_that_is_off_is_told_with_its_error(monkeypatch, ahead, sentence):
    set_clock(monkeypatch, ahead)
    date = email.utils.format_datetime(SERVERS_TIME, usegmt=True)
    assert clock_trouble(httpx.Response(401, headers={"date": date})) == sentence


def test_a_signature_that_is_refused_is_told_apart_from_an_outage(monkeypatch):
    set_clock(monkeypatch, 300)
    with http.server.HTTPServer(("127.0.0.1", 0), Answer) as server:
        server.status = 401
        threading.Thread(target=server.serve_forever, daemon=True).start()
        link = Link(
            f"127.0.0.1:{server.server_port}",
            insecure=True,
            root_certificates=None,
            private_key=ec.generate_private_key(ec.SECP384R1()),
            heartbeat_interval=10,
            polling_group=PollingGroup(),
            stop=threading.Event(),
        )
        with pytest.raises(ForgottenError, match="clock is 300 s ahead"):
            link.join()
        link.close()
        server.shutdown()
