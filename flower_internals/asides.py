"""Objects on their way through a SuperLink, beside the layers that every request passes.

A SuperLink hands the body of a request through nine layers, 64 KiB at a time, and copies the object
in it five times before it is stored and four times when it is fetched. Here the object is set aside
before the first layer, and the layers and Flower's handler see the call without it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, MutableMapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from flwr.proto.message_pb2 import PullObjectResponse, PushObjectRequest

from coinflower.flower_internals.long_fields import LONG_BYTES, Buffer, field_head, take_out
from coinflower.flower_internals.objects import PULL_PATH, PULLED_CONTENT, PUSH_PATH, PUSHED_CONTENT

Event = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Event]]
Send = Callable[[Event], Awaitable[None]]
Application = Callable[[Event, Receive, Send], Awaitable[None]]

_PUSHES = frozenset(PUSH_PATH.format(api=api) for api in ("fleet", "runtime"))
_PULLS = frozenset(PULL_PATH.format(api=api) for api in ("fleet", "runtime"))


@dataclass
class _Aside:
    """The object of a request that is being handled."""

    content: Buffer = b""


_aside: ContextVar[_Aside | None] = ContextVar("aside", default=None)


class ObjectsAside:
    """The outermost layer: sets objects aside, and puts them into answers.

    Args:
        app: All other layers.
    """

    def __init__(self, app: Application) -> None:
        self._app = app

    async def __call__(self, scope: Event, receive: Receive, send: Send) -> None:
        """Handle a request."""
        path = scope.get("path")
        if path not in _PUSHES | _PULLS:
            await self._app(scope, receive, send)
            return
        aside = _Aside()
        _aside.set(aside)
        if path in _PULLS:
            await self._app(scope, receive, _with_content(aside, send))
            return
        body: Buffer | None = await _body(receive)
        if isinstance(body, bytearray) and len(body) > LONG_BYTES:
            with contextlib.suppress(ValueError):  # what is malformed Flower will find, too
                body, aside.content = take_out(body, PUSHED_CONTENT)
        await self._app(scope, _received(body, receive), send)


async def _body(receive: Receive) -> bytearray | None:
    """Return the body of a request; None if the caller has gone."""
    body = bytearray()
    while True:
        event = await receive()
        if event["type"] != "http.request":
            return None
        body += event.get("body", b"")
        if not event.get("more_body"):
            return body


def _received(body: Buffer | None, receive: Receive) -> Receive:
    """Return what gives a body in one piece."""
    events: list[Event] = [{"type": "http.disconnect"}]
    if body is not None:
        events = [{"type": "http.request", "body": bytes(body), "more_body": False}]

    async def received() -> Event:
        return events.pop() if events else await receive()

    return received


def _with_content(aside: _Aside, send: Send) -> Send:
    """Return what sends an answer and then the object that was set aside, as its last field."""

    async def sent(event: Event) -> None:
        content = aside.content
        if not content:
            await send(event)
            return
        head = field_head(PULLED_CONTENT, len(content))
        if event["type"] == "http.response.start":
            event["headers"] = [
                (name, b"%d" % (int(value) + len(head) + len(content)))
                if name.lower() == b"content-length"
                else (name, value)
                for name, value in event["headers"]
            ]
            await send(event)
        elif event.get("more_body"):
            await send(event)
        else:
            await send({**event, "body": event.get("body", b"") + head, "more_body": True})
            await send({"type": "http.response.body", "body": content, "more_body": False})

    return sent


class Pushed:
    """A request with the object that was set aside, for Flower's handler."""

    def __init__(self, request: PushObjectRequest) -> None:
        self._request = request
        aside = _aside.get()
        self.object_content = aside.content if aside and aside.content else request.object_content

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
