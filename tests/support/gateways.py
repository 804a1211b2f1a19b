"""A real nginx gateway on loopback, and a tiny upstream behind it that takes notes."""

from __future__ import annotations

import http.server
import os
import signal
import socket
import ssl
import subprocess
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from coinflower.deploy.flower.loopback import LOOPBACK, free_port
from coinflower.deploy.gateway.config import render_config
from coinflower.deploy.gateway.process import find_nginx
from tests.support.waiting import PATIENCE, wait_until

NOBODY = 65534


def arguments(folder: Path, **changes: Any) -> dict[str, Any]:
    values: dict[str, Any] = {
        "listen": "127.0.0.1:8443",
        "certificate": folder / "cert.pem",
        "key": folder / "key.pem",
        "upstream": "127.0.0.1:8000",
        "upstream_ca": None,
        "runtime_folder": folder,
        "largest_body": 6 << 20,
        "access_log": folder / "access.log",
    }
    return {**values, **changes}


def make_certificate(folder: Path) -> None:
    """Write a self-signed certificate for localhost that is its own authority."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(minutes=5))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    encoding, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    (folder / "cert.pem").write_bytes(certificate.public_bytes(encoding))
    (folder / "key.pem").write_bytes(
        key.private_bytes(encoding, serialization.PrivateFormat.PKCS8, plain)
    )


class Upstream(http.server.ThreadingHTTPServer):
    """Answers everything with 200 and remembers it."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, tls: Path | None = None) -> None:
        super().__init__((LOOPBACK, 0), Recorder)
        self.seen: list[tuple[str, str, int]] = []
        self.hosts: list[str] = []
        if tls is not None:
            context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            context.load_cert_chain(tls / "cert.pem", tls / "key.pem")
            self.socket = context.wrap_socket(self.socket, server_side=True)
        self.thread = threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True)
        self.thread.start()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: a refused handshake is part of the test."""

    def close(self) -> None:
        self.shutdown()
        self.server_close()
        self.thread.join()


class Recorder(http.server.BaseHTTPRequestHandler):
    server: Any
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.seen.append((self.command, self.path, len(body)))
        self.server.hosts += self.headers.get_all("Host", [])
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_PUT = do_DELETE = do_HEAD = do_OPTIONS = do_POST  # noqa: N815

    def log_message(self, *_: object) -> None:
        """Say nothing."""


class Gateway:
    """A running nginx and the folder it lives in.

    It lets an address that has used up its burst send one request a second, not three hundred:
    a machine that is too busy to send more than those floods it all the same.
    """

    def __init__(self, folder: Path, **changes: Any) -> None:
        self.folder = folder
        self.port = free_port(LOOPBACK)
        config = folder / "nginx.conf"
        text = render_config(**arguments(folder, listen=f"127.0.0.1:{self.port}", **changes))
        assert "zone=requests:4m rate=300r/s" in text
        config.write_text(text.replace("rate=300r/s", "rate=1r/s"))
        identity: dict[str, Any] = {}
        if os.geteuid() == 0:
            for path in (folder, *folder.iterdir()):
                os.chown(path, NOBODY, NOBODY)
            identity = {"user": NOBODY, "group": NOBODY}
        self.process = subprocess.Popen(
            [find_nginx(), "-e", "stderr", "-c", str(config)], stderr=subprocess.PIPE, **identity
        )
        wait_until(self._listens, alive=lambda: self.process.poll() is None)

    def _listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex((LOOPBACK, self.port)) == 0

    def connect(self, version: ssl.TLSVersion | None = None) -> ssl.SSLSocket:
        context = ssl.create_default_context(cafile=self.folder / "cert.pem")
        if version is not None:
            context.minimum_version = context.maximum_version = version
        raw = socket.create_connection((LOOPBACK, self.port), timeout=PATIENCE)
        try:
            return context.wrap_socket(raw, server_hostname="localhost")
        except BaseException:
            raw.close()
            raise

    def ask(self, method: str, target: str, body: bytes = b"") -> int | None:
        """Send a request line as it is, without any client's own normalising; return the status."""
        head = f"{method} {target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        head += f"Content-Length: {len(body)}\r\n\r\n"
        with self.connect() as link:
            link.sendall(head.encode("latin-1") + body)
            return self.status(link)

    def status(self, link: ssl.SSLSocket) -> int | None:
        line = link.makefile("rb").readline()
        return int(line.split()[1]) if line else None

    def close(self) -> str:
        """End it, once, and return what it said of errors."""
        if self.process.poll() is not None:
            return ""
        self.process.send_signal(signal.SIGQUIT)  # it still logs what it has served
        return str(self.process.communicate(timeout=PATIENCE)[1], "utf-8")
