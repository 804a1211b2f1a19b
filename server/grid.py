"""The prompt grid: Flower's Grid without its pauses, as far as a server needs it.

``HttpGrid.send_and_receive`` sleeps three seconds between two checks, and returns all replies at
the end. This one wraps whatever Grid the ServerApp is given, checks often, and yields replies as
they come, so that the sum of many gradients never needs more than a few of them in memory.
"""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Iterable, Iterator

from flwr.app import Error, Message

from coinflower.flower_internals.messages import NODE_UNAVAILABLE, set_created_at, set_source
from coinflower.flower_internals.runtime import MessageGrid, Messenger
from coinflower.protocol.messages import VECTORS

_LONGEST_WAIT_SECONDS = 1.0


class Pending:
    """Messages that were sent, and the nodes whose reply is still missing.

    Every reply has the node that was *asked* as its ``metadata.src_node_id``. The SuperLink gives
    its own id to the errors that it makes on behalf of a node; this class corrects that.
    """

    def __init__(self, grid: PromptGrid, messages: list[Message]) -> None:
        self._grid = grid
        self._nodes: dict[str, int] = {}
        self._refused: list[Message] = []
        self.add(messages)

    def add(self, messages: list[Message]) -> None:
        """Send further messages; their replies come with those to the others."""
        now = time.time()
        for message in messages:
            # Its hash is the message's name, and anybody who knows it may delete the message.
            message.metadata.group_id = secrets.token_hex()
            # Otherwise it would show how many were written before it.
            set_created_at(message, now)
        # Flower refuses an empty list.
        message_ids = list(self._grid.push_messages(messages)) if messages else []
        if len(message_ids) != len(messages):
            raise RuntimeError("the SuperLink refused the messages as too large to push at once")
        for message, message_id in zip(messages, message_ids, strict=True):
            if message_id:
                self._nodes[message_id] = message.metadata.dst_node_id
            else:
                error = Error(NODE_UNAVAILABLE, "The node is not registered any more.")
                self._refused.append(Message(error, reply_to=message))

    @property
    def outstanding(self) -> frozenset[int]:
        """The nodes whose reply is still missing."""
        refused = (reply.metadata.src_node_id for reply in self._refused)
        return frozenset(self._nodes.values()) | frozenset(refused)

    def poll(self, deadline: float = math.inf, wait_seconds: float = 0.0) -> Iterator[Message]:
        """Yield the replies, errors included, that have come; wait only for uploads that began.

        Ask for a few hundred messages at a time, in turn. Each reply that is long is fetched when
        the one before has been dealt with, so that no two of them need to be held.

        Args:
            deadline: When, on the monotonic clock, an unfinished upload counts as an error.
            wait_seconds: How long to wait for a reply, if the SuperLink knows how to.
        """
        if self._refused:
            refused, self._refused = self._refused, []
            yield from refused
            return
        asked = list(self._nodes)[: self._grid.batch]
        if not asked:
            return
        for message_id in asked:
            self._nodes[message_id] = self._nodes.pop(message_id)
        for reply in self._grid.pull(asked, deadline, wait_seconds):
            if self._attribute(reply):
                yield reply
            del reply  # or it would stay while the next one comes

    def _attribute(self, reply: Message) -> bool:
        node_id = self._nodes.pop(reply.metadata.reply_to_message_id, None)
        if node_id is not None:
            set_source(reply, node_id)
        return node_id is not None


class PromptGrid:
    """A Grid that checks for replies often.

    Args:
        grid: The Grid that the ServerApp was given.
        poll_interval: Seconds between two looks that found nothing; less than a second only if the
            SuperLink cannot wait.
        batch: Most replies that one look asks for.
        object_patience: Seconds to wait for the content of a reply that was announced; the client
            may have died while it uploaded, or have a slow line.
    """

    def __init__(
        self,
        grid: MessageGrid,
        *,
        poll_interval: float = 0.05,
        batch: int = 256,
        object_patience: float = 20.0,
    ) -> None:
        self._grid = grid
        self._messenger = Messenger(grid)
        self._poll_interval = poll_interval
        self.batch = batch
        self._object_patience = object_patience

    def get_node_ids(self) -> Iterable[int]:
        """Return the ids of nodes that are online, or were until their heartbeat just stopped."""
        return self._grid.get_node_ids()

    def push_messages(self, messages: list[Message]) -> Iterable[str]:
        """Push messages and return their ids."""
        return self._messenger.push(messages)

    def pull(
        self, message_ids: list[str], deadline: float = math.inf, wait_seconds: float = 0.0
    ) -> Iterator[Message]:
        """Pull the replies to some messages that are there by now; see `Pending.poll`."""
        return self._messenger.pull(
            message_ids,
            lambda: min(self._object_patience, deadline - time.monotonic()),
            VECTORS,
            wait_seconds,
        )

    def push(self, messages: Iterable[Message]) -> Pending:
        """Send messages without waiting; ask the result for replies whenever convenient.

        The messages live as long as their ``ttl``, by default twelve hours.
        """
        return Pending(self, list(messages))

    def collect(
        self,
        pending: Pending,
        timeout: float | None = None,
        *,
        enough: int | None = None,
        grace_seconds: float = 0.0,
    ) -> Iterator[Message]:
        """Yield each missing reply as soon as it is there, until all came or the time passed.

        What a client has begun to upload by then, and not finished, counts as that client's error.

        Args:
            pending: What was sent.
            timeout: Seconds for all of them.
            enough: Once there are so many that are no errors, the others have ``grace_seconds``
                left at most.
            grace_seconds: See ``enough``.
        """
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        came = 0
        while pending.outstanding:
            nothing = True
            wait_seconds = 0.0
            if self._poll_interval < _LONGEST_WAIT_SECONDS:  # else the pause is there on purpose
                wait_seconds = min(_LONGEST_WAIT_SECONDS, deadline - time.monotonic())
            for reply in pending.poll(deadline, wait_seconds):
                nothing = False
                came += not reply.has_error()
                yield reply
                del reply
            if enough is not None and came >= enough:
                deadline = min(deadline, time.monotonic() + grace_seconds)
                enough = None
            if time.monotonic() > deadline:
                return
            if nothing and not (wait_seconds and self._messenger.waits):
                time.sleep(self._poll_interval)
