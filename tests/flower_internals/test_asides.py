"""Objects are led past the layers of a SuperLink; what the layers and the handler see is small."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from flwr.proto.message_pb2 import PullObjectRequest, PullObjectResponse, PushObjectRequest

from coinflower.flower_internals.superlink.asides import ObjectsAside, Pushed, drop_pulled, pulled

OBJECT = bytes(range(256)) * 100
PUSH, PULL = "/v1/fleet/push-object", "/v1/runtime/pull-object"
Handler = Callable[[bytes], bytes]


class Layers:
    """An ASGI application that reads a request whole, and answers what the handler says."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        self.body: bytes | None = None

    async def __call__(self, _: Any, receive: Any, send: Any) -> None:
        event = await receive()
        if event["type"] == "http.disconnect":
            return
        assert not event["more_body"]
        self.body = event["body"]
        # As Flower's: in a thread, with a copy of the context.
        answer = await asyncio.to_thread(self._handler, self.body)
        headers = [(b"content-length", b"%d" % len(answer)), (b"x-other", b"1")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": answer})


def call(layers: Layers, path: str, body: bytes, *, piece: int = 7000) -> tuple[bytes, int]:
    """Return the body of the answer, and the length that was announced."""
    pieces = [body[start : start + piece] for start in range(0, len(body), piece)]
    events = [
        {"type": "http.request", "body": part, "more_body": index < len(pieces) - 1}
        for index, part in enumerate(pieces)
    ] or [{"type": "http.disconnect"}]
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return events.pop(0)

    async def send(event: dict[str, Any]) -> None:
        sent.append(event)

    asyncio.run(ObjectsAside(layers)({"type": "http", "path": path}, receive, send))
    if not sent:
        return b"", 0
    announced = dict(sent[0]["headers"])[b"content-length"]
    assert [event.get("more_body", False) for event in sent[1:]][-1] is False
    return b"".join(event["body"] for event in sent[1:]), int(announced)


def test_a_pushed_object_reaches_the_handler_and_not_the_layers() -> None:
    seen: list[Any] = []

    def handler(body: bytes) -> bytes:
        seen.append(Pushed(PushObjectRequest.FromString(body)))
        return b""

    layers = Layers(handler)
    whole = PushObjectRequest(run_id=4, object_id="n", object_content=OBJECT, session_id="s")
    call(layers, PUSH, whole.SerializeToString())
    (request,) = seen
    assert (request.run_id, request.object_id, request.session_id) == (4, "n", "s")
    assert request.object_content == OBJECT
    assert layers.body is not None
    assert len(layers.body) < 50


@pytest.mark.parametrize("path", [PUSH, "/v1/fleet/push-messages"])
def test_what_is_short_or_not_an_object_passes_as_it_is(path: str) -> None:
    layers = Layers(lambda body: Pushed(PushObjectRequest.FromString(body)).object_content)
    body = PushObjectRequest(object_id="n", object_content=b"short").SerializeToString()
    assert call(layers, path, body)[0] == b"short"
    assert layers.body == body


def test_a_body_that_is_malformed_is_left_to_flower() -> None:
    layers = Layers(lambda _: b"refused")
    body = b"\xff" * 20_000
    assert call(layers, PUSH, body)[0] == b"refused"
    assert layers.body == body


def test_a_caller_that_goes_away_is_no_request() -> None:
    layers = Layers(lambda _: b"")
    call(layers, PUSH, b"")
    assert layers.body is None


def test_a_pulled_object_is_the_last_field_of_the_answer() -> None:
    def handler(_: bytes) -> bytes:
        return pulled(
            object_found=True, object_available=True, object_content=bytearray(OBJECT)
        ).SerializeToString()

    body = PullObjectRequest(object_id="n").SerializeToString()
    answer, announced = call(Layers(handler), PULL, body)
    assert announced == len(answer)
    assert PullObjectResponse.FromString(answer) == PullObjectResponse(
        object_found=True, object_available=True, object_content=OBJECT
    )


def test_an_object_that_is_dropped_is_not_in_the_answer() -> None:
    def handler(_: bytes) -> bytes:
        pulled(object_found=True, object_available=True, object_content=OBJECT)
        drop_pulled()
        return PullObjectResponse(object_found=False).SerializeToString()

    body = PullObjectRequest(object_id="n").SerializeToString()
    answer, announced = call(Layers(handler), PULL, body)
    assert announced == len(answer)
    assert PullObjectResponse.FromString(answer) == PullObjectResponse()


def test_two_requests_at_once_do_not_see_each_other() -> None:
    def handler(body: bytes) -> bytes:
        name = PullObjectRequest.FromString(body).object_id
        return pulled(
            object_found=True, object_available=True, object_content=name.encode() * 5000
        ).SerializeToString()

    async def both() -> list[bytes]:
        async def one(name: str) -> bytes:
            sent: list[bytes] = []
            body = PullObjectRequest(object_id=name).SerializeToString()

            async def receive() -> dict[str, Any]:
                return {"type": "http.request", "body": body, "more_body": False}

            async def send(event: dict[str, Any]) -> None:
                await asyncio.sleep(0)
                sent.append(event.get("body", b""))

            await ObjectsAside(Layers(handler))({"type": "http", "path": PULL}, receive, send)
            return PullObjectResponse.FromString(b"".join(sent)).object_content

        return list(await asyncio.gather(one("a"), one("b")))

    assert asyncio.run(both()) == [b"a" * 5000, b"b" * 5000]


def test_outside_of_a_request_answers_are_flowers_own() -> None:
    response = pulled(object_found=True, object_available=True, object_content=OBJECT)
    assert response.object_content == OBJECT
