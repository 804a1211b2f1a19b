"""A SuperLink that serves whatever bytes it is told to, over Flower's own HTTP clients."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from typing import Any

import httpx
import torch
from flwr.app import ConfigRecord, Metadata, RecordDict
from flwr.app.message import make_message
from flwr.common.serde import message_to_proto
from flwr.proto.fleet_pb2 import PullMessagesResponse, PushMessagesRequest, PushMessagesResponse
from flwr.proto.message_pb2 import (
    ObjectTree,
    PullObjectRequest,
    PullObjectResponse,
    PushObjectRequest,
    PushObjectResponse,
)
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, iterate_object_tree
from torch import nn


def build_tiny_model(classes: int) -> nn.Module:
    """Return a model of a few parameters, so that all time goes into messages."""
    return nn.Sequential(nn.Flatten(), nn.Linear(4, classes))


def metadata(kind: str, **changes: Any) -> Metadata:
    fields: dict[str, Any] = {
        "run_id": 1,
        "message_id": "m1",
        "src_node_id": 1,
        "dst_node_id": 7,
        "reply_to_message_id": "",
        "group_id": "",
        "created_at": time.time(),
        "ttl": 3600.0,
        "message_type": kind,
    }
    return Metadata(**{**fields, **changes})


def framed(kind: str, children: list[str], body: bytes) -> bytes:
    """Return an object as it is stored: a head that names type, children and length, then it."""
    return f"{kind} {','.join(children)} {len(body)}".encode() + b"\x00" + body


def object_id(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def body_of(record: RecordDict | ConfigRecord) -> bytes:
    """Return what follows the head of an object."""
    return record.deflate().partition(b"\x00")[2]


def tree_of(*path: str) -> ObjectTree:
    """Return a tree without branches, the root first."""
    tree = ObjectTree(object_id=path[-1])
    for name in reversed(path[:-1]):
        tree = ObjectTree(object_id=name, children=[tree])
    return tree


class Wire:
    """What one node is given, and what it sends.

    Attributes:
        arrival: The body that answers the next poll.
        objects: Contents by hash.
        sent: The objects of the reply, by hash.
        tree: The reply's tree; None if there was no reply.
    """

    def __init__(self) -> None:
        self.arrival = b""
        self.objects: dict[str, bytes] = {}
        self.sent: dict[str, bytes] = {}
        self.tree: ObjectTree | None = None
        self.head = b""

    def client(self) -> httpx.Client:
        return httpx.Client(transport=httpx.MockTransport(self._serve))

    def offer(self, kind: str, contents: list[bytes]) -> None:
        """Offer a message whose content is a chain of objects, the root first."""
        ids = [object_id(content) for content in contents]
        self.objects = dict(zip(ids, contents, strict=True))
        head = message_to_proto(make_message(metadata=metadata(kind), content=RecordDict()))
        response = PullMessagesResponse(
            messages_list=[head], message_object_trees=[tree_of("0" * 64, *ids)]
        )
        self.arrival = response.SerializeToString()

    def _serve(self, request: httpx.Request) -> httpx.Response:
        answers: dict[str, Callable[[bytes], bytes]] = {
            "pull-messages": lambda _: self.arrival,
            "pull-object": self._pull_object,
            "push-messages": self._push_messages,
            "push-object": self._push_object,
        }
        answer = answers.get(request.url.path.rpartition("/")[2], lambda _: b"")
        return httpx.Response(200, content=answer(request.content))

    def _pull_object(self, content: bytes) -> bytes:
        wanted = PullObjectRequest.FromString(content).object_id
        return PullObjectResponse(
            object_found=wanted in self.objects,
            object_available=wanted in self.objects,
            object_content=self.objects.get(wanted, b""),
        ).SerializeToString()

    def _push_messages(self, content: bytes) -> bytes:
        request = PushMessagesRequest.FromString(content)
        self.tree = request.message_object_trees[0]
        self.head = request.messages_list[0].SerializeToString()
        wanted = [branch.object_id for branch in iterate_object_tree(self.tree)]
        return PushMessagesResponse(objects_to_push=wanted).SerializeToString()

    def _push_object(self, content: bytes) -> bytes:
        request = PushObjectRequest.FromString(content)
        self.sent[request.object_id] = request.object_content
        return PushObjectResponse(stored=True).SerializeToString()


def stored(record: RecordDict) -> dict[str, bytes]:
    """Return the objects of a record, as they are stored."""
    return {name: one.deflate() for name, one in get_all_nested_objects(record).items()}


torch.set_num_threads(1)
