"""Long bodies of requests, received in the memory in which they stay.

uvicorn takes a body in pieces, copies each of them three times and wakes the application for it.
That takes longer than the way through the network. Here the connection writes a long body straight
into memory that is as long, and the application is woken once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Any, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

LONG_BODY = "coinflower.long_body"
"""In the scope of a request, its `LongBody`, if it has one: nothing of it then comes any more."""

LEAST_BYTES = 1 << 18
_MOST_BYTES = 1 << 30


class LongBody(asyncio.BufferedProtocol):
    """What is at the end of a connection while it brings a body.

    Args:
        http: What is there before and afterwards.
        size: How long the body is.
        begun: What has come of it.
    """

    def __init__(self, http: LongBodyProtocol, size: int, begun: bytes | bytearray) -> None:
        self._http = http
        self._memory: bytearray | None = bytearray(size)
        self._filled = len(begun)
        self._memory[: self._filled] = begun
        self._over = asyncio.Event()

    async def whole(self) -> bytearray | None:
        """Return the body once it is there, to one caller; None if the connection ends before."""
        await self._over.wait()
        memory, self._memory = self._memory, None
        return memory

    def get_buffer(self, _: int) -> memoryview:
        """Return where the rest of the body belongs."""
        assert self._memory is not None
        return memoryview(self._memory)[self._filled :]

    def buffer_updated(self, received: int) -> None:
        """Note that so much has come."""
        assert self._memory is not None
        self._filled += received
        if self._filled == len(self._memory):
            self._http.go_on()
            self._over.set()

    def eof_received(self) -> None:
        """Let the connection end."""
        self._http.eof_received()

    def connection_lost(self, problem: Exception | None) -> None:
        """Give up: what has come so far is of no use."""
        self._memory = None
        self._over.set()
        self._http.connection_lost(problem)

    def pause_writing(self) -> None:
        """Pass it on."""
        self._http.pause_writing()

    def resume_writing(self) -> None:
        """Pass it on."""
        self._http.resume_writing()


class LongBodyProtocol(HttpToolsProtocol):
    """uvicorn's protocol; long bodies of requests to some paths come by way of their scope.

    Args:
        paths: Whose application looks for `LONG_BODY`.
        options: uvicorn's.
    """

    def __init__(self, *, paths: Collection[str], **options: Any) -> None:
        super().__init__(**options)
        self._paths = paths
        self._begins = False

    def on_headers_complete(self) -> None:
        """Begin a request."""
        super().on_headers_complete()
        self._begins = True

    def data_received(self, data: bytes) -> None:
        """Take what comes of a request, and leave the rest to `LongBody` if it is long."""
        super().data_received(data)
        # The application has not begun yet: its task waits for this to return.
        begins, self._begins = self._begins, False
        size = self._long_size() if begins else 0
        if size:
            body = LongBody(self, size, self.cycle.body)
            self.cycle.body = bytearray()
            self.cycle.message_event.clear()
            cast(dict[str, Any], self.cycle.scope)[LONG_BODY] = body
            self.flow.resume_reading()
            self.transport.set_protocol(body)

    def _long_size(self) -> int:
        """Return the length of the body that is coming, if it is long; else 0."""
        cycle, headers = self.cycle, dict(self.headers)
        stated = headers.get(b"content-length", b"")
        size = int(stated) if stated.isdigit() and len(stated) < 12 else 0
        is_long = size - len(cycle.body) >= LEAST_BYTES and size <= _MOST_BYTES
        known = cycle.scope["path"] in self._paths and b"transfer-encoding" not in headers
        waits = cycle.waiting_for_100_continue or bool(self.pipeline)
        busy = cycle.more_body and not waits and not self.transport.is_closing()
        return size if is_long and known and busy else 0

    def go_on(self) -> None:
        """Be at the end of the connection again, for the next request."""
        self.cycle.more_body = False
        self.parser = type(self.parser)(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        self.transport.set_protocol(self)
