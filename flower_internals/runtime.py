"""How a ServerApp sends its messages and gets the replies (Flower's Runtime API)."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

import httpx
from flwr.app import Message
from flwr.proto.message_pb2 import (
    ConfirmMessageReceivedRequest,
    Metadata,
    PullObjectRequest,
    PushObjectRequest,
)
from flwr.proto.runtime_pb2 import (
    PullAppMessagesRequest,
    PullAppMessagesResponse,
    PushAppMessagesRequest,
    PushAppMessagesResponse,
)

from coinflower.flower_internals.connections import connect_directly, trust
from coinflower.flower_internals.long_fields import Buffer
from coinflower.flower_internals.long_records import read_object
from coinflower.flower_internals.messages import Departure, lost_reply, object_ids, set_message_id
from coinflower.flower_internals.names import name_questions
from coinflower.flower_internals.objects import exchange, pull_object, push_object
from coinflower.flower_internals.riders import PULL_MESSAGES, PUSH_MESSAGES, Riders

if TYPE_CHECKING:
    from flwr.superlink.grid.http_grid import HttpGrid

logger = logging.getLogger("coinflower.server")

_API = "runtime"
_TIMEOUT_SECONDS = 30.0
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


class Messenger:
    """Sends a ServerApp's questions and fetches the replies.

    ``HttpGrid`` serialises what several questions hold as often as it is asked for its name, copies
    it some more times on its way, and spends requests on each of its objects. What it says about
    replies it says after a second of sleep.

    Args:
        grid: The Grid that the ServerApp was given; one without a network is simply asked.
    """

    def __init__(self, grid: MessageGrid) -> None:
        from flwr.superlink.grid.http_grid import HttpGrid

        self._grid = grid
        self._http = grid if isinstance(grid, HttpGrid) else None
        if self._http is not None:
            verify = False if self._http._insecure else trust(self._http._cert)
            connect_directly(self._http._runtime_client, verify)
        self._done: list[str] = []
        self.waits = False
        self._free_names = False

    def push(self, questions: list[Message]) -> Iterable[str]:
        """Send messages and return their ids, empty for an unknown node.

        What several of them hold is sent once.

        Raises:
            RuntimeError: The SuperLink does not take what it asked for.
        """
        if self._http is None:
            return self._grid.push_messages(questions)
        name_questions(questions, free=self._free_names)
        grid, departures = self._http, [Departure(question) for question in questions]
        pieces: dict[str, Sequence[Buffer]] = {}
        for departure in departures:
            pieces.update(departure.pieces())
        response, _ = exchange(
            grid._runtime_client,
            f"{_API}/{PUSH_MESSAGES}",
            PushAppMessagesRequest(
                messages_list=[departure.head for departure in departures],
                message_object_trees=[departure.tree for departure in departures],
            ),
            PushAppMessagesResponse,
            Riders(confirmed=self._confirmed()),
            pieces,
        )
        for name in response.objects_to_push:
            request = PushObjectRequest(
                node=grid.node,
                run_id=grid.run.run_id,
                object_id=name,
                session_id=response.session_id,
            )
            if not push_object(grid._runtime_client, _API, request, pieces[name]).stored:
                raise RuntimeError(f"the SuperLink did not take the object {name}")
        return list(response.message_ids)

    def pull(
        self,
        message_ids: list[str],
        patience: Callable[[], float],
        viewed: Collection[str],
        wait_seconds: float = 0.0,
    ) -> Iterator[Message]:
        """Yield the replies that are there; one that cannot be had or read is an error of its own.

        A client of Flower's announces a reply before it uploads the content, and a prompt look
        often falls between the two. ``HttpGrid.pull_messages`` then sleeps for a second, waits for
        minutes if the client died, raises if one reply of many is malformed, and holds all of them
        at once.

        Args:
            message_ids: What was asked.
            patience: How many seconds to wait for the content of a reply, asked anew for each.
            viewed: Fields whose values, if they are long, are views.
            wait_seconds: How long to wait for the first of them.
        """
        if self._http is None:
            yield from self._grid.pull_messages(message_ids)
            return
        response, came = exchange(
            self._http._runtime_client,
            f"{_API}/{PULL_MESSAGES}",
            PullAppMessagesRequest(message_ids=message_ids),
            PullAppMessagesResponse,
            Riders(
                confirmed=self._confirmed(), wait_seconds=max(wait_seconds, 0.0), free_names=True
            ),
            timeout=wait_seconds + _TIMEOUT_SECONDS,
        )
        self.waits, self._free_names = came.wait_seconds is not None, came.free_names
        for head, tree in zip(response.messages_list, response.message_object_trees, strict=True):
            names = object_ids(tree)
            along = {name: came.objects[name] for name in names if name in came.objects}
            yield self._read(self._http, head.metadata, names, along, patience(), viewed)

    def _confirmed(self) -> list[str]:
        """Return what was done with since the last call."""
        confirmed, self._done = self._done, []
        return confirmed

    def _read(
        self,
        grid: HttpGrid,
        head: Metadata,
        names: list[str],
        objects: dict[str, Buffer],
        patience: float,
        viewed: Collection[str],
    ) -> Message:
        deadline = time.monotonic() + patience
        try:
            for name in names:
                if name not in objects:
                    objects[name] = self._pull_object(grid, name, deadline)
            self._confirm(grid, head.message_id)
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

    def _confirm(self, grid: HttpGrid, message_id: str) -> None:
        """Let the SuperLink drop a reply, along with the next call if it takes that."""
        if self.waits:
            self._done.append(message_id)
            return
        grid._runtime_client.ConfirmMessageReceived(
            ConfirmMessageReceivedRequest(
                node=grid.node, run_id=grid.run.run_id, message_object_id=message_id
            )
        )

    def _pull_object(self, grid: HttpGrid, name: str, deadline: float) -> Buffer:
        """Return an object, as soon as it is there."""
        request = PullObjectRequest(node=grid.node, run_id=grid.run.run_id, object_id=name)
        pause = _FIRST_BACKOFF_SECONDS
        while True:
            response, content = pull_object(grid._runtime_client, _API, request, self._confirmed())
            if not response.object_found:
                raise _LostError("an object is not there")
            if response.object_available:
                return content
            if time.monotonic() >= deadline:
                raise _LostError("it took too long")
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_BACKOFF_SECONDS)


class _LostError(Exception):
    """An object that was announced cannot be had."""
