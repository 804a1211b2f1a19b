"""The gRPC health protocol on a local port."""

import sys
import threading

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from coinflower.cli import main as cli
from coinflower.deploy.errors import DeploymentError
from coinflower.deploy.flower.loopback import LOOPBACK, free_port
from coinflower.deploy.machines import health
from coinflower.deploy.machines.health import ALIVE, SERVICE, HealthServer, ask_health
from tests.support.waiting import PATIENCE, wait_until


@pytest.fixture(autouse=True)
def _patience(monkeypatch):
    """Let a busy machine take its time to answer."""
    monkeypatch.setattr(health, "_ANSWER_SECONDS", PATIENCE)


def wait_for(port, answer):
    wait_until(lambda: ask_health(port) == answer)


def test_it_serves_while_the_check_holds():
    well = threading.Event()
    port = free_port(LOOPBACK)
    with HealthServer(port, well.is_set):
        wait_for(port, "NOT_SERVING")
        well.set()
        wait_for(port, "SERVING")
        well.clear()
        wait_for(port, "NOT_SERVING")
    assert "no answer" in ask_health(port)


def test_any_client_of_the_protocol_may_ask_by_name():
    port = free_port(LOOPBACK)
    with HealthServer(port, lambda: True), grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        wait_for(port, "SERVING")
        stub = health_pb2_grpc.HealthStub(channel)
        request = health_pb2.HealthCheckRequest(service=SERVICE)
        for answer in (
            stub.Check(request, timeout=PATIENCE),
            next(iter(stub.Watch(request, timeout=PATIENCE))),
        ):
            assert answer.status == health_pb2.HealthCheckResponse.SERVING


def test_a_process_that_is_not_well_is_alive_all_the_same():
    port = free_port(LOOPBACK)
    with HealthServer(port, lambda: False), grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        request = health_pb2.HealthCheckRequest(service=ALIVE)
        answer = health_pb2_grpc.HealthStub(channel).Check(request, timeout=PATIENCE)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
        assert ask_health(port) == "NOT_SERVING"


def test_another_interface_than_loopback_is_listened_on_if_asked_for():
    port = free_port("127.0.0.2")
    address = f"127.0.0.2:{port}"
    with (
        HealthServer(port, lambda: True, host="127.0.0.2"),
        grpc.insecure_channel(address) as channel,
    ):
        stub = health_pb2_grpc.HealthStub(channel)
        assert stub.Check(health_pb2.HealthCheckRequest(service=ALIVE), timeout=PATIENCE)
        assert "no answer" in ask_health(port)


def test_without_a_port_nobody_listens():
    with HealthServer(None, lambda: True):
        pass


def test_a_port_in_use_is_named():
    port = free_port(LOOPBACK)
    with HealthServer(port, lambda: True), pytest.raises(DeploymentError, match=f"{port} is in us"):
        HealthServer(port, lambda: True)


@pytest.mark.parametrize(("well", "code"), [(True, 0), (False, 1), (None, 1)])
def test_the_command_exits_as_a_container_wants_it(monkeypatch, well, code):
    port = free_port(LOOPBACK)
    monkeypatch.setattr(sys, "argv", ["coinflower", "health", str(port)])
    with HealthServer(None if well is None else port, lambda: bool(well)):
        if well:
            wait_for(port, "SERVING")
        with pytest.raises(SystemExit) as ended:
            cli.main()
    assert (ended.value.code or 0) == code
