"""A real Flower SuperLink as a child of this process, and the runs submitted to it.

The SuperLink (``coinflower.deploy.flower.fenced_superlink``) starts ``flower-superexec``, which
starts ``flwr-serverapp`` for a run. All of them live below a guard
(``coinflower.deploy.flower.guard``) and end with it. ``coinflower.deploy.flower.run_app`` makes the
directory that a run is submitted from.
"""

from __future__ import annotations

import os
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self, TypeVar

from coinflower.accounting.errors import UserError
from coinflower.deploy.errors import DeploymentError
from coinflower.deploy.flower.guard import start_guarded, stop_guarded
from coinflower.deploy.flower.loopback import (
    LOOPBACK,
    free_port,
    is_free,
    is_healthy,
    spare_loopback,
)

if TYPE_CHECKING:
    from coinflower.flower_internals.control import Control, RunStatus

Response = TypeVar("Response")

_START_TIMEOUT_SECONDS = 120.0
_ENVIRONMENT = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    # Otherwise every question of ours is a line, and the log grows without end.
    "FLWR_LOG_LEVEL": "WARNING",
    # The default of 1 s is half a second lost, on average, before a run starts.
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.25",
    # Threads of the SuperLink fight for the interpreter: two requests at once cost 5 ms each, one
    # after the other 3 ms each.
    "FLWR_PRIVATE_MAX_CONCURRENT_OBJ_PULLS": "1",
    "FLWR_PRIVATE_MAX_CONCURRENT_OBJ_PUSHES": "1",
}


class SuperlinkError(DeploymentError):
    """The SuperLink could not be started, or did not do what it was asked; says why."""


@dataclass(frozen=True, kw_only=True)
class TlsFiles:
    """PEM files of a SuperLink that is reached over TLS; all three are needed.

    Attributes:
        ca: Certificate of the authority that signed ``certificate``.
        certificate: The SuperLink's certificate, with the SAN of the address in use.
        key: Its private key.
    """

    ca: Path
    certificate: Path
    key: Path


class Superlink:
    """A SuperLink that lives as long as this object's ``with`` block, and no longer.

    Without ``tls`` it speaks plain HTTP, and only on the loopback interface: Flower's Control API
    has no authentication, so whoever reaches the port may start a run.

    Args:
        directory: For the log (``superlink.log``) and Flower's own files (``flwr``).
        port: TCP port; None takes a free one.
        host: Interface to listen on.
        tls: Certificate files.
        authenticate_nodes: Accept registered node keys only; needs ``tls``.
        simulated_nodes: Let Flower's simulation engine (``flwr[simulation]``) play this many nodes
            instead of waiting for real ones.
        environment: Further environment variables, inherited by the ServerApp.

    Raises:
        ValueError: If a host other than loopback or ``authenticate_nodes`` goes without ``tls``.
    """

    def __init__(
        self,
        directory: Path,
        *,
        port: int | None = None,
        host: str = LOOPBACK,
        tls: TlsFiles | None = None,
        authenticate_nodes: bool = False,
        simulated_nodes: int | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        if tls is None and host != LOOPBACK:
            raise UserError(f"host {host!r} needs tls: without it only {LOOPBACK} is allowed")
        if tls is None and authenticate_nodes:
            raise UserError("authenticate_nodes needs tls")
        self._directory = directory
        self._host = host
        self._tls = tls
        self.authenticates_nodes = authenticate_nodes
        self._simulated_nodes = simulated_nodes
        self._environment = dict(environment or {})
        self._guard: subprocess.Popen[bytes] | None = None
        self._control: Control | None = None
        self.port = free_port(host) if port is None else port
        self.log_file = directory / "superlink.log"

    @property
    def address(self) -> str:
        """``host:port`` that nodes on this machine connect to."""
        return f"{LOOPBACK if self._host == '0.0.0.0' else self._host}:{self.port}"

    def start(self) -> None:
        """Start the SuperLink and return as soon as it answers.

        Raises:
            SuperlinkError: If the port is in use, or the SuperLink ends or stays silent.
        """
        if not is_free(self._host, self.port):
            raise SuperlinkError(
                f"Port {self.port} on {self._host} is in use by another program; "
                "choose another port or stop that program."
            )
        home = self._directory / "flwr"
        home.mkdir(parents=True, exist_ok=True)
        binaries = Path(sys.executable).parent
        path = f"{binaries}{os.pathsep}{os.environ.get('PATH', '')}"
        env = spare_loopback(os.environ) | _ENVIRONMENT | self._environment
        env |= {"FLWR_HOME": str(home), "PATH": path}
        try:
            with self.log_file.open("ab") as log:
                self._guard = start_guarded(self._command(), env=env, log=log)
            # Importing Flower takes as long as the SuperLink takes to start: both at once.
            self._control = self._connect()
            self._wait_until_healthy()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End the SuperLink and every process below it; harmless when there is none."""
        if self._control is not None:
            self._control.close()
            self._control = None
        if self._guard is not None:
            stop_guarded(self._guard)
            self._guard = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def alive(self) -> bool:
        """Return whether the SuperLink's process is running."""
        return self._guard is not None and self._guard.poll() is None

    def start_run(self, app: Path) -> int:
        """Submit a run of the app in a directory and return its id."""
        run_id = self.ask(lambda control: control.start_run(app, self._simulated_nodes))
        if run_id is None:
            raise SuperlinkError(f"The SuperLink refused the app in {app}; see {self.log_file}.")
        return run_id

    def status(self, run_id: int) -> RunStatus:
        """Return where a run is now."""
        return self.ask(lambda control: control.run_status(run_id))

    def wait(
        self,
        run_id: int,
        *,
        timeout: float | None = None,
        stop: threading.Event | None = None,
        interval: float = 0.25,
    ) -> RunStatus:
        """Follow a run until it is over, the time has passed, or ``stop`` is set.

        Raises:
            SuperlinkError: If the SuperLink itself ends first.
        """
        stop = threading.Event() if stop is None else stop
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            status = self.status(run_id)
            late = deadline is not None and time.monotonic() > deadline
            if status.finished or late or stop.wait(interval):
                return status

    def run_log(self, run_id: int, *, lines: int = 40) -> str:
        """Return the last lines that a finished run's ServerApp wrote."""
        text = self.ask(lambda control: control.run_log(run_id))
        return "\n".join(text.splitlines()[-lines:])

    def stop_run(self, run_id: int) -> None:
        """Stop a run; its ServerApp process ends within its next heartbeat."""
        self.ask(lambda control: control.stop_run(run_id))

    def online_nodes(self) -> list[int]:
        """Ids of the nodes that are online."""
        nodes = self.ask(lambda control: control.nodes())
        return [node.node_id for node in nodes if node.status == "online"]

    def ask(self, question: Callable[[Control], Response]) -> Response:
        """Return what the Control API answers to a question.

        Raises:
            SuperlinkError: It refuses, is silent, or has ended.
        """
        import httpx

        from coinflower.flower_internals.errors import refusal_in

        if self._control is None:
            raise SuperlinkError("The SuperLink is not running.")
        try:
            return question(self._control)
        except httpx.HTTPStatusError as error:
            known = refusal_in(error.response)
            why = known.message if known else f"HTTP status {error.response.status_code}"
            raise SuperlinkError(f"The SuperLink refused: {why}") from error
        except httpx.TransportError as error:
            if self.alive():
                raise SuperlinkError(f"The SuperLink at {self.address} is silent.") from error
            raise SuperlinkError(self._obituary("has ended")) from error

    def _command(self) -> list[str]:
        command = [sys.executable, "-P", "-m", "coinflower.deploy.flower.fenced_superlink"]
        command += ["--disable-runtime-dependency-installation"]
        command += ["--host", self._host, "--port", str(self.port)]
        command += [] if self._simulated_nodes is None else ["--simulation"]
        if self._tls is None:
            return [*command, "--insecure"]
        command += ["--ssl-ca-certfile", str(self._tls.ca)]
        command += ["--ssl-certfile", str(self._tls.certificate)]
        command += ["--ssl-keyfile", str(self._tls.key)]
        return [*command, "--enable-supernode-auth"] if self.authenticates_nodes else command

    def _connect(self) -> Control:
        from coinflower.flower_internals.control import Control

        return Control(self.address, None if self._tls is None else self._tls.ca.read_bytes())

    def _wait_until_healthy(self) -> None:
        context = None if self._tls is None else ssl.create_default_context(cafile=self._tls.ca)
        url = f"{'http' if self._tls is None else 'https'}://{self.address}/health"
        deadline = time.monotonic() + _START_TIMEOUT_SECONDS
        while time.monotonic() < deadline:
            if not self.alive():
                raise SuperlinkError(self._obituary("did not start"))
            if is_healthy(url, context):
                return
            time.sleep(0.05)
        raise SuperlinkError(self._obituary(f"was silent for {_START_TIMEOUT_SECONDS:.0f} s"))

    def _obituary(self, what: str) -> str:
        last = self.log_file.read_text(errors="replace").strip().splitlines()[-5:]
        return f"The SuperLink {what}. Its log {self.log_file} ends with:\n" + "\n".join(last)
