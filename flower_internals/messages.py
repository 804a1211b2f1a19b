"""Messages as Flower's own components see them: names, heads, objects."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from flwr.app import ConfigRecord, Error, Message, Metadata, RecordDict
from flwr.app.message import make_message, remove_content_from_message
from flwr.common.constant import ErrorCode
from flwr.common.serde import message_to_proto
from flwr.proto.message_pb2 import ObjectTree
from flwr.supercore.inflatable.inflatable_object import (
    InflatableObject,
    get_all_nested_objects,
    get_object_tree,
    iterate_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.task_identity import TaskIdentity

from coinflower.flower_internals.long_fields import Buffer
from coinflower.flower_internals.long_records import LongRecord, read_object

NODE_UNAVAILABLE = ErrorCode.NODE_UNAVAILABLE
HANDLER_FAILED = ErrorCode.CLIENT_APP_RAISED_EXCEPTION
NEVER_ARRIVED = ErrorCode.MESSAGE_UNAVAILABLE


class MalformedError(Exception):
    """Bytes that are no message, or not the message they should be; says what is wrong."""


def set_message_id(message: Message, message_id: str) -> None:
    """Name a message, as Flower does when it is sent."""
    message.metadata.__dict__["_message_id"] = message_id


def set_created_at(message: Message, moment: float) -> None:
    """Change when a message says that it was written."""
    message.metadata.__dict__["_created_at"] = moment


def set_source(message: Message, node_id: int) -> None:
    """Change the node that a message says it is from."""
    message.metadata.__dict__["_src_node_id"] = node_id


def lost_reply(message_id: str, reason: str) -> Message:
    """Return the error that stands for a reply whose content cannot be had or read."""
    metadata = Metadata(
        run_id=0,
        message_id="",
        src_node_id=0,
        dst_node_id=0,
        reply_to_message_id=message_id,
        group_id="",
        created_at=time.time(),
        ttl=0,
        message_type="query",
    )
    return make_message(metadata=metadata, error=Error(NEVER_ARRIVED, reason))


def record_of(content: RecordDict, name: str) -> ConfigRecord:
    """Return a record of a message's content.

    Flower's ``content.config_records`` would keep all of the content, maybe a model, in memory
    until Python's garbage collector comes by: it makes an object that refers to itself.

    Raises:
        KeyError: There is none of that name, or it is another kind of record.
    """
    record = content[name]
    if not isinstance(record, ConfigRecord):
        raise KeyError(name)
    return record


def pieces_of(part: InflatableObject) -> Sequence[Buffer]:
    """Return what an object is on the wire."""
    return part.pieces() if isinstance(part, LongRecord) else [part.deflate()]


def object_ids(tree: ObjectTree) -> list[str]:
    """Return the names of all objects of a tree."""
    return [branch.object_id for branch in iterate_object_tree(tree)]


@dataclass(frozen=True)
class Arrival:
    """A message that has come without its content.

    Attributes:
        message: The message.
        tree: Its objects' names.
        objects: Those of them that came along.
    """

    message: Message
    tree: ObjectTree
    objects: Mapping[str, Buffer] = field(default_factory=dict)

    def content_ids(self) -> list[str]:
        """Return the names of the content's objects, or raise MalformedError."""
        if self.message.has_error() or len(self.tree.children) != 1:
            raise MalformedError("a message must have exactly one content")
        return object_ids(self.tree.children[0])

    def content(self, objects: Mapping[str, Buffer], viewed: Collection[str]) -> RecordDict:
        """Return the content that the objects make up, or raise MalformedError.

        Long values of the fields in ``viewed`` are views of the objects.
        """
        try:
            record = read_object(self.tree.children[0].object_id, objects, viewed)
        except Exception as error:
            raise MalformedError("the content of a message is malformed") from error
        if not isinstance(record, RecordDict):
            raise MalformedError("the content of a message must be a RecordDict")
        return record


class Departure:
    """A message that is about to be sent: its head, and its objects one by one."""

    def __init__(self, message: Message) -> None:
        with no_object_id_recompute():
            set_message_id(message, message.object_id)
            self.head = message_to_proto(remove_content_from_message(message))
            self.tree = get_object_tree(message)
            self._objects = get_all_nested_objects(message)

    def pieces(self, wanted: Iterable[str] | None = None) -> dict[str, Sequence[Buffer]]:
        """Return the wanted objects in pieces, by name; all of them if None."""
        names = self._objects if wanted is None else [name for name in wanted if name in self]
        return {name: pieces_of(self._objects[name]) for name in names}

    def __contains__(self, name: str) -> bool:
        """Return whether an object belongs to the message."""
        return name in self._objects


@contextmanager
def as_task() -> Iterator[None]:
    """Give this process the identity that Flower's messages want of a running task."""
    names = ("_task_id", "_run_id", "_node_id")
    before = [getattr(TaskIdentity, name) for name in names]
    for name in names:
        setattr(TaskIdentity, name, 1)
    try:
        yield
    finally:
        for name, value in zip(names, before, strict=True):
            setattr(TaskIdentity, name, value)
