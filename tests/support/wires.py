"""Wires between nodes and a SuperLink: they can be cut, go dead, or be listened to."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import TypeVar

_CHUNK = 1 << 16
_LOOPBACK = "127.0.0.1"
Result = TypeVar("Result")


class Wire:
    """A TCP forwarder on a port of its own, in a thread of its own.

    Args:
        upstream: Port on this machine that it leads to.
    """

    def __init__(self, upstream: int) -> None:
        self._upstream = upstream
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._writers: set[asyncio.StreamWriter] = set()
        self._flows = self._do(self._new_event())
        self._server: asyncio.Server | None = None
        self.port = self._do(self._listen(0))

    def cut(self) -> None:
        """Drop every connection and refuse new ones."""
        self._do(self._hang_up())

    def mute(self) -> None:
        """Let nothing through, in either direction, and tell nobody."""
        self._loop.call_soon_threadsafe(self._flows.clear)

    def mend(self) -> None:
        """Be a good wire again; what waited goes through."""
        self._do(self._listen(self.port))
        self._loop.call_soon_threadsafe(self._flows.set)

    def close(self) -> None:
        self.cut()
        self._do(self._cancel_all())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _do(self, work: Coroutine[None, None, Result]) -> Result:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _new_event(self) -> asyncio.Event:
        event = asyncio.Event()
        event.set()
        return event

    async def _listen(self, port: int) -> int:
        if self._server is None:
            self._server = await asyncio.start_server(self._serve, _LOOPBACK, port)
        return int(self._server.sockets[0].getsockname()[1])

    async def _hang_up(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        for writer in self._writers:
            writer.transport.abort()

    async def _cancel_all(self) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._flows.wait()
        with contextlib.suppress(OSError):
            there = await asyncio.open_connection(_LOOPBACK, self._upstream)
            await asyncio.gather(
                self._pass_on(reader, there[1], True), self._pass_on(there[0], writer, False)
            )
        writer.transport.abort()

    def _note(self, up: bool, size: int) -> None:
        """Be told what passes; a plain wire does not care."""

    async def _pass_on(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, up: bool
    ) -> None:
        self._writers.add(sink)
        try:
            while data := await source.read(_CHUNK):
                self._note(up, len(data))
                await self._flows.wait()
                sink.write(data)
                await sink.drain()
        finally:
            self._writers.discard(sink)
            # One side is enough: HTTP has no use for a connection that is half open.
            sink.close()


@dataclass(frozen=True)
class Segment:
    """Bytes that passed together.

    Attributes:
        at: Unix time.
        up: Whether they went from the client to the server.
        size: How many.
    """

    at: float
    up: bool
    size: int


class Tap(Wire):
    """A wire whose listener sees sizes and times of what TLS encrypts."""

    def __init__(self, upstream: int) -> None:
        self.segments: list[Segment] = []
        super().__init__(upstream)

    def _note(self, up: bool, size: int) -> None:
        self.segments.append(Segment(time.time(), up, size))
