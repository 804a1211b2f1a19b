"""How a ServerApp sends its messages and gets the replies (Flower's Runtime API)."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import TYPE_CHECKING, Protocol

import httpx
from flwr.app import Message
from flwr.proto.message_pb2 import (
    ConfirmMessageReceivedRequest,
    Metadata,
    ObjectTree,
    PullObjectRequest,
    PushObjectRequest,
)
from flwr.proto.runtime_pb2 import PullAppMessagesRequest, PushAppMessagesRequest

from coinflower.flower_internals.long_fields import Buffer
from coinflower.flower_internals.long_records import read_object
from coinflower.flower_internals.messages import Departure, lost_reply, object_ids, set_message_id
from coinflower.flower_internals.objects import pull_object, push_object

if TYPE_CHECKING:
    from flwr.superlink.grid.http_grid import HttpGrid

logger = logging.getLogger("coinflower.server")

_API = "runtime"
_FIRST_BACKOFF_SECONDS = 0.01
_LONGEST_BACKOFF_SECONDS = 0.5


class MessageGrid(Protocol):
    """What we need of Flower's ``Grid``."""

    def get_node_ids(self) -> Iterable[int]:
        """Return the ids of nodes that are online, or were until their heartbeat just stopped."""

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Push messages and return their ids, empty for an unknown node."""

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Pull the replies to some messages that are there by now."""


def push_questions(grid: MessageGrid, questions: list[Message]) -> Iterable[str]:
    """Send messages and return their ids, empty for an unknown node.

    What several of them hold is sent once. ``HttpGrid.push_messages`` serialises it as often as it
    is asked for its name, and copies it some more times on its way.

    Args:
        grid: The Grid that the ServerApp was given; one without a network is simply told.
        questions: The messages.

    Raises:
        RuntimeError: The SuperLink does not take what it asked for.
    """
    from flwr.superlink.grid.http_grid import HttpGrid

    if not isinstance(grid, HttpGrid):
        return grid.push_messages(questions)
    client, run_id = grid._runtime_client, grid.run.run_id
    departures = [Departure(question) for question in questions]
    response = client.PushMessages(
        PushAppMessagesRequest(
            messages_list=[departure.head for departure in departures],
            message_object_trees=[departure.tree for departure in departures],
        )
    )
    wanted = set(response.objects_to_push)
    for departure in departures:
        for name, pieces in departure.contents(wanted):
            wanted.remove(name)
            request = PushObjectRequest(
                node=grid.node, run_id=run_id, object_id=name, session_id=response.session_id
            )
            if not push_object(client, _API, request, pieces).stored:
                raise RuntimeError(f"the SuperLink did not take the object {name}")
    return list(response.message_ids)


def pull_replies(
    grid: MessageGrid,
    message_ids: list[str],
    patience: Callable[[], float],
    viewed: Collection[str],
) -> Iterator[Message]:
    """Yield the replies that are there; one that cannot be had or read is an error of its own.

    A reply is announced before its content is uploaded, and a prompt look often falls between the
    two. ``HttpGrid.pull_messages`` then sleeps for a second, waits for minutes if the client died,
    raises if one reply of many is malformed, and holds all of them at once.

    Args:
        grid: The Grid that the ServerApp was given; one without a network is simply asked.
        message_ids: What was asked.
        patience: How many seconds to wait for the content of a reply, asked anew for each.
        viewed: Fields whose values, if they are long, are views.
    """
    from flwr.superlink.grid.http_grid import HttpGrid

    if not isinstance(grid, HttpGrid):
        yield from grid.pull_messages(message_ids)
        return
    request = PullAppMessagesRequest(message_ids=message_ids)
    response = grid._runtime_client.PullMessages(request)
    for head, tree in zip(response.messages_list, response.message_object_trees, strict=True):
        yield _pull(grid, head.metadata, tree, patience(), viewed)


class _LostError(Exception):
    """An object that was announced cannot be had."""


def _pull(
    grid: HttpGrid, head: Metadata, tree: ObjectTree, patience: float, viewed: Collection[str]
) -> Message:
    client, run_id = grid._runtime_client, grid.run.run_id
    deadline = time.monotonic() + patience
    try:
        objects = {name: _pull_object(grid, name, deadline) for name in object_ids(tree)}
        confirmation = ConfirmMessageReceivedRequest(
            node=grid.node, run_id=run_id, message_object_id=head.message_id
        )
        client.ConfirmMessageReceived(confirmation)
        reply = read_object(head.message_id, objects, viewed)
        if not isinstance(reply, Message):
            raise TypeError(f"a {type(reply).__name__} is no message")
    except httpx.HTTPError:
        raise
    except _LostError as error:
        return lost_reply(head.reply_to_message_id, f"The reply was not uploaded: {error}")
    except Exception as error:  # whatever a client's bytes make Flower's parsers raise
        what = type(error).__name__
        logger.warning("Client %d sent something malformed (%s).", head.src_node_id, what)
        return lost_reply(head.reply_to_message_id, f"The reply cannot be read ({what}).")
    set_message_id(reply, head.message_id)
    return reply


def _pull_object(grid: HttpGrid, name: str, deadline: float) -> Buffer:
    """Return an object, as soon as it is there."""
    request = PullObjectRequest(node=grid.node, run_id=grid.run.run_id, object_id=name)
    pause = _FIRST_BACKOFF_SECONDS
    while True:
        response, content = pull_object(grid._runtime_client, _API, request)
        if not response.object_found:
            raise _LostError("an object is not there")
        if response.object_available:
            return content
        if time.monotonic() >= deadline:
            raise _LostError("it took too long")
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_BACKOFF_SECONDS)
