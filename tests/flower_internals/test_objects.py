"""Objects on their way to and from a SuperLink, against one that Protobuf speaks for."""

from __future__ import annotations

from collections.abc import Callable

import httpx
import pytest
from flwr.proto.message_pb2 import (
    PullObjectRequest,
    PullObjectResponse,
    PushObjectRequest,
    PushObjectResponse,
)
from flwr.supernode.fleet_http_client import FleetHttpClient

from coinflower.flower_internals.objects import pull_object, push_object

OBJECT = bytes(range(256)) * 20_000


def client_of(serve: Callable[[httpx.Request], httpx.Response]) -> FleetHttpClient:
    client = FleetHttpClient("http://127.0.0.1:1")
    client._client = httpx.Client(transport=httpx.MockTransport(serve))
    return client


def test_an_object_in_pieces_arrives_whole() -> None:
    arrived: list[PushObjectRequest] = []

    def serve(request: httpx.Request) -> httpx.Response:
        assert request.url.path == "/v1/fleet/push-object"
        assert int(request.headers["content-length"]) == len(request.content)
        assert "transfer-encoding" not in request.headers
        arrived.append(PushObjectRequest.FromString(request.content))
        return httpx.Response(200, content=PushObjectResponse(stored=True).SerializeToString())

    request = PushObjectRequest(run_id=3, object_id="name", session_id="s")
    pieces = [OBJECT[:10], memoryview(OBJECT)[10:]]
    assert push_object(client_of(serve), "fleet", request, pieces).stored
    request.object_content = OBJECT
    assert arrived == [request]


@pytest.mark.parametrize("content", [OBJECT, b""])
def test_an_object_is_fetched(content: bytes) -> None:
    said = PullObjectResponse(object_found=True, object_available=bool(content))

    def serve(request: httpx.Request) -> httpx.Response:
        assert PullObjectRequest.FromString(request.content).object_id == "name"
        whole = PullObjectResponse(object_content=content)
        whole.MergeFrom(said)
        return httpx.Response(200, content=whole.SerializeToString())

    request = PullObjectRequest(object_id="name")
    assert pull_object(client_of(serve), "fleet", request) == (said, content)


def test_a_refusal_is_raised_with_what_it_says() -> None:
    client = client_of(lambda _: httpx.Response(403, stream=httpx.ByteStream(b"not yours")))
    with pytest.raises(httpx.HTTPStatusError) as refused:
        pull_object(client, "fleet", PullObjectRequest())
    assert refused.value.response.text == "not yours"


def test_what_is_no_answer_of_a_superlink_is_an_error() -> None:
    client = client_of(lambda _: httpx.Response(200, content=b"<html>"))
    with pytest.raises(ValueError, match="SuperLink"):
        pull_object(client, "fleet", PullObjectRequest())
