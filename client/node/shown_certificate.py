"""Who signed the certificate that is shown at an address.

Asked when a connection was refused because of it, to name who stands between: Python's TLS tells
why a certificate is not accepted, but not whose it is.
"""

from __future__ import annotations

import base64
import http.client
import ssl

import httpx
from cryptography import x509

_TIMEOUT_SECONDS = 6.0


def shown_issuer(address: str, proxy: httpx.Proxy | None) -> str | None:
    """Return the issuer of the certificate at ``host:port``; None if it is not shown now.

    The connection is one of its own and ends with the handshake of TLS: no request is sent.
    """
    connection = _unverified(address, proxy)
    try:
        connection.connect()
        shown = connection.sock.getpeercert(binary_form=True)
        return x509.load_der_x509_certificate(shown or b"").issuer.rfc4514_string()
    except (OSError, ValueError, http.client.HTTPException):
        return None
    finally:
        connection.close()


def _unverified(address: str, proxy: httpx.Proxy | None) -> http.client.HTTPSConnection:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    host, _, port = address.rpartition(":")
    there = (host.strip("[]"), int(port))
    if proxy is None:
        return http.client.HTTPSConnection(*there, timeout=_TIMEOUT_SECONDS, context=context)
    connection = http.client.HTTPSConnection(
        proxy.url.host, proxy.url.port or 80, timeout=_TIMEOUT_SECONDS, context=context
    )
    headers = {}
    if proxy.raw_auth is not None:
        secret = base64.b64encode(b":".join(proxy.raw_auth)).decode("ascii")
        headers["Proxy-Authorization"] = f"Basic {secret}"
    connection.set_tunnel(*there, headers=headers)
    return connection
