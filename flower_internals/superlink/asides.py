"""Objects on their way through a SuperLink, beside the layers that every request passes.

A SuperLink hands the body of a request through nine layers, 64 KiB at a time, and copies the object
in it five times before it is stored and four times when it is fetched. Here objects, and all else
that rides along with a call (`coinflower.flower_internals.riders`), are set aside before the first
layer, and the layers and Flower's handler see the call without them.

Here is also where a request waits for a message: after all layers, so that nobody can wait who may
not ask, and on no thread.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Hashable, Iterator, MutableMapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from flwr.proto.message_pb2 import PullObjectResponse, PushObjectRequest
from starlette.concurrency import run_in_threadpool

from coinflower.flower_internals.long_fields import LONG_BYTES, Buffer, field_head, take_out
from coinflower.flower_internals.objects import PULL_PATH, PULLED_CONTENT, PUSH_PATH, PUSHED_CONTENT
from coinflower.flower_internals.riders import (
    PULL_MESSAGES,
    PUSH_MESSAGES,
    Riders,
    encoded_head,
    encoded_object,
    take_off,
)
from coinflower.flower_internals.superlink.bells import Bell, Bells
from coinflower.flower_internals.superlink.bodies import LONG_BODY, LongBody

Event = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Event]]
Send = Callable[[Event], Awaitable[None]]
Application = Callable[[Event, Receive, Send], Awaitable[None]]

_APIS = ("fleet", "runtime")
_PUSHES = frozenset(PUSH_PATH.format(api=api) for api in _APIS)
CALLS = _PUSHES | frozenset(
    [PULL_PATH.format(api=api) for api in _APIS]
    + [f"/v1/{api}/{call}" for api in _APIS for call in (PUSH_MESSAGES, PULL_MESSAGES)]
)
"""Paths of the calls that objects and riders come and go with."""
_MOST_RESERVED_BYTES = 1 << 30


@dataclass
class _Aside:
    """What is kept beside a request that is being handled.

    Attributes:
        content: The object of a call that is about one.
        came: What came along with the request.
        goes: Objects that go along with the answer.
        free_names: Whether the answer says that free names are taken.
        bell: What wakes the request while it waits.
        again: What it looks for once it is woken; None if it need not wait.
        leave: Called when it waits no longer.
    """

    bell: Bell
    content: Buffer = b""
    came: Riders = field(default_factory=Riders)
    goes: dict[str, Buffer] = field(default_factory=dict)
    free_names: bool = False
    again: Callable[[], Any] | None = None
    leave: Callable[[], None] = lambda: None


_aside: ContextVar[_Aside | None] = ContextVar("aside", default=None)


class ObjectsAside:
    """The outermost layer: sets objects aside, puts them into answers, and lets requests wait.

    Args:
        app: All other layers.
    """

    def __init__(self, app: Application) -> None:
        self._app = app

    async def __call__(self, scope: Event, receive: Receive, send: Send) -> None:
        """Handle a request."""
        path = scope.get("path")
        if path not in CALLS:
            await self._app(scope, receive, send)
            return
        aside = _Aside(Bell())
        _aside.set(aside)
        body: Buffer | None = await _body(scope, receive)
        if isinstance(body, bytearray):
            with contextlib.suppress(ValueError):  # what is malformed Flower will find, too
                if path not in _PUSHES:
                    body, aside.came = take_off(body)
                elif len(body) > LONG_BYTES:
                    body, aside.content = take_out(body, PUSHED_CONTENT)
        try:
            await self._app(scope, _received(body, receive), _Answer(aside, receive, send).send)
        finally:
            aside.leave()


async def _body(scope: Event, receive: Receive) -> bytearray | None:
    """Return the body of a request; None if the caller has gone."""
    if LONG_BODY in scope:
        long: LongBody = scope.pop(LONG_BODY)
        return await long.whole()
    stated = dict(scope.get("headers", ())).get(b"content-length", b"")
    size = int(stated) if stated.isdigit() and len(stated) < 12 else 0
    body = bytearray(min(size, _MOST_RESERVED_BYTES))
    filled = 0
    while True:
        event = await receive()
        if event["type"] != "http.request":
            return None
        part = event.get("body", b"")
        body[filled : filled + len(part)] = part
        filled += len(part)
        if not event.get("more_body"):
            del body[filled:]
            return body


def _received(body: Buffer | None, receive: Receive) -> Receive:
    """Return what gives a body in one piece."""
    events: list[Event] = [{"type": "http.disconnect"}]
    if body is not None:
        events = [{"type": "http.request", "body": bytes(body), "more_body": False}]

    async def received() -> Event:
        return events.pop() if events else await receive()

    return received


class _Answer:
    """Sends an answer, then what was set aside for it; before, it waits if there is no message."""

    def __init__(self, aside: _Aside, receive: Receive, send: Send) -> None:
        self._aside = aside
        self._receive = receive
        self._send = send
        self._start: Event | None = None
        self._body = b""

    async def send(self, event: Event) -> None:
        if event["type"] == "http.response.start" and event["status"] == 200:
            self._start = event
        elif event["type"] != "http.response.body" or self._start is None:
            await self._send(event)
        else:
            self._body += event.get("body", b"")
            if not event.get("more_body"):
                if self._aside.again is not None:
                    await self._wait(self._aside.again)
                await self._finish(self._start)

    async def _wait(self, again: Callable[[], Any]) -> None:
        """Wait until there is a message, the time is over or the caller has gone."""
        loop, bell = asyncio.get_running_loop(), self._aside.bell
        deadline = loop.time() + (self._aside.came.wait_seconds or 0.0)
        gone = asyncio.ensure_future(self._receive())
        try:
            while True:
                rung = asyncio.ensure_future(bell.wait())
                done, _ = await asyncio.wait(
                    {gone, rung},
                    timeout=deadline - loop.time(),
                    return_when=asyncio.FIRST_COMPLETED,
                )
                rung.cancel()
                if not done or gone in done or bell.replaced:
                    return
                response = await run_in_threadpool(again)
                if response.messages_list:
                    self._body = response.SerializeToString()
                    return
        finally:
            gone.cancel()
            self._aside.leave()

    async def _finish(self, start: Event) -> None:
        pieces = [self._body, *_additions(self._aside)]
        size = b"%d" % sum(map(len, pieces))
        start["headers"] = [
            (name, size if name.lower() == b"content-length" else value)
            for name, value in start["headers"]
        ]
        await self._send(start)
        short = b""
        for piece in pieces:
            if len(piece) <= LONG_BYTES:
                short += bytes(piece)
                continue
            for part in (short, piece):
                await self._send({"type": "http.response.body", "body": part, "more_body": True})
            short = b""
        await self._send({"type": "http.response.body", "body": short, "more_body": False})


def _additions(aside: _Aside) -> Iterator[Buffer]:
    """Yield what follows an answer."""
    if aside.content:
        yield field_head(PULLED_CONTENT, len(aside.content))
        yield aside.content
    if aside.came.wait_seconds is not None:
        yield encoded_head(Riders(wait_seconds=0.0, free_names=aside.free_names))
    for name, content in aside.goes.items():
        yield from encoded_object(name, [content])


class Pushed:
    """A request with the object that was set aside, for Flower's handler."""

    def __init__(self, request: PushObjectRequest) -> None:
        self._request = request
        aside = _aside.get()
        self.object_content = aside.content if aside and aside.content else request.object_content
        if aside is not None:
            aside.content = b""  # it is not for the answer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._request, name)


def pulled(
    *, object_found: bool, object_available: bool, object_content: Buffer = b""
) -> PullObjectResponse:
    """Return the answer that Flower's handler makes, with its object set aside."""
    response = PullObjectResponse(object_found=object_found, object_available=object_available)
    aside = _aside.get()
    if aside is None:
        response.object_content = bytes(object_content)
    else:
        aside.content = object_content
    return response


def drop_pulled() -> None:
    """Forget the object that `pulled` set aside: the answer must not have it."""
    aside = _aside.get()
    if aside is not None:
        aside.content = b""


def came_along() -> Riders:
    """Return what rode along with the request that is being handled."""
    aside = _aside.get()
    return Riders() if aside is None else aside.came


def send_along(name: str, content: Buffer) -> None:
    """Let an object ride along with the answer to the request that is being handled."""
    aside = _aside.get()
    if aside is not None:
        aside.goes[name] = content


def offer_free_names(offered: bool) -> None:
    """Say with the answer to a look for messages whether free names are taken."""
    aside = _aside.get()
    if aside is not None:
        aside.free_names = offered


def pull_or_wait(bells: Bells, caller: Hashable, pull: Callable[[], Any]) -> Any:
    """Return what there is for a caller; if it is nothing, and the caller may wait, let it wait.

    Args:
        bells: Where it is woken.
        caller: Who asks.
        pull: Returns the messages that are there, as Flower's handlers do; called again for one
            that waits.
    """
    aside = _aside.get()
    if aside is None or aside.came.wait_seconds is None:
        return pull()
    # First of all: what comes from now on rings, even while this one is still looking.
    bells.hang(caller, aside.bell)
    aside.leave = lambda: bells.take_down(caller, aside.bell)
    response = pull()
    if not response.messages_list:
        aside.again = pull
    return response
