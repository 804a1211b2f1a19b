"""A forward proxy as hospitals and banks have them: it knows CONNECT, and nothing else.

``python proxies.py '{"port": 3128, …}'`` runs one on a host of its own.
"""

from __future__ import annotations

import base64
import json
import select
import socket
import socketserver
import ssl
import sys
import threading
from typing import Any

# What a proxy may answer instead of making a connection.
ANSWERS = {
    "ok": b"HTTP/1.1 200 Connection established\r\n\r\n",
    "password": b"HTTP/1.1 407 Proxy Authentication Required\r\n"
    b'Proxy-Authenticate: Basic realm="x"\r\nContent-Length: 0\r\n\r\n',
    "forbidden": b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n",
    "unreachable": b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n",
    "portal": b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n<html>Please log in</html>",
}


class Proxy(socketserver.ThreadingTCPServer):
    """A proxy that behaves as it is told.

    Args:
        host: Where it listens.
        port: Where it listens; 0 takes any.
        login: ``user:password`` that it wants.
        behaviour: ``ok``, another key of ``ANSWERS``, ``hang``, or ``inspect``: pose as the server,
            with a certificate of its own, and read along.
        certificate: Files of certificate and key, to pose with.
        cut_after: Close a connection after so many bytes from a client, once.

    Attributes:
        asked: The targets of all CONNECTs, each with whether the login was right.
        read: What it read by posing as the server.
    """

    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 64

    def __init__(
        self,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        login: str | None = None,
        behaviour: str = "ok",
        certificate: tuple[str, str] | None = None,
        cut_after: int | None = None,
    ) -> None:
        self.login = login
        self.behaviour = behaviour
        self.certificate = certificate
        self.cut_after = cut_after
        self.asked: list[tuple[str, bool]] = []
        self.read: list[bytes] = []
        super().__init__((host, port), _Handler)

    @property
    def url(self) -> str:
        """Its address, as the environment states it, without the login."""
        return f"http://{self.server_address[0]!s}:{self.server_address[1]}"

    def __enter__(self) -> Proxy:
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()

    def handle_error(self, *_: Any) -> None:
        """Say nothing: clients come and go."""


class _Handler(socketserver.StreamRequestHandler):
    server: Proxy

    def handle(self) -> None:
        proxy = self.server
        method, target, _ = self.rfile.readline().decode("ascii").split()
        headers = {}
        while line := self.rfile.readline().decode("ascii").strip():
            name, _, value = line.partition(":")
            headers[name.lower()] = value.strip()
        given = headers.get("proxy-authorization", "").removeprefix("Basic ")
        known = proxy.login is None or base64.b64decode(given).decode() == proxy.login
        proxy.asked.append((target, known))
        print(f"{method} {target} login={'right' if known else 'wrong'}", flush=True)
        if not known:
            self.wfile.write(ANSWERS["password"])
        elif proxy.behaviour == "hang":
            self.connection.recv(1)
        elif proxy.behaviour == "inspect":
            self._pose()
        elif method != "CONNECT" or proxy.behaviour != "ok":
            self.wfile.write(ANSWERS.get(proxy.behaviour, ANSWERS["forbidden"]))
        else:
            self._tunnel(target)

    def _pose(self) -> None:
        assert self.server.certificate is not None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*self.server.certificate)
        self.wfile.write(ANSWERS["ok"])
        with context.wrap_socket(self.connection, server_side=True) as secure:
            self.server.read.append(got := secure.recv(1000))
            print(f"read {got!r}", flush=True)

    def _tunnel(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        try:
            there = socket.create_connection((host.strip("[]"), int(port)), timeout=30)
        except OSError:
            self.wfile.write(ANSWERS["unreachable"])
            return
        self.wfile.write(ANSWERS["ok"])
        other = {there: self.connection, self.connection: there}
        sent = 0
        with there:
            while True:
                for side in select.select(list(other), [], [])[0]:
                    if not (part := side.recv(1 << 16)):
                        return
                    sent += len(part) if side is self.connection else 0
                    if self.server.cut_after is not None and sent > self.server.cut_after:
                        self.server.cut_after = None
                        print("cut", flush=True)
                        return
                    other[side].sendall(part)


if __name__ == "__main__":
    Proxy(**json.loads(sys.argv[1])).serve_forever()
