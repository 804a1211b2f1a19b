"""The prompt grid around a scripted Grid; ``tests/client/node`` has it on a real one."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from flwr.app import ConfigRecord, Error, Message, Metadata, RecordDict
from flwr.app.message import make_message
from flwr.common.serde import message_to_proto
from flwr.proto.message_pb2 import ObjectTree, PullObjectResponse
from flwr.superlink.grid.http_grid import HttpGrid

from coinflower.flower_internals import runtime
from coinflower.flower_internals.messages import set_created_at, set_message_id
from coinflower.server.grid import PromptGrid
from tests.support.builders import exchange_in_process, make_http_grid
from tests.support.waiting import VirtualTime


class ScriptedGrid:
    """Nodes answer after as many looks as ``looks`` says; the rest never do.

    Errors of node 13 are made by the SuperLink, which signs with its own id 1; node 99 is unknown.
    """

    def __init__(self, looks: dict[int, int]) -> None:
        self.looks = looks
        self.sent: dict[str, Message] = {}
        self.largest_pull = 0

    def get_node_ids(self) -> Iterable[int]:
        return list(self.looks)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        ids = []
        for message in messages:
            known = message.metadata.dst_node_id != 99
            ids.append(f"m{message.metadata.dst_node_id}" if known else "")
            set_message_id(message, ids[-1])
            if known:
                self.sent[ids[-1]] = message
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        replies = []
        for message_id in message_ids:
            asked = self.sent[message_id]
            node = asked.metadata.dst_node_id
            self.looks[node] = self.looks.get(node, 10**9) - 1
            if self.looks[node] == 0:
                replies.append(self._reply(asked, node))
        self.largest_pull = max(self.largest_pull, len(replies))
        return replies

    @staticmethod
    def _reply(asked: Message, node: int) -> Message:
        if node != 13:
            return Message(RecordDict({"c": ConfigRecord({"node": node})}), reply_to=asked)
        metadata = Metadata(
            run_id=1,
            message_id="x",
            src_node_id=1,
            dst_node_id=1,
            reply_to_message_id=asked.metadata.message_id,
            group_id="",
            created_at=time.time(),
            ttl=1,
            message_type="query",
        )
        return make_message(metadata=metadata, error=Error(5, "Node Unavailable"))


def _messages(*nodes: int) -> list[Message]:
    return [Message(RecordDict(), node, "query") for node in nodes]


def _collect(grid: PromptGrid, *nodes: int, timeout: float | None = None) -> Iterator[Message]:
    return grid.collect(grid.push(_messages(*nodes)), timeout)


def _nodes(replies: Iterable[Message]) -> list[int]:
    return [reply.metadata.src_node_id for reply in replies]


def test_replies_are_yielded_as_they_come() -> None:
    grid = PromptGrid(ScriptedGrid({5: 3, 6: 1, 7: 2}), poll_interval=0.01)
    assert _nodes(_collect(grid, 5, 6, 7)) == [6, 7, 5]


def test_errors_made_by_the_superlink_are_put_down_to_the_node_that_was_asked() -> None:
    grid = PromptGrid(ScriptedGrid({13: 1, 14: 1}), poll_interval=0.01)
    replies = {reply.metadata.src_node_id: reply for reply in _collect(grid, 13)}
    assert replies[13].has_error()
    assert replies[13].error.code == 5


def test_a_node_that_is_not_registered_any_more_is_an_error_too() -> None:
    grid = PromptGrid(ScriptedGrid({5: 1}), poll_interval=0.01)
    replies = list(_collect(grid, 99, 5))
    assert _nodes(replies) == [99, 5]
    assert [reply.has_error() for reply in replies] == [True, False]


def test_only_looks_that_found_nothing_are_followed_by_a_pause(clock: VirtualTime) -> None:
    grid = PromptGrid(ScriptedGrid({5: 4, 6: 2}), poll_interval=0.01)
    assert _nodes(_collect(grid, 5, 6)) == [6, 5]
    assert clock.naps == [0.01, 0.01]  # after the first and the third look


def test_the_timeout_ends_the_wait(clock: VirtualTime) -> None:
    grid = PromptGrid(ScriptedGrid({5: 1}), poll_interval=0.01)
    assert _nodes(_collect(grid, 5, 6, timeout=0.2)) == [5]
    assert 1000.2 <= clock.now <= 1000.2 + 2 * 0.01


def test_no_more_replies_than_a_batch_are_taken_at_once() -> None:
    inner = ScriptedGrid(dict.fromkeys(range(20, 50), 1))
    grid = PromptGrid(inner, poll_interval=0.001, batch=4)
    assert sorted(_nodes(_collect(grid, *range(20, 50)))) == list(range(20, 50))
    assert inner.largest_pull == 4


def test_every_outstanding_node_gets_its_turn_to_be_looked_at() -> None:
    grid = PromptGrid(ScriptedGrid({9: 2}), batch=2)
    pending = grid.push(_messages(5, 6, 7, 8, 9))
    looks = 0
    while 9 in pending.outstanding:
        list(pending.poll())
        looks += 1
    assert looks <= 6


def test_a_pending_sending_is_polled_without_waiting(clock: VirtualTime) -> None:
    pending = PromptGrid(ScriptedGrid({5: 2, 6: 1})).push(_messages(5, 6))
    assert pending.outstanding == {5, 6}
    assert _nodes(list(pending.poll())) == [6]
    assert pending.outstanding == {5}
    assert _nodes(list(pending.poll())) == [5]
    assert list(pending.poll()) == []
    assert clock.naps == []


def test_replies_to_what_was_added_come_with_the_same_look() -> None:
    inner = ScriptedGrid({5: 1, 6: 1, 99: 1})
    pending = PromptGrid(inner).push(_messages(5))
    pending.add(_messages(6, 99))
    assert pending.outstanding == {5, 6, 99}
    assert _nodes(list(pending.poll())) == [99]  # which nobody knows
    assert _nodes(list(pending.poll())) == [5, 6]
    assert inner.largest_pull == 2


def test_nobody_can_guess_the_name_of_a_message() -> None:
    first, second = _messages(5, 5)
    set_created_at(second, first.metadata.created_at)
    assert first.object_id == second.object_id
    PromptGrid(ScriptedGrid({5: 1})).push([first, second])
    assert first.object_id != second.object_id
    assert len(first.metadata.group_id) >= 32


def test_nothing_to_send_is_nothing_to_wait_for() -> None:
    grid = PromptGrid(ScriptedGrid({}))
    assert list(_collect(grid)) == []
    assert not grid.push([]).outstanding


class HalfSentRuntime:
    """Every node announces a reply at once and never finishes its upload; each look takes 1 s."""

    def __init__(self, clock: VirtualTime) -> None:
        self._clock = clock

    def PushMessages(self, request: Any) -> Any:  # noqa: N802 - Flower's name
        names = [tree.object_id for tree in request.message_object_trees]
        return SimpleNamespace(message_ids=names, objects_to_push=[], session_id="")

    def PullMessages(self, request: Any) -> Any:  # noqa: N802
        heads = []
        for name in request.message_ids:
            metadata = Metadata(1, f"reply {name}", 5, 1, name, "", 0.0, 1.0, "query")
            heads.append(message_to_proto(make_message(metadata=metadata, content=RecordDict())))
        trees = [ObjectTree(object_id="a" * 64) for _ in heads]
        return SimpleNamespace(messages_list=heads, message_object_trees=trees)

    def pull_object(self, api: str, request: Any, *_: Any) -> tuple[PullObjectResponse, bytes]:
        assert (api, request.object_id) == ("runtime", "a" * 64)
        self._clock.now += 1.0
        return PullObjectResponse(object_found=True, object_available=False), b""


@pytest.fixture
def half_sent(clock: VirtualTime, monkeypatch: pytest.MonkeyPatch) -> HttpGrid:
    monkeypatch.setattr(runtime, "pull_object", HalfSentRuntime.pull_object)
    monkeypatch.setattr(runtime, "exchange", exchange_in_process)
    return make_http_grid(HalfSentRuntime(clock))


def test_an_upload_that_never_ends_is_waited_for_as_long_as_patience_lasts(
    half_sent: HttpGrid, clock: VirtualTime
) -> None:
    (reply,) = _collect(PromptGrid(half_sent, object_patience=3.0), 5)
    assert reply.has_error()
    assert 1003.0 <= clock.now <= 1004.0


def test_uploads_that_never_end_do_not_outlast_the_deadline(
    half_sent: HttpGrid, clock: VirtualTime
) -> None:
    """Else, on a fixed pace, a client that dies while it uploads would delay the next round."""
    grid = PromptGrid(half_sent, object_patience=20.0)
    replies = list(_collect(grid, 5, 6, 7, timeout=5.0))
    assert [reply.has_error() for reply in replies] == [True] * 3
    # One look each, which takes a second here, and at most one pause.
    assert clock.now <= 1005.5 + len(replies)
    (late,) = _collect(grid, 8)  # the deadline was theirs, not the grid's
    assert late.has_error()
    assert clock.now >= 1025.0


def test_objects_that_are_still_being_uploaded_are_asked_for_again_soon(
    half_sent: HttpGrid, clock: VirtualTime
) -> None:
    (reply,) = _collect(PromptGrid(half_sent, object_patience=20.0), 5)
    assert reply.has_error()
    assert clock.naps[0] < 0.1
    assert max(clock.naps) < 1


def test_a_reply_is_fetched_when_the_one_before_has_been_dealt_with() -> None:
    inner = ScriptedGrid({5: 1, 6: 1, 7: 1})
    fetched: list[int] = []

    def one_by_one(message_ids: Iterable[str]) -> Iterator[Message]:
        for message_id in message_ids:
            (reply,) = ScriptedGrid.pull_messages(inner, [message_id])
            fetched.append(reply.metadata.src_node_id)
            yield reply

    inner.pull_messages = one_by_one  # type: ignore[method-assign]
    replies = _collect(PromptGrid(inner), 5, 6, 7)
    for count in (1, 2, 3):
        next(replies)
        assert len(fetched) == count
