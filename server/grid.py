"""The prompt grid: Flower's Grid without its pauses.

``HttpGrid.send_and_receive`` sleeps three seconds between two checks, and returns all replies at
the end. This one wraps whatever Grid the ServerApp is given, checks often, and yields replies as
they come, so that the sum of many gradients never needs more than a few of them in memory.
"""

from __future__ import annotations

import contextlib
import logging
import math
import secrets
import time
from collections.abc import Iterable, Iterator
from typing import Any, cast

import httpx
from flwr.app import Error, Message, Metadata, RecordDict
from flwr.app.message import make_message
from flwr.common.constant import ErrorCode
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_utils import pull_objects
from flwr.supercore.run import Run

logger = logging.getLogger("coinflower.server")


class _Patience:
    """How long Flower waits for an object that was announced, unless a deadline comes first.

    Flower compares the seconds it has waited with this, for one reply after another. A plain number
    would give every reply of a batch the full time again.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self.deadline = math.inf

    def __le__(self, waited: float) -> bool:
        return self._seconds <= waited or self.deadline <= time.monotonic()


class Pending:
    """Messages that were sent, and the nodes whose reply is still missing.

    Every reply has the node that was *asked* as its ``metadata.src_node_id``. The SuperLink gives
    its own id to the errors that it makes on behalf of a node; this class corrects that.
    """

    def __init__(self, grid: PromptGrid, messages: list[Message]) -> None:
        self._grid = grid
        self._nodes: dict[str, int] = {}
        self._refused: list[Message] = []
        now = time.time()
        for message in messages:
            # Its hash is the message's name, and anybody who knows it may delete the message.
            message.metadata.group_id = secrets.token_hex()
            # Otherwise it would show how many were written before it.
            message.metadata.__dict__["_created_at"] = now
        # Flower looks at them twice, so they must not be a generator; and refuses an empty list.
        message_ids = list(grid.push_messages(messages)) if messages else []
        if len(message_ids) != len(messages):
            raise RuntimeError("the SuperLink refused the messages as too large to push at once")
        for message, message_id in zip(messages, message_ids, strict=True):
            if message_id:
                self._nodes[message_id] = message.metadata.dst_node_id
            else:
                error = Error(ErrorCode.NODE_UNAVAILABLE, "The node is not registered any more.")
                self._refused.append(Message(error, reply_to=message))

    @property
    def outstanding(self) -> frozenset[int]:
        """The nodes whose reply is still missing."""
        refused = (reply.metadata.src_node_id for reply in self._refused)
        return frozenset(self._nodes.values()) | frozenset(refused)

    def poll(self, deadline: float = math.inf) -> list[Message]:
        """Return the replies, errors included, that have come; wait only for uploads that began.

        Ask for a few messages at a time, in turn, so that never more than a few replies are held.

        Args:
            deadline: When, on the monotonic clock, an unfinished upload counts as an error.
        """
        if self._refused:
            refused, self._refused = self._refused, []
            return refused
        asked = list(self._nodes)[: self._grid.batch]
        if not asked:
            return []
        with self._grid.until(deadline):
            replies = self._pull(asked)
        for message_id in asked:
            self._nodes[message_id] = self._nodes.pop(message_id)
        return [reply for reply in replies if self._attribute(reply)]

    def _pull(self, asked: list[str]) -> list[Message]:
        """Pull replies; one that cannot be read counts as an error of its client.

        Flower returns all of a batch or raises, and then what it had read is lost. So, once a
        client has sent something malformed, every reply is pulled separately.
        """
        try:
            return list(self._grid.pull_messages(asked))
        except httpx.HTTPError:
            raise
        except Exception as error:  # whatever a client's bytes make Flower's parsers raise
            if len(asked) > 1:
                self._grid.batch = 1
                return [reply for message_id in asked for reply in self._pull([message_id])]
            logger.warning("Client %d sent something malformed.", self._nodes[asked[0]])
            return [_malformed(asked[0], type(error).__name__)]

    def _attribute(self, reply: Message) -> bool:
        node_id = self._nodes.pop(reply.metadata.reply_to_message_id, None)
        if node_id is not None:
            reply.metadata.__dict__["_src_node_id"] = node_id
        return node_id is not None


def _malformed(message_id: str, what: str) -> Message:
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
    error = Error(ErrorCode.MESSAGE_UNAVAILABLE, f"The reply cannot be read ({what}).")
    return make_message(metadata=metadata, error=error)


class PromptGrid(Grid):
    """A Grid that checks for replies often.

    Args:
        grid: The Grid that the ServerApp was given.
        poll_interval: Seconds between two looks that found nothing.
        batch: Most replies that one look takes into memory.
        object_patience: Seconds to wait for the content of a reply that was announced; the client
            may have died while it uploaded, or have a slow line.
    """

    def __init__(
        self,
        grid: Grid,
        *,
        poll_interval: float = 0.05,
        batch: int = 8,
        object_patience: float = 20.0,
    ) -> None:
        self._grid = grid
        self._poll_interval = poll_interval
        self.batch = batch
        self._patience = _Patience(object_patience)
        # A reply is announced before its content is uploaded, and a prompt check often falls
        # between the two. Flower then sleeps for a second, and waits for minutes if the client
        # died. It has no parameter for this other than these defaults.
        cast(dict[str, Any], pull_objects.__kwdefaults__).update(
            initial_backoff=0.01, backoff_cap=0.5, max_time=self._patience
        )

    def set_run(self, run: Run) -> None:
        """Set the run, as ``Grid`` does."""
        self._grid.set_run(run)

    @property
    def run(self) -> Run:
        """Run information."""
        return self._grid.run

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """Create a message, as ``Grid`` does."""
        return self._grid.create_message(content, message_type, dst_node_id, group_id, ttl)

    def get_node_ids(self) -> Iterable[int]:
        """Return the ids of nodes that are online, or were until their heartbeat just stopped."""
        return self._grid.get_node_ids()

    def get_nodes(self) -> Iterable[NodeInfo]:
        """Return the same nodes, with what is known about them."""
        return self._grid.get_nodes()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Push messages and return their ids."""
        return self._grid.push_messages(list(messages))

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Pull the replies to some messages that are there by now."""
        return self._grid.pull_messages(message_ids)

    @contextlib.contextmanager
    def until(self, deadline: float) -> Iterator[None]:
        """Wait no longer than this for the content of replies that are pulled within."""
        self._patience.deadline = deadline
        try:
            yield
        finally:
            self._patience.deadline = math.inf

    def push(self, messages: Iterable[Message]) -> Pending:
        """Send messages without waiting; ask the result for replies whenever convenient.

        The messages live as long as their ``ttl``, by default twelve hours.
        """
        return Pending(self, list(messages))

    def send_and_collect(
        self, messages: Iterable[Message], timeout: float | None = None
    ) -> Iterator[Message]:
        """Send messages and yield each reply, normal or error, as soon as it is there.

        Ends when every message has a reply or the time has passed. Messages then expire at the
        SuperLink as well (their ``ttl`` is cut to ``timeout``): a node that comes back later is not
        asked, and does not pay, for a round that is over.
        """
        messages = list(messages)
        if timeout is not None:
            for message in messages:
                message.metadata.ttl = min(message.metadata.ttl, timeout)
        pending = self.push(messages)
        del messages
        yield from self.collect(pending, timeout)

    def collect(self, pending: Pending, timeout: float | None = None) -> Iterator[Message]:
        """Yield each missing reply as soon as it is there, until all came or the time passed.

        What a client has begun to upload by then, and not finished, counts as that client's error.
        """
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        while pending.outstanding:
            replies = pending.poll(deadline)
            nothing = not replies
            while replies:
                # Taken off the list, so that the caller holds the only reference.
                yield replies.pop(0)
            if time.monotonic() > deadline:
                return
            if nothing:
                time.sleep(self._poll_interval)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Send messages and return all replies, as ``Grid`` does."""
        return list(self.send_and_collect(messages, timeout))
