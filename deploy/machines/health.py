"""The standard gRPC health protocol on a port, and a look at it from the same machine.

``python -m coinflower.deploy.machines.health PORT`` is ``coinflower health PORT`` at a quarter of
the cost, for checks that are made every few seconds.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Self

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from coinflower.deploy.errors import DeploymentError
from coinflower.deploy.flower.loopback import LOOPBACK

SERVICE = "coinflower"
"""Name under which health is reported, besides the empty name that stands for the whole process."""

ALIVE = "alive"
"""Name under which the process reports that it answers at all, for whatever restarts it."""

_LOOK_SECONDS = 0.5
_ANSWER_SECONDS = 3.0


class HealthServer:
    """Tells SERVING as long as a check holds; lives as long as its ``with`` block.

    Args:
        port: Port; None serves none.
        check: Whether all is well; asked twice a second.
        host: Interface to listen on; its answer is no secret, but nobody is asked for a password.

    Raises:
        DeploymentError: The port is in use.
    """

    def __init__(
        self, port: int | None, check: Callable[[], bool], *, host: str = LOOPBACK
    ) -> None:
        self._check = check
        self._stop = threading.Event()
        self._servicer = health.HealthServicer()
        self._server: grpc.Server | None = None
        self._thread = threading.Thread(target=self._follow, name="health", daemon=True)
        self._servicer.set(ALIVE, health_pb2.HealthCheckResponse.SERVING)
        self._tell(False)
        if port is None:
            return
        # Without SO_REUSEPORT a second program on the port is an error, not a coin toss.
        self._server = grpc.server(
            ThreadPoolExecutor(max_workers=4), options=[("grpc.so_reuseport", 0)]
        )
        health_pb2_grpc.add_HealthServicer_to_server(self._servicer, self._server)
        try:
            self._server.add_insecure_port(f"{host}:{port}")
        except RuntimeError:
            raise DeploymentError(
                f"The health port {port} is in use by another program, or {host} is no address of "
                "this machine; choose another."
            ) from None

    def __enter__(self) -> Self:
        if self._server is not None:
            self._server.start()
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._server is not None:
            self._servicer.enter_graceful_shutdown()
            self._server.stop(0.2).wait()

    def _follow(self) -> None:
        while not self._stop.is_set():
            self._tell(self._check())
            self._stop.wait(_LOOK_SECONDS)

    def _tell(self, well: bool) -> None:
        state = health_pb2.HealthCheckResponse
        for service in ("", SERVICE):
            self._servicer.set(service, state.SERVING if well else state.NOT_SERVING)


def ask_health(port: int) -> str:
    """Return what the process on a local port says: SERVING, NOT_SERVING, or why it is silent."""
    # A proxy that the environment names does not reach this machine.
    options = [("grpc.enable_http_proxy", 0)]
    with grpc.insecure_channel(f"{LOOPBACK}:{port}", options=options) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        try:
            answer = stub.Check(health_pb2.HealthCheckRequest(), timeout=_ANSWER_SECONDS)
        except grpc.RpcError as error:
            return f"no answer on port {port} ({error.code().name.lower()})"
    return str(health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status))


if __name__ == "__main__":
    told = ask_health(int(sys.argv[1]))
    print(told)
    sys.exit(told != "SERVING")
