"""A resident node against a scripted SuperLink: order, outages, stops."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Context, Message, Metadata, RecordDict
from flwr.app.message import make_message
from flwr.clientapp import ClientApp
from flwr.proto.message_pb2 import ObjectTree

import coinflower.client.node.resident
from coinflower.client.node.link import ForgottenError, UnreachableError
from coinflower.client.node.resident import ResidentNode
from coinflower.flower_internals.messages import Arrival
from tests.support.nodes import echo_app, running
from tests.support.waiting import PATIENCE, wait_until


class ScriptedLink:
    """Hands out messages, and fails as the script says."""

    def __init__(self, messages: list[Message], failures: list[Exception] | None = None) -> None:
        self.waits = False
        self.messages = messages
        self.failures = failures or []
        self.joined = 0
        self.replies: list[Message] = []
        self.confirmed: list[str] = []

    def __call__(self, *_: object, **__: object) -> ScriptedLink:
        return self

    def join(self) -> int:
        self.joined += 1
        return 7

    def poll(self) -> Arrival | None:
        return Arrival(self.messages.pop(0), ObjectTree()) if self.messages else None

    def fetch(self, *_: object) -> RecordDict:
        return RecordDict({"weights": ArrayRecord({"w": Array(np.zeros(1, np.float32))})})

    def reply(self, reply: Message) -> None:
        if self.failures:
            raise self.failures.pop(0)
        self.replies.append(reply)

    def confirm(self, _: int, message_id: str) -> None:
        self.confirmed.append(message_id)

    def beat(self) -> None: ...

    def leave(self) -> None: ...

    def close(self) -> None: ...


def _message(name: str, kind: str = "query.invite", run_id: int = 1) -> Message:
    metadata = Metadata(
        run_id=run_id,
        message_id=name,
        src_node_id=1,
        dst_node_id=7,
        reply_to_message_id="",
        group_id="",
        created_at=time.time(),
        ttl=60,
        message_type=kind,
    )
    return make_message(metadata=metadata, content=RecordDict())


def _scripted_node(
    link: ScriptedLink, app: ClientApp, monkeypatch: pytest.MonkeyPatch, **options: Any
) -> tuple[ResidentNode, threading.Event]:
    monkeypatch.setattr(coinflower.client.node.resident, "Link", link)
    stop = threading.Event()
    options = {"node_config": {"name": "n"}, "poll_interval": 0.02, "max_backoff": 0.05} | options
    return ResidentNode("nowhere:1", app, stop=stop, insecure=True, **options), stop


def test_messages_are_handled_one_at_a_time_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []
    app = ClientApp()

    @app.query("invite")
    def slow(message: Message, context: Context) -> Message:
        events.append(f"begin {message.metadata.message_id}")
        time.sleep(0.02)
        events.append(f"end {message.metadata.message_id}")
        return Message(RecordDict(), reply_to=message)

    link = ScriptedLink([_message(name) for name in "abc"])
    node, stop = _scripted_node(link, app, monkeypatch)
    with running(node, stop=stop):
        wait_until(lambda: len(link.replies) == 3 and len(link.confirmed) == 2)
    assert events == [f"{what} {name}" for name in "abc" for what in ("begin", "end")]
    assert link.confirmed == ["a", "b"]


def test_a_reply_is_sent_again_after_an_outage(monkeypatch: pytest.MonkeyPatch) -> None:
    link = ScriptedLink([_message("a")], [UnreachableError("down"), UnreachableError("down")])
    node, stop = _scripted_node(link, echo_app(), monkeypatch)
    with running(node, stop=stop):
        wait_until(lambda: len(link.replies) == 1)
    reply = link.replies[0]
    assert reply.metadata.reply_to_message_id == "a"


def test_a_forgotten_node_joins_again(monkeypatch: pytest.MonkeyPatch) -> None:
    link = ScriptedLink([_message("a"), _message("b")], [ForgottenError()])
    node, stop = _scripted_node(link, echo_app(), monkeypatch)
    with running(node, stop=stop):
        wait_until(lambda: len(link.replies) == 1)
    assert link.joined == 2
    assert link.replies[0].metadata.reply_to_message_id == "b"


def test_a_busy_handler_does_not_delay_the_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    busy, release = threading.Event(), threading.Event()
    app = ClientApp()

    @app.query("invite")
    def endless(message: Message, context: Context) -> Message:
        busy.set()
        release.wait()
        return Message(RecordDict(), reply_to=message)

    node, stop = _scripted_node(ScriptedLink([_message("a")]), app, monkeypatch)
    with running(node, stop=stop):
        assert busy.wait(PATIENCE)
    release.set()


@pytest.mark.parametrize("call", ["join", "poll", "reply", "leave"])
def test_a_silent_network_does_not_delay_the_stop(
    monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    silent, release = threading.Event(), threading.Event()
    link = ScriptedLink([_message("a")])

    def hang(*_: object) -> None:
        silent.set()
        release.wait()
        if call != "leave":  # which does not mind
            raise UnreachableError("silent")

    setattr(link, call, hang)
    node, stop = _scripted_node(link, echo_app(), monkeypatch)
    with running(node, stop=stop):
        if call == "leave":
            wait_until(lambda: link.replies)
        else:
            assert silent.wait(PATIENCE)
    assert silent.wait(PATIENCE)
    release.set()


@pytest.mark.parametrize(("seconds", "told"), [(59.0, False), (61.0, True)])
def test_an_answer_that_comes_too_late_is_told_to_the_owner(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, seconds: float, told: bool
) -> None:
    clock = [0.0]

    class SlowLink(ScriptedLink):
        def reply(self, reply: Message) -> None:
            clock[0] += seconds
            super().reply(reply)

    link = SlowLink([_message("one")])
    node, stop = _scripted_node(link, echo_app(), monkeypatch)
    real = time.monotonic
    monkeypatch.setattr("coinflower.client.node.resident.time.monotonic", lambda: real() + clock[0])
    with running(node, stop=stop):
        wait_until(lambda: link.replies)
        wait_until(lambda: not node._in_hand)
    assert ("An answer came too late" in caplog.text) == told
    if told:
        assert "sending took 61 s, and the server waits for 60 s" in caplog.text
