"""Requests that wait in a SuperLink: who is woken, by what, and with what."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from coinflower.flower_internals.riders import Riders, encoded_head, take_off
from coinflower.flower_internals.superlink.asides import ObjectsAside, pull_or_wait, send_along
from coinflower.flower_internals.superlink.bells import Bells

PATH = "/v1/fleet/pull-messages"
NODE = 7
LONG, SHORT = 20.0, 0.05
NAME = "ab" * 32


class SuperLink:
    """Hands out what is in ``there``, past the layer that lets requests wait."""

    def __init__(self, status: int = 200) -> None:
        self.bells = Bells()
        self.there: list[str] = []
        self.looks = 0
        self._status = status

    async def __call__(self, _: Any, receive: Any, send: Any) -> None:
        await receive()
        answer = b""
        if self._status == 200:
            answer = (await asyncio.to_thread(self._handle)).SerializeToString()
        headers = [(b"content-length", b"%d" % len(answer))]
        await send({"type": "http.response.start", "status": self._status, "headers": headers})
        await send({"type": "http.response.body", "body": answer})

    def _handle(self) -> Any:
        return pull_or_wait(self.bells, NODE, self._pull)

    def _pull(self) -> Any:
        self.looks += 1
        found = [self.there.pop()] if self.there else []
        for _ in found:
            send_along(NAME, b"object")
        return SimpleNamespace(
            messages_list=found, SerializeToString=lambda: b"\x0a\x01m" if found else b""
        )

    def tell(self, message: str) -> None:
        self.there.append(message)
        self.bells.ring([NODE])


async def ask(
    superlink: SuperLink, wait: float | None, gone: asyncio.Event | None = None
) -> tuple[bytes, Riders]:
    """Return the answer of a request."""
    body = encoded_head(Riders(wait_seconds=wait))
    events = [{"type": "http.request", "body": body, "more_body": False}]
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        if events:
            return events.pop()
        await (gone or asyncio.Event()).wait()
        return {"type": "http.disconnect"}

    async def send(event: dict[str, Any]) -> None:
        sent.append(event)

    await ObjectsAside(superlink)({"type": "http", "path": PATH}, receive, send)
    answer = b"".join(event.get("body", b"") for event in sent)
    assert dict(sent[0]["headers"])[b"content-length"] == b"%d" % len(answer)
    return take_off(bytearray(answer))


async def asked(superlink: SuperLink, *waits: float) -> list[asyncio.Task[tuple[bytes, Riders]]]:
    """Return requests that have looked once, each before the next."""
    tasks = []
    for wait in waits:
        looks = superlink.looks
        tasks.append(asyncio.ensure_future(ask(superlink, wait)))
        while superlink.looks == looks:
            await asyncio.sleep(0.001)
    return tasks


def play(scene: Callable[[SuperLink], Awaitable[None]], **options: Any) -> None:
    async def whole() -> None:
        await asyncio.wait_for(scene(SuperLink(**options)), 60)

    asyncio.run(whole())


def test_a_message_that_comes_later_is_handed_over_with_its_objects() -> None:
    async def scene(superlink: SuperLink) -> None:
        (waiting,) = await asked(superlink, LONG)
        superlink.tell("late")
        answer, came = await waiting
        assert answer == b"\x0a\x01m"
        assert came.objects == {NAME: b"object"}
        assert came.wait_seconds is not None

    play(scene)


def test_who_does_not_want_to_wait_is_answered_at_once_and_not_told_of_waiting() -> None:
    async def scene(superlink: SuperLink) -> None:
        assert await ask(superlink, None) == (b"", Riders(confirmed=[]))

    play(scene)


def test_a_wait_ends_with_nothing() -> None:
    async def scene(superlink: SuperLink) -> None:
        answer, came = await ask(superlink, SHORT)
        assert (answer, came.objects) == (b"", {})
        assert superlink.looks == 1

    play(scene)


def test_a_message_does_not_go_to_a_caller_that_has_gone() -> None:
    async def scene(superlink: SuperLink) -> None:
        gone = asyncio.Event()
        waiting = asyncio.ensure_future(ask(superlink, LONG, gone))
        while superlink.looks == 0:
            await asyncio.sleep(0.001)
        gone.set()
        await waiting
        superlink.tell("kept")
        assert superlink.there == ["kept"]
        assert (await ask(superlink, LONG))[0] == b"\x0a\x01m"

    play(scene)


def test_of_two_requests_of_one_caller_the_later_gets_the_message() -> None:
    async def scene(superlink: SuperLink) -> None:
        first, second = await asked(superlink, LONG, LONG)
        assert (await first)[0] == b""
        superlink.tell("for the second")
        assert (await second)[0] == b"\x0a\x01m"

    play(scene)


def test_a_caller_that_leaves_waits_no_longer() -> None:
    async def scene(superlink: SuperLink) -> None:
        (waiting,) = await asked(superlink, LONG)
        superlink.there.append("for nobody")
        superlink.bells.dismiss(NODE)
        assert (await waiting)[0] == b""
        assert superlink.there == ["for nobody"]

    play(scene)


@pytest.mark.parametrize("status", [401, 403, 500])
def test_who_is_refused_does_not_wait(status: int) -> None:
    async def scene(superlink: SuperLink) -> None:
        assert (await ask(superlink, LONG))[0] == b""
        assert superlink.looks == 0

    play(scene, status=status)


def test_a_ring_for_others_wakes_nobody() -> None:
    async def scene(superlink: SuperLink) -> None:
        (waiting,) = await asked(superlink, SHORT)
        superlink.bells.ring([NODE + 1])
        await waiting
        assert superlink.looks == 1

    play(scene)
