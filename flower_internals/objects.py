"""Messages and objects on their way to and from a SuperLink, without a copy that is not needed.

These are Flower's calls PushMessages, PullMessages, PushObject and PullObject. Flower's own client
makes a Protobuf message of each and lets Protobuf and httpx copy it piece by piece; here an object
is sent from where it lies, and is received in the memory in which it stays.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import httpx
from flwr.proto.message_pb2 import (
    PullObjectRequest,
    PullObjectResponse,
    PushObjectRequest,
    PushObjectResponse,
)
from flwr.supercore.protobuf.client import ProtobufRequestContext, _buffer_error_response
from flwr.supercore.protobuf.constants import PROTOBUF_MEDIA_TYPE

from coinflower.flower_internals.direct import READ_INTO
from coinflower.flower_internals.long_fields import Buffer, field_head, take_out
from coinflower.flower_internals.riders import Riders, encoded_head, encoded_object, take_off

if TYPE_CHECKING:
    from flwr.supercore.protobuf.client import ProtobufCall, ProtobufClient


class Encodable(Protocol):
    """A message of Protobuf's, which has no types of its own."""

    def SerializeToString(self) -> bytes:  # noqa: N802 - Protobuf's name
        """Return the message as it travels."""


Response = TypeVar("Response")

PUSHED_CONTENT = PushObjectRequest.OBJECT_CONTENT_FIELD_NUMBER
PULLED_CONTENT = PullObjectResponse.OBJECT_CONTENT_FIELD_NUMBER
PUSH_PATH = "/v1/{api}/push-object"
PULL_PATH = "/v1/{api}/pull-object"

# What one write may take at a time: httpx copies what the socket did not take at once.
_SLICE_BYTES = 1 << 20
_MOST_RESERVED_BYTES = 1 << 30


def push_object(
    client: ProtobufClient,
    api: str,
    request: PushObjectRequest,
    pieces: Sequence[Buffer],
    *,
    timeout: float | None = None,
) -> PushObjectResponse:
    """Upload an object, given in pieces.

    Args:
        client: Flower's client of the API.
        api: ``fleet`` or ``runtime``.
        request: The call without the object.
        pieces: The object.
        timeout: Longest silence, in seconds; None has that of the client.

    Raises:
        httpx.HTTPError: The SuperLink cannot be reached, or refuses.
        ValueError: What answers is not a SuperLink.
    """
    size = sum(map(len, pieces))
    head = request.SerializeToString() + field_head(PUSHED_CONTENT, size)
    body = _Body([head, *pieces])
    answer = _post(client, PUSH_PATH.format(api=api), request, body, timeout)
    return _parsed(PushObjectResponse, answer)


def pull_object(
    client: ProtobufClient,
    api: str,
    request: PullObjectRequest,
    confirmed: Sequence[str] = (),
    *,
    timeout: float | None = None,
) -> tuple[PullObjectResponse, bytearray]:
    """Download an object; see `push_object`.

    Args:
        client: Flower's client of the API.
        api: ``fleet`` or ``runtime``.
        request: The call.
        confirmed: Messages that are done with.
        timeout: Longest silence, in seconds; None has that of the client.

    Returns:
        What the SuperLink says about the object, and the object, empty if it is not there.
    """
    body = _Body([request.SerializeToString(), encoded_head(Riders(confirmed=confirmed))])
    answer = _post(client, PULL_PATH.format(api=api), request, body, timeout)
    try:
        rest, content = take_out(answer, PULLED_CONTENT)
    except ValueError:  # it has none
        rest, content = bytes(answer), bytearray()
    return _parsed(PullObjectResponse, rest), content


def exchange(
    client: ProtobufClient,
    path: str,
    request: Encodable,
    kind: type[Response],
    riders: Riders | None = None,
    pieces: Mapping[str, Sequence[Buffer]] | None = None,
    *,
    timeout: float | None = None,
) -> tuple[Response, Riders]:
    """Make a call with what rides along; see `push_object`.

    Args:
        client: Flower's client of the API.
        path: Of the call, as in ``fleet/pull-messages``.
        request: The call.
        kind: Of the answer.
        riders: What rides along, but for objects.
        pieces: The objects that do, in pieces, by name.
        timeout: Longest silence, in seconds; None has that of the client.

    Returns:
        The answer, and what rode along with it.
    """
    parts: list[Buffer] = [request.SerializeToString() + encoded_head(riders or Riders())]
    for name, lying in (pieces or {}).items():
        parts += encoded_object(name, lying)
    answer = _post(client, f"/v1/{path}", request, _Body(parts), timeout)
    try:
        rest, came = take_off(answer)
    except ValueError as error:
        raise ValueError("what answers is not a SuperLink") from error
    return _parsed(kind, rest), came


class _Body:
    """The body of a request, sent from where it lies; a request that is repeated sends it anew."""

    def __init__(self, pieces: Sequence[Buffer]) -> None:
        self._pieces = pieces
        self.size = sum(map(len, pieces))

    def __iter__(self) -> Iterator[bytes]:
        for piece in self._pieces:
            view = memoryview(piece)
            for start in range(0, len(view), _SLICE_BYTES):
                # To all that handle it this is bytes, but for its type.
                yield view[start : start + _SLICE_BYTES]  # type: ignore[misc]


def _post(
    client: ProtobufClient,
    path: str,
    call: Any,
    body: _Body,
    timeout: float | None,
) -> bytearray:
    """Return the body of the answer, as Flower's client would get it."""

    def send() -> bytearray:
        request = client._client.build_request(
            "POST",
            f"{client._base_url}{path}",
            content=body,
            headers={
                "content-type": PROTOBUF_MEDIA_TYPE,
                "content-length": str(body.size),
                "accept": PROTOBUF_MEDIA_TYPE,
                "accept-encoding": "identity",
            },
            timeout=client._client.timeout if timeout is None else timeout,
        )
        response = _answer(client, ProtobufRequestContext(path, call, request))
        try:
            response.raise_for_status()
            return _read(response)
        finally:
            response.close()

    retries = client._retry_invoker
    return send() if retries is None else retries.invoke(send)


def _answer(client: ProtobufClient, context: ProtobufRequestContext) -> httpx.Response:
    """Return the answer to a request, its body still unread unless it is an error.

    As Flower's client, which has times of its own for an answer to begin and to go on.
    """

    def send(current: ProtobufRequestContext) -> httpx.Response:
        response = client._client.send(current.request, stream=True)
        return _buffer_error_response(response) if response.is_error else response

    call_next: ProtobufCall = send
    for interceptor in reversed(client._interceptors):
        call_next = functools.partial(interceptor.intercept, call_next=call_next)
    return call_next(context)


def _read(response: httpx.Response) -> bytearray:
    """Return the body of an answer, in memory that does not grow piece by piece."""
    stated = response.headers.get("content-length", "")
    size = int(stated) if stated.isascii() and stated.isdigit() and len(stated) < 12 else 0
    received, filled = bytearray(min(size, _MOST_RESERVED_BYTES)), 0
    read_into = response.extensions.get(READ_INTO)
    if read_into and 0 < size == len(received) and "content-encoding" not in response.headers:
        read_into(memoryview(received))
        return received
    for part in response.iter_bytes():
        received[filled : filled + len(part)] = part
        filled += len(part)
    del received[filled:]
    return received


def _parsed(kind: type[Response], encoded: Buffer) -> Response:
    message: Any = kind()
    try:
        message.ParseFromString(bytes(encoded))
    except Exception as error:  # Protobuf's own
        raise ValueError("what answers is not a SuperLink") from error
    parsed: Response = message
    return parsed
