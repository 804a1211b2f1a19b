"""Flower's SuperLink, with a listener between its request handlers and its database.

Takes the same arguments. What clients hand to the database (messages, objects, sizes, stated times)
and when they ask it (polls and heartbeats) is written to the file ``$WIRE_RECORD`` as it comes.
"""

import os
import pickle
import sys
import threading
import time

from flwr.proto.message_pb2 import ObjectTree
from flwr.server.superlink.linkstate.in_memory_linkstate import InMemoryLinkState
from flwr.supercore.inflatable.inflatable_object import iterate_object_tree
from flwr.supercore.object_store.in_memory_object_store import InMemoryObjectStore
from flwr.superlink.cli import flower_superlink

from coinflower.flower_internals.superlink.program import put_up_fence
from coinflower.flower_internals.superlink.questions import OrderedLinkState

MESSAGE, FETCHED, OBJECT, TRAFFIC, RUNTIME = "message", "fetched", "object", "traffic", "runtime"
POLL, HEARTBEAT = "poll", "heartbeat"


class _Record:
    def __init__(self, path):
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._lock = threading.Lock()

    def note(self, what, **fields):
        line = {"what": what, "at": time.time(), "thread": threading.get_ident(), **fields}
        with self._lock:
            os.write(self._file, pickle.dumps(line))


def _listen(owner, name, hear):
    """Call ``hear(result, *arguments)`` after every call of a method."""
    method = getattr(owner, name)

    def heard(self, *arguments, **options):
        result = method(self, *arguments, **options)
        hear(result, *arguments, **options)
        return result

    setattr(owner, name, heard)


def main():
    record = _Record(os.environ["WIRE_RECORD"])

    def hear_message(result, message, tree: ObjectTree, *_):
        record.note(
            MESSAGE,
            metadata=vars(message.metadata),
            failed=message.has_error(),
            tree=[one.object_id for one in iterate_object_tree(tree)],
            wanted=list(result[1]),
        )

    def hear_fetch(result, *, node_id, **_):
        record.note(POLL, node=node_id)
        for message in result:
            record.note(FETCHED, message=message.metadata.message_id)

    def hear_object(_, name, content):
        record.note(OBJECT, name=name, content=content)

    _listen(InMemoryLinkState, "store_message_and_object_tree", hear_message)
    _listen(OrderedLinkState, "get_message_ins", hear_fetch)
    _listen(
        InMemoryLinkState,
        "acknowledge_node_heartbeat",
        lambda _, node_id, *__: record.note(HEARTBEAT, node=node_id),
    )
    _listen(InMemoryLinkState, "store_traffic", lambda _, __, **size: record.note(TRAFFIC, **size))
    _listen(
        InMemoryLinkState,
        "add_clientapp_runtime",
        lambda _, __, runtime: record.note(RUNTIME, runtime=runtime),
    )
    _listen(InMemoryObjectStore, "put", hear_object)
    put_up_fence()
    sys.exit(flower_superlink())


if __name__ == "__main__":
    main()
