"""Flower's SuperLink with a fence around every node: it reaches its own messages, and no others.

Stock Flower knows who calls its Fleet API but lets every node fetch or delete whatever it knows the
hash of, tells it at an upload which objects are there already, takes questions to other nodes from
it in the server's name, and shows it how many bytes a run has moved so far. Any of these tells, or
spoils, what others do. The fence stands between Flower's routes and their handlers.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

from flwr.proto.fleet_pb2 import (
    PullMessagesRequest,
    PullMessagesResponse,
    PushMessagesRequest,
    PushMessagesResponse,
)
from flwr.proto.message_pb2 import (
    ConfirmMessageReceivedRequest,
    ConfirmMessageReceivedResponse,
    PullObjectRequest,
    PullObjectResponse,
    PushObjectRequest,
    PushObjectResponse,
)
from flwr.proto.run_pb2 import GetRunRequest, GetRunResponse
from flwr.server.superlink.linkstate import LinkState
from flwr.supercore.object_store import ObjectStore
from flwr.superlink import main
from flwr.superlink.cli import flower_superlink
from flwr.superlink.servicer.fleet import fleet_handlers
from flwr.superlink.servicer.runtime import runtime_handlers

from coinflower.flower_internals.asides import ObjectsAside, Pushed, drop_pulled, pulled
from coinflower.flower_internals.messages import object_ids

logger = logging.getLogger("coinflower.server")

_MOST_MESSAGES = 64
_FENCED = (
    "pull_messages",
    "pull_object",
    "push_messages",
    "push_object",
    "confirm_message_received",
    "get_run",
)


class _Owned:
    """By node, the messages that are its own, each with the hashes of its objects.

    Keeps a node's latest only: an honest one has two in hand.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._messages: dict[int, OrderedDict[str, frozenset[str]]] = {}

    def add(self, node: int, message: str, objects: Iterable[str]) -> None:
        with self._lock:
            messages = self._messages.setdefault(node, OrderedDict())
            messages[message] = frozenset(objects)
            while len(messages) > _MOST_MESSAGES:
                messages.popitem(last=False)

    def has(self, node: int, message: str) -> bool:
        with self._lock:
            return message in self._messages.get(node, ())

    def holding(self, node: int, name: str) -> list[str]:
        """Return the node's messages that hold an object."""
        with self._lock:
            messages = self._messages.get(node, OrderedDict())
            return [message for message, objects in messages.items() if name in objects]


class Fence:
    """Flower's handlers of the Fleet API, for what is the caller's own.

    The route in front has checked the caller's signature against ``request.node``. What is not the
    caller's own looks as if it were not there, after the same little work.

    Args:
        stock: Flower's handlers.
    """

    def __init__(self, stock: Any) -> None:
        self._stock = stock
        self._questions = _Owned()
        self._answers = _Owned()

    def pull_messages(
        self, request: PullMessagesRequest, state: LinkState, store: ObjectStore
    ) -> PullMessagesResponse:
        """Hand over the caller's next question, and note that it is its own."""
        response: PullMessagesResponse = self._stock.pull_messages(request, state, store)
        for message, tree in zip(
            response.messages_list, response.message_object_trees, strict=True
        ):
            self._questions.add(request.node.node_id, message.metadata.message_id, object_ids(tree))
        return response

    def pull_object(self, request: PullObjectRequest, state: LinkState) -> PullObjectResponse:
        """Hand over an object of a question to the caller that is still there.

        Those who are sent the same model share its object, which is there until the last of them
        has done with it. Who has no question any more must not see for how long that is.
        """
        questions = self._questions.holding(request.node.node_id, request.object_id)
        if any(question in state.object_store for question in questions):
            response: PullObjectResponse = self._stock.pull_object(request, state)
            if any(question in state.object_store for question in questions):
                return response
            drop_pulled()
        return PullObjectResponse(object_found=False, object_available=False)

    def push_messages(self, request: PushMessagesRequest, state: LinkState) -> PushMessagesResponse:
        """Take the caller's answer to a question it was asked.

        All its objects are then asked for. Which of them the store has already is not told.
        """
        node = request.node.node_id
        if len(request.messages_list) != 1 or len(request.message_object_trees) != 1:
            return self._refused(node, "other than one message at a time")
        head, tree = request.messages_list[0].metadata, request.message_object_trees[0]
        if head.src_node_id != node or not self._questions.has(node, head.reply_to_message_id):
            return self._refused(node, "a message that answers no question to it")
        if tree.object_id != head.message_id:
            return self._refused(node, "a message with the objects of another")
        names = list(dict.fromkeys(object_ids(tree)))
        response: PushMessagesResponse = self._stock.push_messages(request, state)
        self._answers.add(node, head.message_id, names)
        response.objects_to_push[:] = names
        return response

    def push_object(self, request: PushObjectRequest, state: LinkState) -> PushObjectResponse:
        """Take an object of an answer of the caller's."""
        own = bool(self._answers.holding(request.node.node_id, request.object_id))
        if own:
            self._stock.push_object(Pushed(request), state)
        return PushObjectResponse(stored=own)

    def confirm_message_received(
        self, request: ConfirmMessageReceivedRequest, state: LinkState, store: ObjectStore
    ) -> ConfirmMessageReceivedResponse:
        """Delete a question that the caller was asked."""
        if self._questions.has(request.node.node_id, request.message_object_id):
            self._stock.confirm_message_received(request, state, store)
        return ConfirmMessageReceivedResponse()

    def get_run(self, request: GetRunRequest, state: LinkState) -> GetRunResponse:
        """Describe a run but for what all nodes together have sent, received and computed."""
        response: GetRunResponse = self._stock.get_run(request, state)
        for total in ("bytes_sent", "bytes_recv", "clientapp_runtime"):
            response.run.ClearField(total)
        return response

    @staticmethod
    def _refused(node: int, what: str) -> PushMessagesResponse:
        logger.warning("Node %d sent %s; it is dropped.", node, what)
        return PushMessagesResponse()


def put_up_fence() -> None:
    """Put the fence before Flower's handlers, in this process."""
    fence = Fence(SimpleNamespace(**{name: getattr(fleet_handlers, name) for name in _FENCED}))
    for name in _FENCED:
        setattr(fleet_handlers, name, getattr(fence, name))


def set_objects_aside() -> None:
    """Lead long objects past the layers of the SuperLink, in this process."""
    handlers: list[Any] = [fleet_handlers, runtime_handlers]
    push_object, create_app = handlers[1].push_object, main.create_app

    def push(request: PushObjectRequest, state: LinkState, task: Any) -> PushObjectResponse:
        response: PushObjectResponse = push_object(Pushed(request), state, task)
        return response

    def create(*arguments: Any, **options: Any) -> Any:
        app = create_app(*arguments, **options)
        app.add_middleware(ObjectsAside)
        return app

    handlers[1].push_object = push
    for module in handlers:
        module.PullObjectResponse = pulled
    main.create_app = create


def run_fenced_superlink() -> None:
    """Be ``flower-superlink``, which takes its arguments from the command line, with a fence."""
    put_up_fence()
    set_objects_aside()
    flower_superlink()
