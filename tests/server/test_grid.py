"""The prompt grid around a scripted Grid; ``tests/client/node`` has it on a real one."""

from __future__ import annotations

import time
from collections.abc import Iterable

from flwr.app import ConfigRecord, Error, Message, Metadata, RecordDict
from flwr.app.message import make_message
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_utils import (
    ObjectPullError,
    ObjectUnavailableError,
    pull_objects,
)
from flwr.supercore.run import Run

from coinflower.server.grid import PromptGrid
from tests.support.waiting import VirtualTime


class ScriptedGrid(Grid):
    """Nodes answer after as many looks as ``looks`` says; the rest never do.

    Errors of node 13 are made by the SuperLink, which signs with its own id 1; node 99 is unknown.
    """

    def __init__(self, looks: dict[int, int]) -> None:
        self.looks = looks
        self.sent: dict[str, Message] = {}
        self.largest_pull = 0

    def set_run(self, run: Run) -> None: ...

    @property
    def run(self) -> Run:
        raise NotImplementedError

    def create_message(self, *_: object, **__: object) -> Message:
        raise NotImplementedError

    def get_node_ids(self) -> Iterable[int]:
        return list(self.looks)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        ids = []
        for message in messages:
            known = message.metadata.dst_node_id != 99
            ids.append(f"m{message.metadata.dst_node_id}" if known else "")
            message.metadata.__dict__["_message_id"] = ids[-1]
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

    def send_and_receive(self, *_: object, **__: object) -> Iterable[Message]:
        raise AssertionError("the prompt grid must not use this")


def _messages(*nodes: int) -> list[Message]:
    return [Message(RecordDict(), node, "query") for node in nodes]


def _nodes(replies: Iterable[Message]) -> list[int]:
    return [reply.metadata.src_node_id for reply in replies]


def test_replies_are_yielded_as_they_come() -> None:
    grid = PromptGrid(ScriptedGrid({5: 3, 6: 1, 7: 2}), poll_interval=0.01)
    assert _nodes(grid.send_and_collect(_messages(5, 6, 7))) == [6, 7, 5]


def test_errors_made_by_the_superlink_are_put_down_to_the_node_that_was_asked() -> None:
    grid = PromptGrid(ScriptedGrid({13: 1, 14: 1}), poll_interval=0.01)
    replies = {reply.metadata.src_node_id: reply for reply in grid.send_and_collect(_messages(13))}
    assert replies[13].has_error()
    assert replies[13].error.code == 5


def test_a_node_that_is_not_registered_any_more_is_an_error_too() -> None:
    grid = PromptGrid(ScriptedGrid({5: 1}), poll_interval=0.01)
    replies = list(grid.send_and_collect(_messages(99, 5)))
    assert _nodes(replies) == [99, 5]
    assert [reply.has_error() for reply in replies] == [True, False]


def test_send_and_receive_returns_promptly_with_everything(clock: VirtualTime) -> None:
    grid = PromptGrid(ScriptedGrid({5: 4, 6: 2}), poll_interval=0.01)
    assert sorted(_nodes(grid.send_and_receive(iter(_messages(5, 6))))) == [5, 6]
    assert clock.naps == [0.01, 0.01]  # after the first and the third look, which found nothing


def test_the_timeout_ends_the_wait_and_the_life_of_the_messages(clock: VirtualTime) -> None:
    inner = ScriptedGrid({5: 1})
    grid = PromptGrid(inner, poll_interval=0.01)
    assert _nodes(grid.send_and_collect(_messages(5, 6), 0.2)) == [5]
    assert 1000.2 <= clock.now <= 1000.2 + 2 * 0.01
    assert {message.metadata.ttl for message in inner.sent.values()} == {0.2}


def test_no_more_replies_than_a_batch_are_taken_at_once() -> None:
    inner = ScriptedGrid(dict.fromkeys(range(20, 50), 1))
    grid = PromptGrid(inner, poll_interval=0.001, batch=4)
    assert sorted(_nodes(grid.send_and_collect(_messages(*range(20, 50))))) == list(range(20, 50))
    assert inner.largest_pull == 4


def test_every_outstanding_node_gets_its_turn_to_be_looked_at() -> None:
    grid = PromptGrid(ScriptedGrid({9: 2}), batch=2)
    pending = grid.push(_messages(5, 6, 7, 8, 9))
    looks = 0
    while 9 in pending.outstanding:
        pending.poll()
        looks += 1
    assert looks <= 6


def test_a_pending_sending_is_polled_without_waiting(clock: VirtualTime) -> None:
    pending = PromptGrid(ScriptedGrid({5: 2, 6: 1})).push(_messages(5, 6))
    assert pending.outstanding == {5, 6}
    assert _nodes(pending.poll()) == [6]
    assert pending.outstanding == {5}
    assert _nodes(pending.poll()) == [5]
    assert pending.poll() == []
    assert clock.naps == []


def test_nobody_can_guess_the_name_of_a_message() -> None:
    first, second = _messages(5, 5)
    second.metadata.__dict__["_created_at"] = first.metadata.created_at
    assert first.object_id == second.object_id
    PromptGrid(ScriptedGrid({5: 1})).push([first, second])
    assert first.object_id != second.object_id
    assert len(first.metadata.group_id) >= 32


def test_nothing_to_send_is_nothing_to_wait_for() -> None:
    grid = PromptGrid(ScriptedGrid({}))
    assert list(grid.send_and_collect([])) == []
    assert not grid.push([]).outstanding


class HalfSentGrid(ScriptedGrid):
    """Every node announces a reply at once and never finishes its upload; each look takes 1 s."""

    def __init__(self, clock: VirtualTime) -> None:
        super().__init__({})
        self._clock = clock

    def _missing(self, object_id: str) -> bytes:
        self._clock.now += 1.0
        raise ObjectUnavailableError(object_id)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        replies = []
        for message_id in message_ids:
            try:
                pull_objects(["a" * 64], self._missing)
            except ObjectPullError:
                error = Error(ErrorCode.MESSAGE_UNAVAILABLE, "never uploaded")
                replies.append(Message(error, reply_to=self.sent[message_id]))
        return replies


def test_an_upload_that_never_ends_is_waited_for_as_long_as_patience_lasts(
    clock: VirtualTime,
) -> None:
    grid = PromptGrid(HalfSentGrid(clock), object_patience=3.0)
    (reply,) = grid.send_and_collect(_messages(5))
    assert reply.has_error()
    assert clock.now == 1003.0


def test_uploads_that_never_end_do_not_outlast_the_deadline(clock: VirtualTime) -> None:
    """Else, on a fixed pace, a client that dies while it uploads would delay the next round."""
    grid = PromptGrid(HalfSentGrid(clock), object_patience=20.0)
    replies = list(grid.send_and_collect(_messages(5, 6, 7), 5.0))
    assert [reply.has_error() for reply in replies] == [True] * 3
    assert clock.now <= 1005.0 + len(replies)  # one look each, which takes a second here
    (late,) = grid.send_and_collect(_messages(8))  # the deadline was theirs, not the grid's
    assert late.has_error()
    assert clock.now >= 1025.0


def test_objects_that_are_still_being_uploaded_are_asked_for_again_soon() -> None:
    PromptGrid(ScriptedGrid({}))
    assert (pull_objects.__kwdefaults__ or {})["initial_backoff"] < 0.1
