"""The gateway's nginx, run for real on loopback before a tiny upstream that takes notes."""

import contextlib
import socket
import ssl
import tempfile
import tomllib
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from flwr.app import ConfigRecord

from coinflower.deploy.flower.loopback import LOOPBACK, free_port
from coinflower.deploy.gateway.config import largest_body, render_config, render_container_config
from coinflower.learning import size_of
from coinflower.protocol import messages
from coinflower.protocol.terms import Terms
from tests.support.documents import blocks
from tests.support.gateways import Gateway, Upstream, arguments, make_certificate
from tests.support.waiting import PATIENCE

TERMS = Terms.from_fields(tomllib.loads(blocks()["settings.toml"])["terms"])
ROOT = Path(__file__).parents[2]


@pytest.fixture
def folder():
    """Return a folder that an unprivileged nginx may enter, as pytest's own may not be."""
    with tempfile.TemporaryDirectory(prefix="gateway-") as name:
        make_certificate(Path(name))
        yield Path(name)


@pytest.fixture
def gateway(folder, nginx):
    upstream = Upstream()
    running = Gateway(folder, upstream=f"127.0.0.1:{upstream.server_port}")
    running.upstream = upstream
    yield running
    running.close()
    upstream.close()


def test_nodes_and_health_get_through(gateway):
    assert gateway.ask("POST", "/v1/fleet/pull-messages", b"x" * 1000) == 200
    assert gateway.ask("GET", "/health") == 200
    assert gateway.upstream.seen == [
        ("POST", "/v1/fleet/pull-messages", 1000),
        ("GET", "/health", 0),
    ]


@pytest.mark.parametrize(
    ("method", "target"),
    [
        ("POST", "/v1/control/start-run"),
        ("POST", "/v1/runtime/get-nodes"),
        ("GET", "/"),
        ("GET", "/docs"),
        ("GET", "/openapi.json"),
        ("POST", "/v1/fleet/../control/start-run"),
        ("POST", "/v1/fleet/%2e%2e/control/start-run"),
        ("POST", "/v1/fleet/..%2fcontrol/start-run"),
        ("POST", "/v1/control/..%2ffleet/pull-messages"),
        ("POST", "/v1/control/../fleet/pull-messages"),
        ("POST", "/v1%2fcontrol/start-run"),
        ("POST", "//v1/control/start-run"),
        ("POST", "/v1//fleet/pull-messages"),
        ("POST", "/v1/fleet//pull-messages"),
        ("POST", "/v1/fleet/pull-messages/"),
        ("POST", "/v1/fleet/"),
        ("POST", "/v1/fleet"),
        ("POST", "/v1/./fleet/pull-messages"),
        ("POST", "/v1/%66leet/pull-messages"),
        ("POST", "/V1/FLEET/pull-messages"),
        ("POST", "/v1/fleet/pull-messages?to=/v1/control/start-run"),
        ("POST", "/v1/fleet/pull-messages#/v1/control"),
        ("POST", "/v1/fleet/pull-messages;/../../control/start-run"),
        ("POST", "/v1/fleet/pull-messages%00"),
        ("POST", "/v1/fleet\\..\\control\\start-run"),
        ("POST", "http://localhost/v1/control/start-run"),
        ("GET", "/health?x=1"),
        ("GET", "/health/"),
        ("GET", "/v1/fleet/pull-messages"),
        ("PUT", "/v1/fleet/pull-messages"),
        ("DELETE", "/v1/fleet/unregister-node"),
        ("OPTIONS", "/v1/fleet/pull-messages"),
        ("HEAD", "/health"),
        ("POST", "/health"),
        ("TRACE", "/health"),
        ("CONNECT", "server:8000"),
    ],
)
def test_nothing_else_gets_through(gateway, method, target):
    assert gateway.ask(method, target) in (400, 404, 405)
    assert gateway.upstream.seen == []


def test_a_second_request_hidden_in_a_body_is_only_a_body(gateway):
    hidden = b"POST /v1/control/start-run HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n"
    chunked = b"0\r\n\r\n" + hidden
    head = (
        "POST /v1/fleet/pull-messages HTTP/1.1\r\nHost: localhost\r\n"
        f"Content-Length: {len(chunked)}\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    with gateway.connect() as link:
        link.sendall(head.encode() + chunked)
        assert gateway.status(link) in (200, 400)
    assert all("control" not in path for _, path, _ in gateway.upstream.seen)


def test_a_body_up_to_the_limit_passes_and_a_huge_one_does_not(gateway):
    assert gateway.ask("POST", "/v1/fleet/push-object", b"x" * (6 << 20)) == 200
    for size in (6 * 2**20 + 1, 2**30):
        head = f"POST /v1/fleet/push-object HTTP/1.1\r\nHost: localhost\r\nContent-Length: {size}"
        with gateway.connect() as link:
            link.sendall(head.encode() + b"\r\n\r\n")
            assert gateway.status(link) == 413
    assert len(gateway.upstream.seen) == 1


def test_the_limit_leaves_room_for_the_runs_own_model():
    wide = replace(TERMS, model="mlp", row_shape=(3_000,), model_options={"widths": [1_000]})
    parameters = size_of(wide)
    wide = largest_body(wide)
    answer = ConfigRecord({messages.SUM: bytes(4 * parameters)}).deflate()
    assert len(answer) < wide < 1.2 * len(answer)
    assert largest_body(TERMS) < 2 << 20


@pytest.mark.parametrize("size", [0, -1])
def test_a_limit_that_nginx_would_take_for_none_is_refused(tmp_path, size):
    with pytest.raises(ValueError, match="largest_body = "):
        render_config(**arguments(tmp_path, largest_body=size))


def test_a_flood_from_one_address_is_told_to_come_later(gateway):
    request = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
    statuses = set()
    with gateway.connect() as link:
        link.sendall(request * 1500)
        lines = link.makefile("rb")
        while 503 not in statuses and (line := lines.readline()):
            if line.startswith(b"HTTP/1.1 "):
                statuses.add(int(line.split()[1]))
    assert statuses == {200, 503}


def flood(gateway, target, count):
    """Send requests one behind the other, over as few connections as may be; return statuses."""
    head = f"POST {target} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n"
    statuses = Counter()
    for _ in range(count // 100):
        with gateway.connect() as link:
            link.sendall(head.encode() * 100)
            lines = link.makefile("rb")
            left = 100
            while left and (line := lines.readline()):
                if line.startswith(b"HTTP/1.1 "):
                    statuses[int(line.split()[1])] += 1
                    left -= 1
    return statuses


@pytest.mark.parametrize(("target", "status"), [("/v1/control/start-run", 404), ("/health", 405)])
def test_a_flood_of_what_is_not_served_does_not_fill_the_log(gateway, target, status):
    assert flood(gateway, target, 3000) == {status: 3000}
    gateway.close()
    lines = (gateway.folder / "access.log").read_text().splitlines()
    assert 0 < len(lines) < 600
    assert all(f'POST "{target}" {status}' in line for line in lines)


def test_a_flood_of_what_is_served_does_not_fill_the_logs(gateway):
    turned_away = flood(gateway, "/v1/fleet/push-object", 6000)[503]
    assert turned_away > 5000
    told = gateway.close()
    lines = (gateway.folder / "access.log").read_text().splitlines()
    # One in a thousand is told, so a hundredth and thirty more is out of reach.
    assert sum(" 503 " in line for line in lines) <= 30 + turned_away / 100
    assert "limiting" not in told


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("Host: evil.example:99\r\n", 200),
        ("Host: [::1]\r\n", 200),
        ("", 200),
        ("Host: ../x\r\n", 400),
        ("Host: a\r\nHost: b\r\n", 400),
    ],
)
def test_the_superlink_never_hears_what_a_client_calls_it(gateway, host, status):
    with gateway.connect() as link:
        link.sendall(f"GET /health HTTP/1.0\r\n{host}\r\n".encode())
        assert gateway.status(link) == status
    assert gateway.upstream.hosts == (["superlink"] if status == 200 else [])


def test_a_connection_that_dawdles_is_closed_and_others_are_served(gateway):
    with gateway.connect() as slow:
        slow.sendall(b"POST /v1/fleet/pull-messages HTTP/1.1\r\nHost: loc")
        assert gateway.ask("GET", "/health") == 200
        with contextlib.suppress(ConnectionResetError):  # a reset says the same as an end
            assert slow.recv(1000) == b""


def test_plain_http_and_old_tls_are_refused(gateway):
    with socket.create_connection((LOOPBACK, gateway.port), timeout=PATIENCE) as link:
        link.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert gateway.status(link) == 400
    with pytest.raises(OSError, match=r"(?i)ssl|protocol|reset"):
        gateway.connect(version=ssl.TLSVersion.TLSv1_1)
    gateway.connect(version=ssl.TLSVersion.TLSv1_2).close()
    assert gateway.upstream.seen == []


def test_the_log_holds_neither_bodies_nor_queries(gateway):
    gateway.ask("POST", "/v1/fleet/push-object", b"body-secret")
    gateway.ask("POST", "/v1/fleet/push-object?query-secret", b"body-secret")
    gateway.close()
    log = (gateway.folder / "access.log").read_text()
    assert log.count("/v1/fleet/push-object") == 2
    assert "secret" not in log


@pytest.mark.usefixtures("nginx")
def test_a_missing_superlink_is_a_502(folder):
    gateway = Gateway(folder, upstream=f"127.0.0.1:{free_port(LOOPBACK)}")
    try:
        assert gateway.ask("GET", "/health") == 502
    finally:
        gateway.close()


@pytest.mark.usefixtures("nginx")
@pytest.mark.parametrize(("name", "status"), [("localhost", 200), ("elsewhere", 502)])
def test_a_superlink_behind_tls_must_show_the_right_name(folder, name, status):
    upstream = Upstream(tls=folder)
    gateway = Gateway(
        folder,
        upstream=f"127.0.0.1:{upstream.server_port}",
        upstream_ca=folder / "cert.pem",
        upstream_name=name,
    )
    try:
        assert gateway.ask("GET", "/health") == status
        assert len(upstream.seen) == (1 if status == 200 else 0)
    finally:
        gateway.close()
        upstream.close()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"listen": "8443"}, "listen = '8443' must be host:port"),
        ({"listen": "0.0.0.0:99999"}, "must be host:port"),
        ({"upstream": "server:8000; evil on"}, "upstream = "),
        ({"certificate": Path('/a"b')}, "certificate = "),
        ({"key": Path("/a$b")}, "key = "),
        ({"upstream_ca": Path("/ca.pem")}, "nginx does not look at IP addresses"),
        ({"upstream_ca": Path("/ca.pem"), "upstream_name": "a b"}, "must be a DNS name"),
    ],
)
def test_what_nginx_would_misread_is_refused(tmp_path, changes, words):
    with pytest.raises(ValueError, match=words):
        render_config(**arguments(tmp_path, **changes))


def test_the_image_holds_the_configuration_that_the_code_makes():
    kept = (ROOT / "deploy" / "gateway" / "nginx.conf").read_text()
    assert kept == render_container_config(), (
        "python -m coinflower.deploy.gateway.config > deploy/gateway/nginx.conf"
    )
