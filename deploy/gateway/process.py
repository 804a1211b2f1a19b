"""An nginx as a child of this process: the one door to a SuperLink on loopback."""

from __future__ import annotations

import contextlib
import os
import ssl
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from coinflower.accounting.errors import UserError
from coinflower.deploy.errors import DeploymentError
from coinflower.deploy.flower.guard import start_guarded, stop_guarded
from coinflower.deploy.flower.loopback import LOOPBACK, is_free, is_healthy
from coinflower.deploy.flower.superlink import TlsFiles
from coinflower.deploy.gateway.config import render_config
from coinflower.deploy.programs import find_program

_START_SECONDS = 15.0


class Gateway:
    """A running gateway.

    Args:
        guard: Its process.
        log_file: Its log.
        largest_body: Bytes of the largest request that passes.
        reload: Lets larger ones pass.

    Attributes:
        log_file: Its log, with one line a request.
    """

    def __init__(
        self,
        guard: subprocess.Popen[bytes],
        log_file: Path,
        largest_body: int,
        reload: Callable[[int], None],
    ) -> None:
        self._guard = guard
        self.log_file = log_file
        self._largest_body = largest_body
        self._reload = reload

    def let_pass(self, largest_body: int) -> None:
        """Let requests of that many bytes pass, too; those in hand are finished.

        Raises:
            DeploymentError: nginx does not take it.
        """
        if largest_body > self._largest_body:
            self._reload(largest_body)
            self._largest_body = largest_body

    def alive(self) -> bool:
        """Return whether nginx is running."""
        return self._guard.poll() is None

    def last_log_lines(self) -> str:
        """Return the end of its log, for the message about its end."""
        lines = self.log_file.read_text(errors="replace").strip().splitlines()[-3:]
        return f"The gateway (nginx) ended. Its log {self.log_file} ends with:\n" + "\n".join(lines)


def find_nginx() -> str:
    """Return the path of nginx.

    Raises:
        DeploymentError: It is not installed.
    """
    found = find_program("nginx")
    if found is None:
        raise DeploymentError(
            "The gateway needs nginx, which is not installed; on Debian: apt install nginx-light"
        )
    return found


def listen_address(listen: str) -> tuple[str, int]:
    """Split ``host:port`` of the door.

    Raises:
        ValueError: It is something else.
    """
    host, _, port = listen.rpartition(":")
    if not host or not port.isdigit() or not 1 <= int(port) <= 65535:
        raise UserError(f"listen = {listen!r} must be host:port, as in 0.0.0.0:8443.")
    return host, int(port)


@contextlib.contextmanager
def gateway(
    folder: Path, *, listen: str, tls: TlsFiles, upstream: str, largest_body: int
) -> Iterator[Gateway]:
    """Run a gateway as long as the block lasts.

    Args:
        folder: For its configuration and log.
        listen: ``host:port`` that nodes connect to.
        tls: What it shows to nodes, and what the SuperLink shows to it.
        upstream: ``host:port`` of the SuperLink, on loopback.
        largest_body: Bytes of the largest request that passes.

    Raises:
        DeploymentError: nginx is not installed, the port is in use, or it does not start.
    """
    program = find_nginx()
    host, port = listen_address(listen)
    if not is_free(host.strip("[]"), port):
        raise DeploymentError(f"Port {port} on {host} is in use by another program.")
    log_file = folder / "gateway.log"
    with _runtime_folder(folder) as runtime:
        config = folder / "nginx.conf"
        command = [program, "-e", "stderr", "-p", str(runtime), "-c", str(config.absolute())]

        def configure(largest_body: int) -> None:
            config.write_text(
                render_config(
                    listen=listen,
                    certificate=tls.certificate,
                    key=tls.key,
                    upstream=upstream,
                    upstream_ca=tls.ca,
                    runtime_folder=runtime,
                    upstream_name="localhost",
                    largest_body=largest_body,
                )
            )

        def reload(largest_body: int) -> None:
            configure(largest_body)
            done = subprocess.run(
                [*command, "-s", "reload"], capture_output=True, text=True, check=False
            )
            if done.returncode != 0:
                raise DeploymentError(f"The gateway (nginx) takes no new limit: {done.stderr}")

        configure(largest_body)
        with log_file.open("ab") as log:
            guard = start_guarded(command, log=log)
        door = Gateway(guard, log_file, largest_body, reload)
        try:
            _wait_until_open(door, host, port, tls)
            yield door
        finally:
            stop_guarded(guard)


@contextlib.contextmanager
def _runtime_folder(folder: Path) -> Iterator[Path]:
    """Yield a folder for nginx's temporary files.

    Started by root, nginx works as another user, who may not see into the server's folder.
    """
    if os.geteuid() != 0:
        runtime = folder / "gateway"
        runtime.mkdir(exist_ok=True)
        yield runtime
        return
    with tempfile.TemporaryDirectory(prefix="coinflower-gateway-", dir="/run") as name:
        Path(name).chmod(0o711)
        yield Path(name)


def _wait_until_open(door: Gateway, host: str, port: int, tls: TlsFiles) -> None:
    # Asked through its own door; the certificate always names loopback, other addresses may be
    # known by a name only.
    context = ssl.create_default_context(cafile=tls.ca)
    context.check_hostname = False
    reached = LOOPBACK if host == "0.0.0.0" else "[::1]" if host == "[::]" else host
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline:
        if not door.alive():
            raise DeploymentError(door.last_log_lines())
        if is_healthy(f"https://{reached}:{port}/health", context):
            return
        time.sleep(0.05)
    raise DeploymentError(f"The gateway did not answer at {host}:{port}; see {door.log_file}.")
