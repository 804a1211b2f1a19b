"""The connections of Flower's HTTP clients, made as we say and not as the environment does."""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeVar

import httpx

from coinflower.flower_internals.direct import DirectTransport

if TYPE_CHECKING:
    from flwr.supercore.protobuf.client import ProtobufClient, ProtobufClientInterceptor

Client = TypeVar("Client", bound="ProtobufClient")


def trust(root_certificates: bytes | None) -> ssl.SSLContext | bool:
    """Return how to verify a certificate: by this authority (PEM), or by public ones if None."""
    if root_certificates is None:
        return True
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=root_certificates.decode("ascii"))
    return context


def make_client(
    kind: type[Client],
    url: str,
    *,
    interceptors: Sequence[ProtobufClientInterceptor] = (),
    verify: ssl.SSLContext | bool,
    timeout: float,
    proxy: httpx.Proxy | None = None,
) -> Client:
    """Return a client of Flower's that makes its connections so, and follows no redirects.

    Made by its own constructor it would take from the environment proxies, even to this machine,
    and the authorities to trust, among which may be one that opens connections to inspect them; and
    it would fail if ``NO_PROXY`` names a network of IPv6.

    Args:
        kind: The class of the client.
        url: Of the SuperLink.
        interceptors: What sees every request.
        verify: How to verify certificates; True trusts public authorities.
        timeout: Longest silence, in seconds.
        proxy: What requests go through, if not directly.
    """
    client = kind.__new__(kind)
    client._base_url = url.rstrip("/")
    client._interceptors = tuple(interceptors)
    client._retry_invoker = None
    direct = DirectTransport(verify) if proxy is None else None
    client._client = httpx.Client(
        transport=direct, verify=verify, timeout=timeout, proxy=proxy, trust_env=False
    )
    return client


def connect_directly(client: ProtobufClient, verify: ssl.SSLContext | bool) -> None:
    """Let a client that Flower made connect as those of `make_client` do, without a proxy."""
    before = client._client
    client._client = httpx.Client(
        transport=DirectTransport(verify), timeout=before.timeout, trust_env=False
    )
    before.close()
