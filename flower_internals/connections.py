"""The connections of Flower's HTTP clients, made as we say and not as the environment does."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING

import httpx

if TYPE_CHECKING:
    from flwr.supercore.protobuf.client import ProtobufClient


def trust(root_certificates: bytes | None) -> ssl.SSLContext | bool:
    """Return how to verify a certificate: by this authority (PEM), or by public ones if None."""
    if root_certificates is None:
        return True
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=root_certificates.decode("ascii"))
    return context


def connect_by(
    client: ProtobufClient,
    *,
    verify: ssl.SSLContext | bool,
    timeout: float,
    proxy: httpx.Proxy | None = None,
) -> None:
    """Let a client of Flower's make its connections so, and follow no redirects.

    Its own would take proxies from the environment, even to this machine, and the authorities to
    trust, among which may be one that opens connections to inspect them.

    Args:
        client: The client, before its first request.
        verify: How to verify certificates; True trusts public authorities.
        timeout: Longest silence, in seconds.
        proxy: What requests go through, if not directly.
    """
    client._client.close()
    client._client = httpx.Client(verify=verify, timeout=timeout, proxy=proxy, trust_env=False)
