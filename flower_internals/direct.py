"""Connections without a proxy, which receive a body in the memory in which it stays.

httpx takes a body through a parser in Python, 64 KiB at a time, and copies it on the way four
times. This is a transport of httpx that speaks HTTP/1.1 with the standard library. Whoever uses it
sees httpx, its errors included.
"""

from __future__ import annotations

import contextlib
import http
import http.client
import selectors
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import httpx

READ_INTO = "read_into"
"""Extension of an answer: fills the memory it is given with the body, from where it is now."""

_PART_BYTES = 1 << 16
# A SuperLink closes connections that are idle for five seconds.
_LONGEST_IDLE_SECONDS = 4.0

Origin = tuple[str, str, int | None]


class DirectTransport(httpx.BaseTransport):
    """Connects to servers directly, and keeps connections for further requests.

    Args:
        verify: How to verify certificates; True trusts public authorities.
    """

    def __init__(self, verify: ssl.SSLContext | bool) -> None:
        self._context = httpx.create_ssl_context(verify, trust_env=False)
        self._context.set_alpn_protocols(["http/1.1"])
        self._lock = threading.Lock()
        self._idle: list[_Line] = []
        self._busy: set[_Line] = set()
        self._closed = False

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request and return the answer, its body still unread."""
        url, timeout = request.url, request.extensions.get("timeout", {})
        line = self._take((url.scheme, url.host, url.port), timeout.get("connect"))
        try:
            line.send(request, timeout.get("write"))
            answer = line.receive(timeout.get("read"))
        except BaseException:
            self._give_back(line, reusable=False)
            raise
        body = _Body(answer, lambda: self._give_back(line, reusable=line.is_reusable(answer)))
        return httpx.Response(
            answer.status,
            headers=answer.getheaders(),
            stream=body,
            extensions={READ_INTO: body.read_into},
        )

    def close(self) -> None:
        """Close all connections; whoever waits on one sees it end."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
            for line in self._busy:
                line.end()
        for line in idle:
            line.close()

    def _take(self, origin: Origin, timeout: float | None) -> _Line:
        """Return an open connection that nobody else uses."""
        with self._lock:
            fitting = [line for line in self._idle if line.origin == origin]
            self._idle = [line for line in self._idle if line.origin != origin]
            kept = [line for line in fitting if line.is_alive()]
            self._idle += kept[:-1]
            taken = kept[-1] if kept else self._new(origin, timeout)
            self._busy.add(taken)
        for line in fitting:
            if line not in kept:
                line.close()
        try:
            taken.open()
        except BaseException:
            self._give_back(taken, reusable=False)
            raise
        return taken

    def _new(self, origin: Origin, timeout: float | None) -> _Line:
        if self._closed:
            raise httpx.ConnectError("the connection is closed")
        scheme, host, port = origin
        if scheme == "https":
            return _Line(
                origin,
                http.client.HTTPSConnection(host, port, timeout=timeout, context=self._context),
            )
        return _Line(origin, http.client.HTTPConnection(host, port, timeout=timeout))

    def _give_back(self, line: _Line, *, reusable: bool) -> None:
        with self._lock:
            self._busy.discard(line)
            reusable = reusable and not self._closed
            if reusable:
                line.idle_since = time.monotonic()
                self._idle.append(line)
        if not reusable:
            line.close()


@dataclass(eq=False)
class _Line:
    """A connection to a server.

    Attributes:
        origin: Scheme, host and port.
        connection: The connection.
        idle_since: When its last answer was complete.
    """

    origin: Origin
    connection: http.client.HTTPConnection
    idle_since: float = 0.0
    _was_sent: bool = True

    def open(self) -> None:
        """Connect, unless it is."""
        if self.connection.sock is None:
            with _told_as(httpx.ConnectError, httpx.ConnectTimeout):
                self.connection.connect()

    def is_alive(self) -> bool:
        """Return whether an idle connection can be used: nothing but its end can come on it."""
        if time.monotonic() - self.idle_since > _LONGEST_IDLE_SECONDS:
            return False
        with selectors.DefaultSelector() as selector:
            selector.register(self.connection.sock, selectors.EVENT_READ)
            return not selector.select(0)

    def send(self, request: httpx.Request, timeout: float | None) -> None:
        """Send a request; what keeps a server from reading all of it may be in its answer."""
        self._was_sent = False
        with _told_as(httpx.WriteError, httpx.WriteTimeout):
            self.connection.sock.settimeout(timeout)
            target = request.url.raw_path.decode("ascii")
            self.connection.putrequest(
                request.method, target, skip_host=True, skip_accept_encoding=True
            )
            for name, value in request.headers.raw:
                self.connection.putheader(name, value)
            self.connection.endheaders()
            assert isinstance(request.stream, httpx.SyncByteStream)
            with contextlib.suppress(ConnectionError):
                for part in request.stream:
                    self._send(part)
                self._was_sent = True

    def _send(self, part: bytes) -> None:
        rest = memoryview(part)
        while rest:  # `sendall` would count the timeout for all of it
            rest = rest[self.connection.sock.send(rest) :]

    def receive(self, timeout: float | None) -> http.client.HTTPResponse:
        """Return the answer, its body still unread."""
        with _told_as(httpx.ReadError, httpx.ReadTimeout):
            self.connection.sock.settimeout(timeout)
            answer = self.connection.getresponse()
        if answer.status == http.HTTPStatus.OK and answer.length is None and not answer.chunked:
            raise httpx.RemoteProtocolError("the answer is cut off")  # in its head, for all we know
        return answer

    def is_reusable(self, answer: http.client.HTTPResponse) -> bool:
        """Return whether the connection can take another request once an answer is done with."""
        return self._was_sent and answer.isclosed() and self.connection.sock is not None

    def end(self) -> None:
        """Let whoever uses the connection see it end."""
        with contextlib.suppress(OSError, AttributeError):
            # Not the method of a TLS socket, after which a write would go out in the clear.
            socket.socket.shutdown(self.connection.sock, socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection, which nobody uses."""
        self.connection.close()


class _Body(httpx.SyncByteStream):
    """The body of an answer.

    Args:
        answer: The answer.
        done: Called once when nobody reads it any more.
    """

    def __init__(self, answer: http.client.HTTPResponse, done: Callable[[], None]) -> None:
        self._answer = answer
        self._done: Callable[[], None] | None = done

    def __iter__(self) -> Iterator[bytes]:
        with _told_as(httpx.ReadError, httpx.ReadTimeout):
            while part := self._answer.read(_PART_BYTES):
                yield part
        if self._answer.length:
            raise httpx.RemoteProtocolError("the answer is cut off")

    def read_into(self, memory: memoryview) -> None:
        """Fill memory with the body.

        Raises:
            httpx.TransportError: The body ends before that.
        """
        with _told_as(httpx.ReadError, httpx.ReadTimeout):
            while memory:
                read = self._answer.readinto(memory)
                if not read:
                    raise httpx.RemoteProtocolError("the answer is cut off")
                memory = memory[read:]

    def close(self) -> None:
        """Let the connection go."""
        done, self._done = self._done, None
        if done is not None:
            done()


@contextlib.contextmanager
def _told_as(
    kind: type[httpx.TransportError], timeout_kind: type[httpx.TransportError]
) -> Iterator[None]:
    """Tell what goes wrong as httpx does."""
    try:
        yield
    except TimeoutError as error:
        raise timeout_kind(str(error)) from error
    except http.client.HTTPException as error:
        raise httpx.RemoteProtocolError(str(error) or type(error).__name__) from error
    except OSError as error:
        raise kind(str(error)) from error
