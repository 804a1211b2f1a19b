"""How a ServerApp gets the replies to its messages (Flower's Runtime API)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Protocol

import httpx
from flwr.app import Message
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, Metadata, ObjectTree
from flwr.proto.runtime_pb2 import PullAppMessagesRequest
from flwr.supercore.inflatable.inflatable_protobuf_utils import make_pull_object_fn_protobuf
from flwr.supercore.inflatable.inflatable_utils import (
    ObjectPullError,
    inflate_object_from_contents,
    pull_objects,
)

from coinflower.flower_internals.messages import lost_reply, object_ids, set_message_id

if TYPE_CHECKING:
    from flwr.superlink.grid.http_grid import HttpGrid

logger = logging.getLogger("coinflower.server")

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


def pull_replies(
    grid: MessageGrid, message_ids: list[str], patience: Callable[[], float]
) -> list[Message]:
    """Return the replies that are there; one that cannot be had or read is an error of its own.

    A reply is announced before its content is uploaded, and a prompt look often falls between the
    two. ``HttpGrid.pull_messages`` then sleeps for a second, waits for minutes if the client died,
    and raises if one reply of many is malformed.

    Args:
        grid: The Grid that the ServerApp was given; one without a network is simply asked.
        message_ids: What was asked.
        patience: How many seconds to wait for the content of a reply, asked anew for each.
    """
    from flwr.superlink.grid.http_grid import HttpGrid

    if not isinstance(grid, HttpGrid):
        return list(grid.pull_messages(message_ids))
    request = PullAppMessagesRequest(message_ids=message_ids)
    response = grid._runtime_client.PullMessages(request)
    return [
        _pull(grid, head.metadata, tree, patience())
        for head, tree in zip(response.messages_list, response.message_object_trees, strict=True)
    ]


def _pull(grid: HttpGrid, head: Metadata, tree: ObjectTree, patience: float) -> Message:
    client, run_id = grid._runtime_client, grid.run.run_id
    try:
        objects = pull_objects(
            object_ids(tree),
            make_pull_object_fn_protobuf(client.PullObject, grid.node, run_id),
            max_time=patience,
            initial_backoff=_FIRST_BACKOFF_SECONDS,
            backoff_cap=_LONGEST_BACKOFF_SECONDS,
        )
        confirmation = ConfirmMessageReceivedRequest(
            node=grid.node, run_id=run_id, message_object_id=head.message_id
        )
        client.ConfirmMessageReceived(confirmation)
        reply = inflate_object_from_contents(head.message_id, objects)
        if not isinstance(reply, Message):
            raise TypeError(f"a {type(reply).__name__} is no message")
    except httpx.HTTPError:
        raise
    except ObjectPullError as error:
        return lost_reply(head.reply_to_message_id, f"The reply was not uploaded: {error}")
    except Exception as error:  # whatever a client's bytes make Flower's parsers raise
        what = type(error).__name__
        logger.warning("Client %d sent something malformed (%s).", head.src_node_id, what)
        return lost_reply(head.reply_to_message_id, f"The reply cannot be read ({what}).")
    set_message_id(reply, head.message_id)
    return reply
