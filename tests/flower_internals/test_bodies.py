"""Long bodies of requests to a real uvicorn: whole, cut off, one behind the other, over TLS."""

from __future__ import annotations

import functools
import hashlib
import os
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from coinflower.flower_internals.superlink.bodies import LEAST_BYTES, LONG_BODY, LongBodyProtocol
from tests.support.tls import certificate
from tests.support.waiting import PATIENCE, wait_until

LONG = os.urandom(5 * LEAST_BYTES + 3)
PATH = "/long"


class Served:
    """A server that answers a body with its hash, and a connection to it.

    Attributes:
        ways: How each body came: ``long``, ``pieces``, or ``none`` if its sender went away.
        hashes: Of those that came.
    """

    def __init__(self, loop: str, tls: tuple[Path, Path] | None) -> None:
        self.ways: list[str] = []
        self.hashes: list[bytes] = []
        self._tls = tls
        files = {} if tls is None else {"ssl_certfile": tls[0], "ssl_keyfile": tls[1]}
        config = uvicorn.Config(
            self._answer,
            http=functools.partial(LongBodyProtocol, paths=[PATH]),  # type: ignore[arg-type]
            loop=loop,  # type: ignore[arg-type]
            interface="asgi3",
            log_level="error",
            timeout_keep_alive=int(PATIENCE),
            **files,  # type: ignore[arg-type]
        )
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(
            target=self._server.run, kwargs={"sockets": [self._listening]}, daemon=True
        )
        self._thread.start()

    def connect(self) -> socket.socket:
        link = socket.create_connection(self._listening.getsockname(), timeout=PATIENCE)
        if self._tls is None:
            return link
        context = ssl.create_default_context(cafile=self._tls[0])
        return context.wrap_socket(link, server_hostname="127.0.0.1")

    def close(self) -> None:
        self._server.should_exit = True
        self._thread.join(PATIENCE)

    async def _answer(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        body: Any = b""
        if LONG_BODY in scope:
            body = await scope[LONG_BODY].whole()
            self.ways.append("none" if body is None else "long")
        else:
            event = {"more_body": True}
            while event.get("more_body"):
                event = await receive()
                body += event.get("body", b"")
            self.ways.append("pieces" if event["type"] == "http.request" else "none")
        if self.ways[-1] != "none":
            answer = hashlib.sha256(body).digest()
            self.hashes.append(answer)
            headers = [(b"content-length", b"%d" % len(answer))]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await send({"type": "http.response.body", "body": answer})


@pytest.fixture(params=[("uvloop", False), ("asyncio", False), ("uvloop", True), ("asyncio", True)])
def served(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Served]:
    loop, secure = request.param
    server = Served(loop, certificate(tmp_path / "tls") if secure else None)
    yield server
    server.close()


def head(size: int, path: str = PATH, more: str = "") -> bytes:
    return f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {size}\r\n{more}\r\n".encode()


def read(link: socket.socket) -> bytes:
    """Return the body of the next answer, a byte at a time so that none of the one after goes."""
    answer = b""
    while b"\r\n\r\n" not in answer:
        part = link.recv(1)
        assert part, f"the connection ended after {answer!r}"
        answer += part
    assert answer.startswith(b"HTTP/1.1 200"), answer
    body = b""
    while len(body) < 32:
        body += link.recv(32 - len(body))
    return body


def digest(body: bytes) -> bytes:
    return hashlib.sha256(body).digest()


@pytest.mark.parametrize("first", [0, 1, 1000, LEAST_BYTES])
def test_long_bodies_arrive_whole_one_after_the_other(served: Served, first: int) -> None:
    with served.connect() as link:
        for body in (LONG, LONG[1:], LONG[:10], LONG):
            request = head(len(body)) + body
            cut = len(head(len(body))) + first
            link.sendall(request[:cut])
            link.sendall(request[cut:])
            assert read(link) == digest(body)
    assert served.ways == ["long", "long", "pieces", "long"]


def test_what_follows_a_long_body_is_the_next_request(served: Served) -> None:
    with served.connect() as link:
        link.sendall((head(len(LONG)) + LONG) * 2 + head(3) + b"abc")
        assert [read(link) for _ in range(3)] == [digest(LONG), digest(LONG), digest(b"abc")]


def test_a_body_that_is_longer_than_stated_adds_nothing(served: Served) -> None:
    with served.connect() as link:
        link.sendall(head(len(LONG)) + LONG + b"\x00more\r\n\r\n")
        wait_until(lambda: served.hashes == [digest(LONG)])
        while link.recv(1000):  # the rest is no request, so the connection ends
            pass
    assert served.ways == ["long"]


def test_a_connection_that_is_cut_in_mid_body_is_no_request_and_others_are_served(
    served: Served,
) -> None:
    with served.connect() as link:
        link.sendall(head(len(LONG)) + LONG[: len(LONG) // 2])
    wait_until(lambda: served.ways == ["none"])
    with served.connect() as link:
        link.sendall(head(len(LONG)) + LONG)
        assert read(link) == digest(LONG)


def test_other_bodies_come_as_they_always_do(served: Served) -> None:
    with served.connect() as link:
        link.sendall(head(len(LONG), path="/other") + LONG)
        assert read(link) == digest(LONG)
        link.sendall(b"POST /long HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
        link.sendall(b"%x\r\n" % len(LONG) + LONG + b"\r\n0\r\n\r\n")
        assert read(link) == digest(LONG)
        link.sendall(head(len(LONG), more="Expect: 100-continue\r\n"))
        assert link.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        link.sendall(LONG)
        assert read(link) == digest(LONG)
    assert served.ways == ["pieces"] * 3
