"""The calls that a node makes to a SuperLink (Flower's Fleet API), each signed by the node."""

from __future__ import annotations

import ssl
import time
from base64 import b64encode
from collections.abc import Sequence
from typing import TYPE_CHECKING

import httpx
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.common.constant import TIMESTAMP_HEADER
from flwr.common.serde import message_from_proto
from flwr.proto.fleet_pb2 import (
    ActivateNodeRequest,
    DeactivateNodeRequest,
    PullMessagesRequest,
    PullMessagesResponse,
    PushMessagesRequest,
    PushMessagesResponse,
    RegisterNodeFleetRequest,
    UnregisterNodeFleetRequest,
)
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.message_pb2 import (
    ConfirmMessageReceivedRequest,
    PullObjectRequest,
    PullObjectResponse,
    PushObjectRequest,
)
from flwr.proto.node_pb2 import Node
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER
from flwr.supercore.date import now
from flwr.supercore.primitives.asymmetric import public_key_to_bytes, sign_message
from flwr.supercore.runtime_version_compatibility import RuntimeVersionMetadata
from flwr.supernode.fleet_http_client import FleetHttpClient

from coinflower.flower_internals.connections import make_client
from coinflower.flower_internals.long_fields import Buffer
from coinflower.flower_internals.messages import Arrival, Departure, MalformedError
from coinflower.flower_internals.objects import exchange, pull_object, push_object
from coinflower.flower_internals.riders import PULL_MESSAGES, PUSH_MESSAGES, Riders

if TYPE_CHECKING:
    from flwr.supercore.protobuf.client import ProtobufCall, ProtobufRequestContext

_SIGNATURE_SECONDS = 60.0
_API = "fleet"
_TIMEOUT_SECONDS = 6.0
# A slow uplink may take this long to drain what is in the socket's buffer.
_UPLOAD_TIMEOUT_SECONDS = 120.0


class _Signature:
    """Signs requests as Flower's SuperNode does, but not every single one.

    The signature covers only the time and holds for five minutes, so one per minute is enough.
    """

    def __init__(self, key: ec.EllipticCurvePrivateKey) -> None:
        self._key = key
        self.public_key = public_key_to_bytes(key.public_key())
        self._version = dict(RuntimeVersionMetadata.from_local_component("SuperNode").as_metadata())
        self._headers: dict[str, str] = {}
        self._signed_at = float("-inf")

    def intercept(self, context: ProtobufRequestContext, call_next: ProtobufCall) -> httpx.Response:
        """Sign a request and pass it on."""
        if time.monotonic() - self._signed_at > _SIGNATURE_SECONDS:
            self._signed_at = time.monotonic()
            timestamp = now().isoformat()
            signature = sign_message(self._key, timestamp.encode("ascii"))
            self._headers = self._version | {
                FLEET_HTTP_PUBLIC_KEY_HEADER: b64encode(self.public_key).decode("ascii"),
                TIMESTAMP_HEADER: timestamp,
                FLEET_HTTP_SIGNATURE_HEADER: b64encode(signature).decode("ascii"),
            }
        context.request.headers.update(self._headers)
        return call_next(context)


class Fleet:
    """A node's calls. Those that fail raise what httpx raises, or ValueError for a wrong answer.

    Args:
        url: Of the SuperLink.
        key: The node's private key.
        verify: How to verify the SuperLink's certificate, as httpx takes it; True trusts public
            authorities.
        proxy: What requests go through, if not directly.

    Attributes:
        waits: Whether the SuperLink waits for messages, and takes what rides along; True until it
            has answered a poll.
        free_names: Whether it takes, and may give, names of long objects that are no hashes.
    """

    def __init__(
        self,
        url: str,
        key: ec.EllipticCurvePrivateKey,
        *,
        verify: ssl.SSLContext | bool,
        proxy: httpx.Proxy | None = None,
    ) -> None:
        signature = _Signature(key)
        self._public_key = signature.public_key
        self.waits = True
        self.free_names = False
        self._node = Node(node_id=0)
        self._client = make_client(
            FleetHttpClient,
            url,
            interceptors=[signature],
            verify=verify,
            timeout=_TIMEOUT_SECONDS,
            proxy=proxy,
        )

    def close(self) -> None:
        """Close the connections without a word."""
        self._client.close()

    def register(self) -> None:
        """Make the node's key known."""
        self._client.RegisterNode(RegisterNodeFleetRequest(public_key=self._public_key))

    def unregister(self) -> None:
        """Undo `register`."""
        self._client.UnregisterNode(UnregisterNodeFleetRequest(node_id=self._node.node_id))

    def activate(self, interval: float) -> int:
        """Be a node from now on, with so many seconds between heartbeats; return its id."""
        request = ActivateNodeRequest(public_key=self._public_key, heartbeat_interval=interval)
        self._node = Node(node_id=self._client.ActivateNode(request).node_id)
        return self._node.node_id

    def deactivate(self) -> None:
        """Undo `activate`."""
        self._client.DeactivateNode(DeactivateNodeRequest(node_id=self._node.node_id))

    def beat(self, interval: float) -> bool:
        """Promise the next heartbeat within so long; return whether the SuperLink knows us."""
        request = SendNodeHeartbeatRequest(node=self._node, heartbeat_interval=interval)
        return self._client.SendNodeHeartbeat(request).success

    def pull_message(self, wait_seconds: float) -> Arrival | None:
        """Return the next message for this node, if there is one.

        Args:
            wait_seconds: How long the SuperLink may wait for one, if it knows how to.

        Raises:
            MalformedError: Something has come that is no message.
        """
        response, came = exchange(
            self._client,
            f"{_API}/{PULL_MESSAGES}",
            PullMessagesRequest(node=self._node),
            PullMessagesResponse,
            Riders(wait_seconds=wait_seconds, free_names=True),
            timeout=wait_seconds + _TIMEOUT_SECONDS,
        )
        self.waits, self.free_names = came.wait_seconds is not None, came.free_names
        if not response.messages_list:
            return None
        try:
            message = message_from_proto(response.messages_list[0])
            return Arrival(message, response.message_object_trees[0], came.objects)
        except Exception as error:  # Flower's parsers raise what they like
            raise MalformedError("it sent a message that is malformed") from error

    def pull_object(self, run_id: int, object_id: str) -> tuple[PullObjectResponse, Buffer]:
        """Return an object, or that it is announced only, or unknown."""
        request = PullObjectRequest(node=self._node, run_id=run_id, object_id=object_id)
        return pull_object(self._client, _API, request)

    def confirm(self, run_id: int, message_id: str) -> None:
        """Let the SuperLink drop a message's content."""
        request = ConfirmMessageReceivedRequest(
            node=self._node, run_id=run_id, message_object_id=message_id
        )
        self._client.ConfirmMessageReceived(request)

    def push_message(
        self, departure: Departure, confirmed: Sequence[str] = ()
    ) -> PushMessagesResponse:
        """Send a message; return which of its objects are missing, and the session's id.

        The stated processing time is always 0: the true one would reveal whether there was work.

        Args:
            departure: The message, whose objects ride along.
            confirmed: Messages whose content the SuperLink can drop.
        """
        request = PushMessagesRequest(
            node=self._node,
            messages_list=[departure.head],
            message_object_trees=[departure.tree],
            clientapp_runtime_list=[0.0],
        )
        response, _ = exchange(
            self._client,
            f"{_API}/{PUSH_MESSAGES}",
            request,
            PushMessagesResponse,
            Riders(confirmed=confirmed),
            departure.pieces(),
            timeout=_UPLOAD_TIMEOUT_SECONDS,
        )
        return response

    def push_object(
        self, run_id: int, session_id: str, object_id: str, pieces: Sequence[Buffer]
    ) -> None:
        """Upload an object of an announced message."""
        request = PushObjectRequest(
            node=self._node, run_id=run_id, object_id=object_id, session_id=session_id
        )
        push_object(self._client, _API, request, pieces, timeout=_UPLOAD_TIMEOUT_SECONDS)
