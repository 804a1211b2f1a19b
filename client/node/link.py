"""One node's connection to a SuperLink, over the HTTP API that Flower's own SuperNode speaks.

Flower's ``http_request_response`` is not used: it ends or interrupts the whole process when the
SuperLink refuses it, retries for ever, and cannot be stopped. This speaks the same calls
with Flower's own client class, and turns every failure into one of four exceptions.

What a message costs is the number of HTTP requests, at 3 to 5 ms of the SuperLink's time each. So a
poll waits until there is a message and brings its short objects along, and a reply goes with all
its objects and says that the question is done with (`coinflower.flower_internals.riders`). Long
objects are kept in a cache, by their name, that all nodes of the process share
(``coinflower.client.node.polling_group``). A SuperLink that knows none of this is asked in
Flower's own way.

A record whose name is no hash is taken from a SuperLink as it comes, as is the message that holds
this name: the hash would only prove that one and the same SuperLink sent both.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, ParamSpec, TypeVar

import httpx
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.app import Message, RecordDict

from coinflower.client.node.connection_errors import clock_trouble, transport_trouble
from coinflower.flower_internals.connections import trust
from coinflower.flower_internals.errors import is_failed_activation, refusal_in
from coinflower.flower_internals.fleet import Fleet
from coinflower.flower_internals.long_fields import Buffer
from coinflower.flower_internals.messages import Arrival, Departure, MalformedError
from coinflower.flower_internals.names import has_name, name_answer
from coinflower.protocol.foreign import quoted
from coinflower.protocol.messages import VECTORS

if TYPE_CHECKING:
    from coinflower.client.node.polling_group import PollingGroup

Request = ParamSpec("Request")
Response = TypeVar("Response")

_OBJECT_DEADLINE_SECONDS = 120.0
# Shorter than what networks take for a dead connection.
_WAIT_SECONDS = 10.0
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
        root_certificates: PEM of the authority to trust; public authorities if None.
        private_key: The node's registered key; None registers a fresh one for this connection.
        heartbeat_interval: Seconds that are promised between heartbeats.
        polling_group: What the nodes of this process share.
        stop: Ends waiting early.
        proxy: What the connection goes through, if not directly.
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
        proxy: httpx.Proxy | None = None,
    ) -> None:
        self._address = address
        self._proxy = proxy
        self._registered_here = private_key is None
        self._company = polling_group
        self._stop = stop
        self._heartbeat = heartbeat_interval
        self._fleet = Fleet(
            f"{'http' if insecure else 'https'}://{address}",
            # P-256 is verified several times faster than the P-384 that Flower's tools make.
            private_key or ec.generate_private_key(ec.SECP256R1()),
            verify=False if insecure else trust(root_certificates),
            proxy=proxy,
        )

    def join(self) -> int:
        """Register (if it has no key of its own) and activate the node; return its id."""
        if self._registered_here:
            self._call(self._fleet.register)
        promised = self._company.heartbeat_seconds(self._heartbeat)
        return self._call(self._fleet.activate, promised)

    def leave(self) -> None:
        """Tell the SuperLink, if it can be reached, that this node leaves, and close."""
        try:
            self._call(self._fleet.deactivate)
            if self._registered_here:
                self._call(self._fleet.unregister)
        except (UnreachableError, ForgottenError, RejectedError):
            pass
        finally:
            self.close()

    def close(self) -> None:
        """Close the connections without a word."""
        self._fleet.close()

    def beat(self) -> None:
        """Send one heartbeat."""
        if not self._call(self._fleet.beat, self._company.heartbeat_seconds(self._heartbeat)):
            raise ForgottenError

    @property
    def waits(self) -> bool:
        """Whether the SuperLink waits for messages and knows what rides along with them."""
        return self._fleet.waits

    def poll(self) -> Arrival | None:
        """Return the next message for this node, still without its content, if there is one."""
        wait_seconds = self._company.wait_seconds(_WAIT_SECONDS)
        return self._call(self._fleet.pull_message, wait_seconds)

    def fetch(self, arrival: Arrival) -> RecordDict:
        """Return the content of a message that ``poll`` returned."""
        run_id = arrival.message.metadata.run_id
        try:
            names = arrival.content_ids()
            objects = {
                name: self._along(arrival, name) or self._object(run_id, name) for name in names
            }
            return arrival.content(objects, VECTORS)
        except MalformedError as error:
            raise LostMessageError(str(error)) from error

    def confirm(self, run_id: int, message_id: str) -> None:
        """Let the SuperLink drop a message's content."""
        with self._company.turn():
            self._call(self._fleet.confirm, run_id, message_id)

    def reply(self, reply: Message) -> None:
        """Send a reply. Doing so twice is harmless: the SuperLink keeps the first.

        A SuperLink that takes what rides along has given out the question with all that belongs to
        it, and can drop it now.
        """
        name_answer(reply, free=self._fleet.free_names)
        metadata, departure = reply.metadata, Departure(reply)
        done = [metadata.reply_to_message_id] if self.waits else []
        # One turn for all of it: the server tries to read a reply as soon as it is announced.
        with self._company.turn():
            response = self._call(self._fleet.push_message, departure, done)
            for name, pieces in departure.pieces(response.objects_to_push).items():
                self._call(
                    self._fleet.push_object, metadata.run_id, response.session_id, name, pieces
                )

    def _along(self, arrival: Arrival, name: str) -> Buffer | None:
        """Return an object that came along with a message."""
        content = arrival.objects.get(name)
        if content is not None:
            self._require_name(content, name)
        return content

    def _require_name(self, content: Buffer, name: str) -> None:
        if not has_name(content, name, free=self._fleet.free_names):
            raise LostMessageError("an object does not match its hash")

    def _object(self, run_id: int, object_id: str) -> Buffer:
        deadline = time.monotonic() + _OBJECT_DEADLINE_SECONDS
        pause = 0.02
        while time.monotonic() < deadline:
            with self._company.turn():
                # Looked up within the turn: a neighbour may just have fetched the same object.
                kept = f"{self._address}/{object_id}"  # another SuperLink may use the same name
                cached = self._company.cached(kept)
                if cached is not None:
                    return cached
                response, content = self._call(self._fleet.pull_object, run_id, object_id)
                if response.object_available:
                    self._require_name(content, object_id)
                    self._company.cache(kept, content)
                    return content
            if not response.object_found:
                break
            # A message is announced before its objects are uploaded.
            if self._stop.wait(pause):
                break
            pause = min(2 * pause, 0.5)
        raise LostMessageError("an object is not there")

    def _call(
        self,
        method: Callable[Request, Response],
        *arguments: Request.args,
        **options: Request.kwargs,
    ) -> Response:
        try:
            return method(*arguments, **options)
        except httpx.HTTPStatusError as error:
            status = error.response.status_code
            if error.response.has_redirect_location:
                raise UnreachableError("what answers there sends us elsewhere") from error
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
            known = refusal_in(error.response)
            if is_failed_activation(known):
                raise RejectedError(_NOT_ACTIVATED) from error
            # Its words, not ours, so they are quoted.
            raise RejectedError(
                f"it says {quoted(known.message)}" if known else f"HTTP status {status}"
            ) from error
        except httpx.RequestError as error:  # also a body that cannot be decoded
            trouble = transport_trouble(error, self._address, self._proxy)
            raise UnreachableError(trouble) from error
        except MalformedError as error:
            raise UnreachableError(str(error)) from error
        except ValueError as error:
            raise UnreachableError("what answers there is not a SuperLink") from error
        except RuntimeError as error:
            # What httpx raises once the connection was closed by another thread.
            raise UnreachableError("the connection is closed") from error
