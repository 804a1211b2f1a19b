"""Direct connections against servers that keep, drop, cut off or refuse."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from coinflower.flower_internals.connections import trust
from coinflower.flower_internals.direct import READ_INTO, DirectTransport
from tests.support.tls import certificate
from tests.support.waiting import PATIENCE, wait_until

CONTENT = bytes(range(256)) * 4000
Script = Callable[[socket.socket], None]


class Server:
    """Accepts connections, and lets each follow the next script.

    Attributes:
        accepted: How many there were.
        closed: Whether the client has ended the last of them.
    """

    def __init__(self, *scripts: Script, tls: ssl.SSLContext | None = None) -> None:
        self.accepted = 0
        self._scripts = scripts
        self._tls = tls
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        for script in self._scripts:
            link, _ = self._listening.accept()
            self.accepted += 1
            with contextlib.suppress(OSError), link:
                script(link if self._tls is None else self._tls.wrap_socket(link, True))


def read_request(link: socket.socket) -> bytes:
    """Return a request, head and body."""
    got = b""
    while b"\r\n\r\n" not in got:
        part = link.recv(1 << 16)
        if not part:
            raise ConnectionError
        got += part
    head = got.partition(b"\r\n\r\n")[0].lower()
    size = int(head.partition(b"content-length: ")[2].split(b"\r\n")[0] or 0)
    while len(got) < len(head) + 4 + size:
        got += link.recv(1 << 16)
    return got


def answer(content: bytes = CONTENT, *, stated: int | None = None, status: str = "200 OK") -> bytes:
    size = len(content) if stated is None else stated
    return f"HTTP/1.1 {status}\r\nContent-Length: {size}\r\n\r\n".encode() + content


def answers(*contents: bytes) -> Script:
    def script(link: socket.socket) -> None:
        for content in contents:
            read_request(link)
            link.sendall(content)

    return script


def stays(link: socket.socket) -> None:
    """Take all, answer nothing, until the client goes."""
    while link.recv(1 << 16):
        pass


@contextlib.contextmanager
def client(server: Server, *, authority: Path | None = None) -> Iterator[httpx.Client]:
    verify = False if authority is None else trust(authority.read_bytes())
    scheme = "http" if authority is None else "https"
    with httpx.Client(
        transport=DirectTransport(verify),
        base_url=f"{scheme}://127.0.0.1:{server.port}",
        timeout=PATIENCE,
    ) as made:
        yield made


def fetch(asking: httpx.Client) -> bytes:
    """Return the body of an answer, in memory of our own."""
    with asking.stream("GET", "/") as response:
        memory = bytearray(int(response.headers["content-length"]))
        response.extensions[READ_INTO](memoryview(memory))
        return bytes(memory)


def test_a_connection_is_kept_for_further_requests() -> None:
    server = Server(answers(*[answer()] * 4))
    with client(server) as asking:
        assert asking.post("/", content=CONTENT).content == CONTENT
        assert fetch(asking) == CONTENT
        assert asking.post("/", content=b"").content == CONTENT
        assert fetch(asking) == CONTENT
    assert server.accepted == 1


def test_a_request_arrives_as_it_was_made() -> None:
    got: list[bytes] = []

    def script(link: socket.socket) -> None:
        got.append(read_request(link))
        link.sendall(answer(b""))

    with client(Server(script)) as asking:
        asking.post("/a%20b?c=d", content=iter([b"ab", b"", b"c"]), headers={"Content-Length": "3"})
    head, _, body = got[0].partition(b"\r\n\r\n")
    lines = head.split(b"\r\n")
    assert lines[0] == b"POST /a%20b?c=d HTTP/1.1"
    names = [line.partition(b":")[0].lower() for line in lines[1:]]
    assert sorted(names) == sorted(set(names)) > [b"accept"]
    assert body == b"abc"


@pytest.mark.parametrize("last", [answer(b"x" * 10), answer(b"")])
def test_a_connection_that_the_server_has_ended_is_not_used_again(last: bytes) -> None:
    server = Server(answers(answer()), answers(last))
    with client(server) as asking:
        fetch(asking)
        line = asking._transport._idle[0]  # type: ignore[attr-defined]
        wait_until(lambda: not line.is_alive())
        assert asking.get("/").content == last.partition(b"\r\n\r\n")[2]
    assert server.accepted == 2


@pytest.mark.parametrize("reading", [fetch, lambda asking: asking.get("/").content])
@pytest.mark.parametrize("sent", [0, 10, len(CONTENT) - 1])
def test_an_answer_that_is_cut_off_is_none(
    reading: Callable[[httpx.Client], bytes], sent: int
) -> None:
    server = Server(answers(answer(CONTENT[:sent], stated=len(CONTENT))), answers(answer()))
    with client(server) as asking:
        with pytest.raises(httpx.RemoteProtocolError, match="cut off"):
            reading(asking)
        assert reading(asking) == CONTENT


def test_an_answer_that_nobody_reads_to_its_end_spoils_no_other() -> None:
    server = Server(answers(answer()), answers(answer(b"next")))
    with client(server) as asking:
        with asking.stream("GET", "/") as response:
            next(response.iter_raw())
        assert asking.get("/").content == b"next"


def test_a_refusal_in_mid_upload_is_heard() -> None:
    def script(link: socket.socket) -> None:
        link.recv(100)
        link.sendall(answer(b"too large", status="413 Too Large"))
        link.shutdown(socket.SHUT_WR)
        while link.recv(1 << 16):
            pass

    server = Server(script, answers(answer()))
    with client(server) as asking:
        refused = asking.post("/", content=CONTENT * 30)
        assert (refused.status_code, refused.content) == (413, b"too large")
        assert fetch(asking) == CONTENT


@pytest.mark.parametrize("said", [b"", b"what?\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Le"])
def test_what_is_no_answer_is_told(said: bytes) -> None:
    with (
        client(Server(answers(said))) as asking,
        pytest.raises(httpx.TransportError),
    ):
        asking.get("/")


def test_silence_has_an_end() -> None:
    over = threading.Event()

    def deaf(_: socket.socket) -> None:
        over.wait(PATIENCE)

    with client(Server(stays, deaf)) as asking:
        with pytest.raises(httpx.ReadTimeout):
            asking.get("/", timeout=0.01)
        with pytest.raises(httpx.WriteTimeout):
            asking.post("/", content=CONTENT * 200, timeout=0.01)
        over.set()


def test_nobody_there_is_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    with (
        httpx.Client(transport=DirectTransport(verify=False)) as asking,
        pytest.raises(httpx.ConnectError, match="refused"),
    ):
        asking.get(f"http://127.0.0.1:{port}")


def test_closing_wakes_whoever_waits() -> None:
    server = Server(stays)
    told: list[Exception] = []
    with client(server) as asking:

        def wait() -> None:
            try:
                asking.get("/")
            except httpx.TransportError as error:
                told.append(error)

        waiting = threading.Thread(target=wait)
        waiting.start()
        wait_until(lambda: server.accepted)
        asking._transport.close()
        waiting.join(PATIENCE)
        assert len(told) == 1
        with pytest.raises(httpx.ConnectError, match="closed"):
            asking.get("/")


def secure(folder: Path) -> tuple[ssl.SSLContext, Path]:
    cert, key = certificate(folder)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    return context, cert


def test_over_tls_nothing_is_sent_to_a_stranger(tmp_path: Path) -> None:
    context, cert = secure(tmp_path / "server")
    _, other = secure(tmp_path / "other")
    got: list[bytes] = []

    def script(link: socket.socket) -> None:
        got.append(read_request(link))
        link.sendall(answer())

    server = Server(script, script, tls=context)
    with client(server, authority=cert) as asking:
        assert fetch(asking) == CONTENT
    with client(server, authority=other) as asking, pytest.raises(httpx.ConnectError) as refusal:
        asking.post("/", content=b"secret")
    assert isinstance(refusal.value.__cause__, ssl.SSLCertVerificationError)
    assert len(got) == 1


def test_a_connection_that_is_closed_in_mid_upload_sends_nothing_in_the_clear(
    tmp_path: Path,
) -> None:
    context, cert = secure(tmp_path / "server")
    inner = Server(stays, tls=context)
    passed = bytearray()

    def note(link: socket.socket) -> None:
        with socket.create_connection(("127.0.0.1", inner.port)) as onward:
            back = threading.Thread(target=pass_on, args=(onward, link, bytearray()), daemon=True)
            back.start()
            pass_on(link, onward, passed)

    def pass_on(source: socket.socket, target: socket.socket, noted: bytearray) -> None:
        with contextlib.suppress(OSError):
            while part := source.recv(1 << 16):
                noted.extend(part)
                target.sendall(part)

    relay = Server(note)
    with client(relay, authority=cert) as asking:

        def upload() -> None:
            def endless() -> Iterator[bytes]:
                while True:
                    yield b"in the clear " * 1000

            with pytest.raises(httpx.TransportError):
                asking.post("/", content=endless(), headers={"Content-Length": str(1 << 40)})

        uploading = threading.Thread(target=upload)
        uploading.start()
        wait_until(lambda: len(passed) > 1 << 20)
        asking._transport.close()
        uploading.join(PATIENCE)
        assert not uploading.is_alive()
    assert b"in the clear" not in passed
