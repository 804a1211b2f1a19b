"""The server's side of a SuperLink: what a ServerApp sends and fetches, with all its objects."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any

from flwr.proto.message_pb2 import (
    ObjectTree,
    PullObjectRequest,
    PullObjectResponse,
    PushObjectRequest,
    PushObjectResponse,
)
from flwr.proto.runtime_pb2 import (
    PullAppMessagesRequest,
    PullAppMessagesResponse,
    PushAppMessagesRequest,
    PushAppMessagesResponse,
)
from flwr.server.superlink.linkstate import LinkState

from coinflower.flower_internals.long_fields import Buffer
from coinflower.flower_internals.messages import object_ids
from coinflower.flower_internals.riders import MOST_RIDING_BYTES
from coinflower.flower_internals.superlink.asides import (
    Pushed,
    came_along,
    offer_free_names,
    pull_or_wait,
    send_along,
)
from coinflower.flower_internals.superlink.bells import Bells
from coinflower.flower_internals.superlink.store import taking

_MOST_RIDING_TOGETHER = 1 << 23


class Office:
    """What the server's and the nodes' sides of a SuperLink share.

    Attributes:
        bells: What wakes nodes, by id, and servers, by ``run`` and the run's id.
        hashing: Nodes that take no names of long objects but hashes.
        arriving: Held while questions and their objects are being stored, so that nobody sees a
            question without all that came along with it.
    """

    def __init__(self) -> None:
        self.bells = Bells()
        self.hashing: set[int] = set()
        self.arriving = threading.Lock()

    def ring_server(self, run_id: int) -> None:
        """Wake the server of a run: an answer has come."""
        self.bells.ring([_server_of(run_id)])


class ServersDesk:
    """Flower's handlers of a ServerApp's messages, with what rides along.

    Args:
        stock: Flower's handlers.
        office: What the nodes' side rings.
    """

    def __init__(self, stock: Any, office: Office) -> None:
        self._stock = stock
        self._office = office

    def push_messages(
        self, request: PushAppMessagesRequest, state: LinkState, task: Any
    ) -> PushAppMessagesResponse:
        """Take questions to nodes, with their objects, and wake those that wait for one."""
        _forget_confirmed(state)
        with self._office.arriving:
            response: PushAppMessagesResponse = self._stock.push_messages(request, state, task)
            came = {
                name
                for name, content in came_along().objects.items()
                if store_along(state, task.run_id, response.session_id, name, content, free=name)
            }
        missing = [name for name in response.objects_to_push if name not in came]
        response.objects_to_push[:] = missing
        self._office.bells.ring(message.metadata.dst_node_id for message in request.messages_list)
        return response

    def pull_messages(
        self, request: PullAppMessagesRequest, state: LinkState, task: Any
    ) -> PullAppMessagesResponse:
        """Hand over answers, and short ones with their objects."""
        _forget_confirmed(state)

        def pull() -> PullAppMessagesResponse:
            response: PullAppMessagesResponse = self._stock.pull_messages(request, state, task)
            # Looked at afterwards: whoever has answered by now has looked for questions before.
            offer_free_names(came_along().free_names and not self._office.hashing)
            send_short_ones_along(state, task.run_id, response.message_object_trees)
            return response

        answer: PullAppMessagesResponse = pull_or_wait(
            self._office.bells, _server_of(task.run_id), pull
        )
        return answer

    def push_object(
        self, request: PushObjectRequest, state: LinkState, task: Any
    ) -> PushObjectResponse:
        """Take an object that did not come along."""
        with taking(request.object_id):
            response: PushObjectResponse = self._stock.push_object(Pushed(request), state, task)
        return response

    def pull_object(
        self, request: PullObjectRequest, state: LinkState, task: Any
    ) -> PullObjectResponse:
        """Hand over an object of an answer."""
        _forget_confirmed(state)
        response: PullObjectResponse = self._stock.pull_object(request, state, task)
        return response


def _server_of(run_id: int) -> tuple[str, int]:
    return "run", run_id


def _forget_confirmed(state: LinkState) -> None:
    """Delete the answers that the server has done with."""
    for name in came_along().confirmed:
        state.object_store.delete(name)


def send_short_ones_along(state: LinkState, run_id: int, trees: Iterable[ObjectTree]) -> None:
    """Let the short objects of messages ride along with an answer, as long as there is room."""
    room = _MOST_RIDING_TOGETHER
    for name in dict.fromkeys(name for tree in trees for name in object_ids(tree)):
        content = state.get_object(run_id, name)
        if content and len(content) <= min(room, MOST_RIDING_BYTES):
            send_along(name, content)
            room -= len(content)


def store_along(
    state: LinkState,
    run_id: int,
    session_id: str,
    name: str,
    content: Buffer,
    *,
    free: str,
) -> bool:
    """Store an object that rode along, a record under the free name too; return whether it was."""
    with taking(free):
        # To all that handle it this is bytes, but for its type.
        return state.store_object(run_id, session_id, name, content)  # type: ignore[arg-type]
