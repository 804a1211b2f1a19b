"""Programs of one machine talk to each other, whatever proxy the environment names."""

import http.server
import socket
import threading

import pytest

from coinflower.deploy.flower.loopback import free_port, is_free, is_healthy, spare_loopback
from coinflower.deploy.flower.run_app import write_app
from coinflower.deploy.flower.superlink import Superlink
from coinflower.deploy.machines.health import HealthServer, ask_health
from tests.support.waiting import wait_until

SERVER = """
from flwr.serverapp import ServerApp

app = ServerApp()

@app.main()
def main(grid, context):
    list(grid.get_node_ids())
"""


@pytest.fixture(autouse=True)
def _dead_proxy(monkeypatch):
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{free_port('127.0.0.1')}")
        monkeypatch.delenv(name.lower(), raising=False)
    monkeypatch.setenv("NO_PROXY", "fd00::/8")
    monkeypatch.delenv("no_proxy", raising=False)


def test_health_is_asked_without_the_proxy():
    handler = http.server.SimpleHTTPRequestHandler
    with http.server.HTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        assert is_healthy(f"http://127.0.0.1:{server.server_port}/", None)
        server.shutdown()
    assert not is_healthy(f"http://127.0.0.1:{server.server_port}/", None)


def test_the_health_service_is_asked_without_the_proxy():
    port = free_port("127.0.0.1")
    with HealthServer(port, lambda: True):
        assert ask_health(port) == "SERVING"


def test_a_superlink_and_its_run_need_no_proxy(tmp_path):
    app = write_app(
        tmp_path / "app", serverapp="toy:app", clientapp="coinflower.client.app:app", config={}
    )
    (app / "toy.py").write_text(SERVER)
    with Superlink(tmp_path) as superlink:
        run = superlink.start_run(app)
        wait_until(lambda: superlink.status(run).finished)
        assert superlink.status(run).completed


@pytest.mark.parametrize("name", ["no_proxy", "NO_PROXY"])
def test_exceptions_that_are_there_stay(name):
    spared = spare_loopback({name: "a.org,10.0.0.0/8,fd00::/8"})
    assert spared["no_proxy"] == spared["NO_PROXY"] == "a.org,10.0.0.0/8,localhost,127.0.0.1,::1"


def test_a_port_of_ipv6_is_free_until_it_is_taken():
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as taken:
        port = taken.getsockname()[1]
        assert not is_free("::1", port)
    assert is_free("::1", free_port("127.0.0.1"))
