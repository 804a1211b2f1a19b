"""Flower's SuperLink with a fence around every node: it reaches its own messages, and no others.

Stock Flower knows who calls its Fleet API but lets every node fetch or delete whatever it knows the
hash of, tells it at an upload which objects are there already, takes questions to other nodes from
it in the server's name, and shows it how many bytes a run has moved so far. Any of these tells, or
spoils, what others do. The fence stands between Flower's routes and their handlers. What rides
along with a call (`coinflower.flower_internals.riders`) passes it as if it came alone.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Iterable
from typing import Any

from flwr.proto.fleet_pb2 import (
    DeactivateNodeRequest,
    DeactivateNodeResponse,
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

from coinflower.flower_internals.messages import object_ids
from coinflower.flower_internals.names import name_in_answer
from coinflower.flower_internals.superlink.asides import (
    Pushed,
    came_along,
    drop_pulled,
    offer_free_names,
    pull_or_wait,
)
from coinflower.flower_internals.superlink.desk import Office, send_short_ones_along, store_along
from coinflower.flower_internals.superlink.store import taking

logger = logging.getLogger("coinflower.server")

_MOST_MESSAGES = 64


class _Owned:
    """By node, the messages that are its own, each with the names of its objects.

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
        office: What the server's side rings.
    """

    def __init__(self, stock: Any, office: Office) -> None:
        self._stock = stock
        self._office = office
        self._questions = _Owned()
        self._answers = _Owned()
        self._free_names = _Owned()

    def deactivate_node(
        self, request: DeactivateNodeRequest, state: LinkState
    ) -> DeactivateNodeResponse:
        """Let a node go; what it waits for it waits for no longer."""
        response: DeactivateNodeResponse = self._stock.deactivate_node(request, state)
        self._office.bells.dismiss(request.node_id)
        self._office.hashing.discard(request.node_id)
        return response

    def pull_messages(
        self, request: PullMessagesRequest, state: LinkState, store: ObjectStore
    ) -> PullMessagesResponse:
        """Hand over the caller's next question, and note that it is its own."""
        node = request.node.node_id
        if came_along().free_names:
            self._office.hashing.discard(node)
        else:
            self._office.hashing.add(node)
        offer_free_names(came_along().free_names)

        def pull() -> PullMessagesResponse:
            with self._office.arriving:
                response: PullMessagesResponse = self._stock.pull_messages(request, state, store)
            for message, tree in zip(
                response.messages_list, response.message_object_trees, strict=True
            ):
                head = message.metadata
                self._questions.add(node, head.message_id, object_ids(tree))
                send_short_ones_along(state, head.run_id, tree.children)
            return response

        answer: PullMessagesResponse = pull_or_wait(self._office.bells, node, pull)
        return answer

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

        All its objects that did not come along are then asked for. Which of them the store has
        already is not told. A record may have the free name of an answer to this very question.
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
        free = name_in_answer(head.reply_to_message_id)
        self._free_names.add(node, head.message_id, [free])
        came = came_along()
        for name, content in came.objects.items():
            if name in names:
                store_along(state, head.run_id, response.session_id, name, content, free=free)
        response.objects_to_push[:] = [name for name in names if name not in came.objects]
        for name in came.confirmed:
            if self._questions.has(node, name):
                state.object_store.delete(name)
        self._office.ring_server(head.run_id)
        return response

    def push_object(self, request: PushObjectRequest, state: LinkState) -> PushObjectResponse:
        """Take an object of an answer of the caller's."""
        node, name = request.node.node_id, request.object_id
        own = bool(self._answers.holding(node, name))
        pushed = Pushed(request)
        if own:
            with taking(name if self._free_names.holding(node, name) else ""):
                self._stock.push_object(pushed, state)
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
