"""One node's connection to a SuperLink, over the HTTP API that Flower's own SuperNode speaks.

Flower's ``http_request_response`` is not used: it ends or interrupts the whole process when the
SuperLink refuses it, retries for ever, and cannot be stopped. This speaks the same calls
with Flower's own client class, and turns every failure into one of four exceptions.

What a message costs is the number of HTTP requests, at 3 to 5 ms of the SuperLink's time each. So
nothing is asked for twice: a message's head arrives with the poll, and the objects below it are
kept in a cache, by their hash, that all nodes of the process share
(``coinflower.client.node.polling_group``).
"""

from __future__ import annotations

import ssl
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar, cast

import httpx
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.app import Message, RecordDict
from flwr.app.message import remove_content_from_message
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.fleet_pb2 import (
    ActivateNodeRequest,
    DeactivateNodeRequest,
    PullMessagesRequest,
    PushMessagesRequest,
    RegisterNodeFleetRequest,
    UnregisterNodeFleetRequest,
)
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.message_pb2 import (
    ConfirmMessageReceivedRequest,
    ObjectTree,
    PullObjectRequest,
    PushObjectRequest,
)
from flwr.proto.node_pb2 import Node
from flwr.supercore.error import ApiErrorCode, FlowerError
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_id,
    get_object_tree,
    iterate_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supernode.fleet_http_client import FleetHttpClient

from coinflower.client.node.connection_errors import clock_trouble, transport_trouble
from coinflower.client.node.identity import Identity
from coinflower.protocol.foreign import quoted

if TYPE_CHECKING:
    from coinflower.client.node.polling_group import PollingGroup

Request = TypeVar("Request")
Response = TypeVar("Response")

_TIMEOUT_SECONDS = 6.0
# A slow uplink may take this long to drain one 5 MiB chunk out of the socket's buffer.
_BULK_TIMEOUT_SECONDS = 120.0
_BULK_BYTES = 1 << 18
_OBJECT_DEADLINE_SECONDS = 120.0
# The SuperLink does not say which.
_NOT_ACTIVATED = (
    "its key is not allowed there, or another client is using the same key; a client that crashed "
    "counts as connected for 20 s"
)


class UnreachableError(Exception):
    """Nothing, or not a SuperLink, answers at the address; worth trying again."""


class ForgottenError(Exception):
    """The SuperLink does not know this node: it was restarted, or the node was removed."""


class RejectedError(Exception):
    """The SuperLink answered, and said no."""


class LostMessageError(Exception):
    """The content of a message is not available: its run is over, or it was never uploaded."""


class Link:
    """A connection that ``join`` opens and ``leave`` closes; used once.

    Args:
        address: ``host:port`` of the SuperLink.
        insecure: Plain HTTP instead of TLS.
        root_certificates: PEM of the authority to trust; the system's own if None.
        private_key: The node's registered key; None registers a fresh one for this connection.
        heartbeat_interval: Seconds that are promised between heartbeats.
        polling_group: What the nodes of this process share.
        stop: Ends waiting early.
    """

    def __init__(
        self,
        address: str,
        *,
        insecure: bool,
        root_certificates: bytes | None,
        private_key: ec.EllipticCurvePrivateKey | None,
        heartbeat_interval: float,
        polling_group: PollingGroup,
        stop: threading.Event,
    ) -> None:
        self._registered_here = private_key is None
        # P-256 is verified several times faster than the P-384 that Flower's tools make.
        self._identity = Identity(private_key or ec.generate_private_key(ec.SECP256R1()))
        self._heartbeat_interval = heartbeat_interval
        self._company = polling_group
        self._stop = stop
        self._node = Node(node_id=0)
        verify: ssl.SSLContext | bool = not insecure
        if not insecure and root_certificates is not None:
            verify = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            verify.load_verify_locations(cadata=root_certificates.decode("ascii"))
        url = f"{'http' if insecure else 'https'}://{address}"
        self._client, self._bulk = (
            FleetHttpClient(url, interceptors=[self._identity], verify=verify, timeout=timeout)
            for timeout in (_TIMEOUT_SECONDS, _BULK_TIMEOUT_SECONDS)
        )

    def join(self) -> int:
        """Register (if it has no key of its own) and activate the node; return its id."""
        key = self._identity.public_key
        if self._registered_here:
            self._call(self._client.RegisterNode, RegisterNodeFleetRequest(public_key=key))
        request = ActivateNodeRequest(public_key=key, heartbeat_interval=self._heartbeat_interval)
        self._node = Node(node_id=self._call(self._client.ActivateNode, request).node_id)
        return self._node.node_id

    def leave(self) -> None:
        """Tell the SuperLink, if it can be reached, that this node leaves, and close."""
        node_id = self._node.node_id
        try:
            self._call(self._client.DeactivateNode, DeactivateNodeRequest(node_id=node_id))
            if self._registered_here:
                request = UnregisterNodeFleetRequest(node_id=node_id)
                self._call(self._client.UnregisterNode, request)
        except (UnreachableError, ForgottenError, RejectedError):
            pass
        finally:
            self.close()

    def close(self) -> None:
        """Close the connections without a word."""
        self._client.close()
        self._bulk.close()

    def beat(self) -> None:
        """Send one heartbeat."""
        request = SendNodeHeartbeatRequest(
            node=self._node, heartbeat_interval=self._heartbeat_interval
        )
        if not self._call(self._client.SendNodeHeartbeat, request).success:
            raise ForgottenError

    def poll(self) -> tuple[Message, ObjectTree] | None:
        """Return the next message for this node, still without its content, if there is one."""
        with self._company.turn():
            response = self._call(self._client.PullMessages, PullMessagesRequest(node=self._node))
        if not response.messages_list:
            return None
        try:
            message = message_from_proto(response.messages_list[0])
            return message, response.message_object_trees[0]
        except Exception as error:  # Flower's parsers raise what they like
            raise UnreachableError("it sent a message that is malformed") from error

    def fetch(self, message: Message, tree: ObjectTree) -> RecordDict:
        """Return the content of a message that ``poll`` returned."""
        if message.has_error() or len(tree.children) != 1:
            raise LostMessageError("a message must have exactly one content")
        root = tree.children[0]
        run_id = message.metadata.run_id
        contents: dict[str, bytes] = {}
        for branch in iterate_object_tree(root):
            contents[branch.object_id] = self._object(run_id, branch.object_id)
        try:
            record = inflate_object_from_contents(root.object_id, contents)
        except Exception as error:
            raise LostMessageError("the content of a message is malformed") from error
        if not isinstance(record, RecordDict):
            raise LostMessageError("the content of a message must be a RecordDict")
        return record

    def confirm(self, run_id: int, message_id: str) -> None:
        """Let the SuperLink drop a message's content."""
        request = ConfirmMessageReceivedRequest(
            node=self._node, run_id=run_id, message_object_id=message_id
        )
        with self._company.turn():
            self._call(self._client.ConfirmMessageReceived, request)

    def reply(self, reply: Message) -> None:
        """Send a reply. Doing so twice is harmless: the SuperLink keeps the first.

        The stated processing time is always 0: the true one would reveal whether there was work.
        """
        run_id = reply.metadata.run_id
        with no_object_id_recompute():
            reply.metadata.__dict__["_message_id"] = reply.object_id
            request = PushMessagesRequest(
                node=self._node,
                messages_list=[message_to_proto(remove_content_from_message(reply))],
                message_object_trees=[get_object_tree(reply)],
                clientapp_runtime_list=[0.0],
            )
            objects = get_all_nested_objects(reply)
        # One turn for all of it: the server tries to read a reply as soon as it is announced.
        with self._company.turn():
            response = self._call(self._client.PushMessages, request)
            missing = set(response.objects_to_push)
            for object_id in [name for name in objects if name in missing]:
                content = objects.pop(object_id).deflate()
                client = self._bulk if len(content) > _BULK_BYTES else self._client
                push = PushObjectRequest(
                    node=self._node,
                    run_id=run_id,
                    object_id=object_id,
                    object_content=content,
                    session_id=response.session_id,
                )
                self._call(client.PushObject, push)

    def _object(self, run_id: int, object_id: str) -> bytes:
        request = PullObjectRequest(node=self._node, run_id=run_id, object_id=object_id)
        deadline = time.monotonic() + _OBJECT_DEADLINE_SECONDS
        pause = 0.02
        while time.monotonic() < deadline:
            with self._company.turn():
                # Looked up within the turn: a neighbour may just have fetched the same object.
                content = self._company.cached(object_id)
                if content is not None:
                    return content
                response = self._call(self._client.PullObject, request)
            if not response.object_found:
                break
            if response.object_available:
                content = response.object_content
                if get_object_id(content) != object_id:
                    raise LostMessageError("an object does not match its hash")
                self._company.cache(object_id, content)
                return content
            # A message is announced before its objects are uploaded.
            if self._stop.wait(pause):
                break
            pause = min(2 * pause, 0.5)
        raise LostMessageError("an object is not there")

    def _call(self, method: Callable[[Request], Response], request: Request) -> Response:
        try:
            return method(request)
        except httpx.HTTPStatusError as error:
            status = error.response.status_code
            if status in (502, 503, 504):
                raise UnreachableError(f"its gateway says {status}") from error
            if status == 401:
                raise ForgottenError(clock_trouble(error.response)) from error
            if status == 413:
                raise RejectedError(
                    "its gateway takes no message as large as this model; its operator must "
                    "restart it for the current settings"
                ) from error
            if status == 403:
                raise LostMessageError("its run is over") from error
            known = FlowerError.from_json(error.response.text)
            if known and known.code == ApiErrorCode.FLEET_NODE_ACTIVATION_FAILED:
                raise RejectedError(_NOT_ACTIVATED) from error
            # Its words, not ours, so they are quoted.
            raise RejectedError(
                f"it says {quoted(known.message)}" if known else f"HTTP status {status}"
            ) from error
        except httpx.RequestError as error:  # also a body that cannot be decoded
            raise UnreachableError(transport_trouble(error)) from error
        except ValueError as error:
            raise UnreachableError("what answers there is not a SuperLink") from error
        except RuntimeError as error:
            # What httpx raises once the connection was closed by another thread.
            raise UnreachableError("the connection is closed") from cast(Exception, error)
