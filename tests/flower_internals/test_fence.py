"""Free names behind the fence: a node that lies about them spoils nothing but its own answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

import pytest
from flwr.proto.fleet_pb2 import (
    DeactivateNodeRequest,
    PullMessagesRequest,
    PullMessagesResponse,
    PushMessagesRequest,
    PushMessagesResponse,
)
from flwr.proto.message_pb2 import Message, Metadata, ObjectTree, PushObjectRequest
from flwr.proto.node_pb2 import Node
from flwr.proto.runtime_pb2 import PullAppMessagesRequest, PullAppMessagesResponse

from coinflower.flower_internals.long_records import LongRecord
from coinflower.flower_internals.names import name_in_answer
from coinflower.flower_internals.riders import Riders, encoded_head, encoded_object, take_off
from coinflower.flower_internals.superlink.asides import ObjectsAside
from coinflower.flower_internals.superlink.desk import Office, ServersDesk
from coinflower.flower_internals.superlink.fence import Fence
from coinflower.flower_internals.superlink.store import NamedStore

LIAR, VICTIM = 7, 8
ASKED = {LIAR: "17" * 32, VICTIM: "18" * 32}
ANSWERS = {LIAR: "27" * 32, VICTIM: "28" * 32}
MODEL = "ab" * 32
HONEST = LongRecord({"salt": b"h"}, "sum", b"h" * 9000).deflate()
LIE = LongRecord({"salt": b"l"}, "sum", b"l" * 9000).deflate()


class World:
    """A fence and a desk before handlers that do what Flower's do, with the store that they have.

    A question to each node is there; the model that both hold is announced.
    """

    def __init__(self) -> None:
        self.office, self.object_store = Office(), NamedStore()
        self.fence = Fence(
            SimpleNamespace(
                pull_messages=self._pull_question,
                push_messages=self._take_answer,
                push_object=lambda pushed, _: self.store_object(
                    1, "", pushed.object_id, pushed.object_content
                ),
                deactivate_node=lambda *_: None,
            ),
            self.office,
        )
        self.desk = ServersDesk(
            SimpleNamespace(pull_messages=lambda *_: PullAppMessagesResponse()), self.office
        )
        for node, question in ASKED.items():
            self._announce(self._question_tree(question))
            self.look(node)

    def get_object(self, _: int, name: str) -> bytes | None:
        return self.object_store.get(name)

    def store_object(self, _: int, __: str, name: str, content: Any) -> bool:
        try:
            self.object_store.put(name, content)
        except Exception:  # as Flower does
            return False
        return True

    def look(self, node: int, *, free: bool = True) -> bool:
        """Let a node look for questions; return whether it is told that free names are taken."""
        call = PullMessagesRequest(node=Node(node_id=node))
        riders = Riders(wait_seconds=0.0, free_names=free)
        handle = lambda asked: self.fence.pull_messages(asked, self, self.object_store)  # noqa: E731
        _, said = sent("pull-messages", call, riders, {}, handle)
        return said.free_names

    def look_for_server(self) -> bool:
        call, task = PullAppMessagesRequest(), SimpleNamespace(run_id=1)
        riders = Riders(wait_seconds=0.0, free_names=True)
        handle = lambda asked: self.desk.pull_messages(asked, self, task)  # noqa: E731
        return sent("pull-messages", call, riders, {}, handle)[1].free_names

    def answer(self, node: int, names: Iterable[str], along: dict[str, bytes]) -> None:
        """Let a node answer its question, with objects of these names, some of which ride along."""
        head = Metadata(
            run_id=1,
            message_id=ANSWERS[node],
            src_node_id=node,
            reply_to_message_id=ASKED[node],
        )
        tree = ObjectTree(object_id=ANSWERS[node])
        tree.children.extend(ObjectTree(object_id=name) for name in names)
        call = PushMessagesRequest(
            node=Node(node_id=node),
            messages_list=[Message(metadata=head)],
            message_object_trees=[tree],
        )
        sent("push-messages", call, Riders(), along, lambda it: self.fence.push_messages(it, self))

    def upload(self, node: int, name: str, content: bytes) -> None:
        """Let a node upload an object on its own."""
        request = PushObjectRequest(
            node=Node(node_id=node), run_id=1, object_id=name, object_content=content
        )
        self.fence.push_object(request, self)

    def _announce(self, tree: ObjectTree) -> None:
        self.object_store.preregister(1, tree)

    @staticmethod
    def _question_tree(question: str) -> ObjectTree:
        return ObjectTree(object_id=question, children=[ObjectTree(object_id=MODEL)])

    def _pull_question(self, request: PullMessagesRequest, *_: object) -> PullMessagesResponse:
        question = ASKED[request.node.node_id]
        return PullMessagesResponse(
            messages_list=[Message(metadata=Metadata(run_id=1, message_id=question))],
            message_object_trees=[self._question_tree(question)],
        )

    def _take_answer(self, request: PushMessagesRequest, _: object) -> PushMessagesResponse:
        self._announce(request.message_object_trees[0])
        return PushMessagesResponse()


def sent(
    path: str,
    call: Any,
    riders: Riders,
    objects: dict[str, bytes],
    handle: Callable[[Any], Any],
) -> tuple[bytes, Riders]:
    """Return the answer to a call, which passes the outermost layer of a SuperLink."""
    body = call.SerializeToString() + encoded_head(riders)
    for name, content in objects.items():
        body += b"".join(bytes(part) for part in encoded_object(name, [content]))
    events = [{"type": "http.request", "body": body, "more_body": False}]
    parts: list[bytes] = []

    async def layers(_: Any, receive: Any, send: Any) -> None:
        asked = type(call).FromString((await receive())["body"])
        said = (await asyncio.to_thread(handle, asked)).SerializeToString()
        headers = [(b"content-length", b"%d" % len(said))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": said})

    async def receive() -> dict[str, Any]:
        if events:
            return events.pop()
        await asyncio.Event().wait()
        raise AssertionError

    async def send(event: dict[str, Any]) -> None:
        parts.append(bytes(event.get("body", b"")))

    asyncio.run(ObjectsAside(layers)({"type": "http", "path": f"/v1/fleet/{path}"}, receive, send))
    return take_off(bytearray(b"".join(parts)))


@pytest.fixture
def world() -> World:
    return World()


@pytest.mark.parametrize("rides", [True, False])
def test_a_record_is_taken_under_the_name_that_its_question_gives_it(
    world: World, rides: bool
) -> None:
    name = name_in_answer(ASKED[VICTIM])
    world.answer(VICTIM, [name], {name: HONEST} if rides else {})
    if not rides:
        world.upload(VICTIM, name, HONEST)
    assert world.get_object(1, name) == HONEST


@pytest.mark.parametrize("rides", [True, False])
@pytest.mark.parametrize("name", [name_in_answer(ASKED[VICTIM]), MODEL, "99" * 32])
def test_a_node_puts_nothing_under_a_name_that_is_not_for_its_answer(
    world: World, name: str, rides: bool
) -> None:
    """Not even if it somehow knows the question of another, or while a model is announced only."""
    world.answer(LIAR, [name], {name: LIE} if rides else {})
    if not rides:
        world.upload(LIAR, name, LIE)
    assert world.get_object(1, name) == b""


def test_a_node_that_announces_the_name_of_another_does_not_keep_it_from_its_answer(
    world: World,
) -> None:
    name = name_in_answer(ASKED[VICTIM])
    world.answer(LIAR, [name], {name: LIE})
    world.answer(VICTIM, [name], {name: HONEST})
    assert world.get_object(1, name) == HONEST


def test_an_answer_that_is_there_cannot_be_replaced(world: World) -> None:
    name = name_in_answer(ASKED[VICTIM])
    world.answer(VICTIM, [name], {name: HONEST})
    world.answer(VICTIM, [name], {name: LIE})
    world.answer(LIAR, [name], {name: LIE})
    world.upload(LIAR, name, LIE)
    assert world.get_object(1, name) == HONEST


def test_what_is_no_record_has_no_free_name(world: World) -> None:
    name = name_in_answer(ASKED[LIAR])
    world.answer(LIAR, [name], {name: b"RecordDict " + name.encode() + b" 2\0{}"})
    assert world.get_object(1, name) == b""


def test_a_server_hears_that_names_are_free_only_while_all_nodes_take_them(world: World) -> None:
    assert world.look_for_server()
    assert not world.look(LIAR, free=False)
    assert not world.look_for_server()
    assert world.look(VICTIM)
    world.fence.deactivate_node(DeactivateNodeRequest(node_id=LIAR), world)
    assert world.look_for_server()
