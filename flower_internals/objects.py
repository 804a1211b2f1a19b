"""Objects of messages on their way to and from a SuperLink, without a copy that is not needed.

These are Flower's calls PushObject and PullObject. Flower's own client makes a message of each and
lets Protobuf and httpx copy it piece by piece; here the object is sent from where it lies, and is
received in the memory in which it stays.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from flwr.proto.message_pb2 import (
    PullObjectRequest,
    PullObjectResponse,
    PushObjectRequest,
    PushObjectResponse,
)
from flwr.supercore.protobuf.client import ProtobufRequestContext
from flwr.supercore.protobuf.constants import PROTOBUF_MEDIA_TYPE

from coinflower.flower_internals.long_fields import Buffer, field_head, take_out

if TYPE_CHECKING:
    from flwr.supercore.protobuf.client import ProtobufClient

PUSHED_CONTENT = PushObjectRequest.OBJECT_CONTENT_FIELD_NUMBER
PULLED_CONTENT = PullObjectResponse.OBJECT_CONTENT_FIELD_NUMBER
PUSH_PATH = "/v1/{api}/push-object"
PULL_PATH = "/v1/{api}/pull-object"

# What one write may take at a time: httpx copies what the socket did not take at once.
_SLICE_BYTES = 1 << 20


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
    response = PushObjectResponse()
    _parse(response, _post(client, PUSH_PATH.format(api=api), request, body, timeout))
    return response


def pull_object(
    client: ProtobufClient, api: str, request: PullObjectRequest, *, timeout: float | None = None
) -> tuple[PullObjectResponse, bytearray]:
    """Download an object; see `push_object`.

    Returns:
        What the SuperLink says about the object, and the object, empty if it is not there.
    """
    body = _Body([request.SerializeToString()])
    answer = _post(client, PULL_PATH.format(api=api), request, body, timeout)
    response = PullObjectResponse()
    try:
        rest, content = take_out(answer, PULLED_CONTENT)
    except ValueError:  # it has none
        rest, content = bytes(answer), bytearray()
    _parse(response, rest)
    return response, content


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
    call: PushObjectRequest | PullObjectRequest,
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
        limits = dict(request.extensions["timeout"])
        response = client._send(ProtobufRequestContext(path, call, request), stream=True)
        # Flower's client lets a stream be silent for ever; this is none.
        request.extensions["timeout"].update(limits)
        received = bytearray()
        try:
            response.raise_for_status()
            for part in response.iter_bytes():
                received += part
        finally:
            response.close()
        return received

    retries = client._retry_invoker
    return send() if retries is None else retries.invoke(send)


def _parse(message: PushObjectResponse | PullObjectResponse, encoded: Buffer) -> None:
    try:
        message.ParseFromString(bytes(encoded))
    except Exception as error:  # Protobuf's own
        raise ValueError("what answers is not a SuperLink") from error
