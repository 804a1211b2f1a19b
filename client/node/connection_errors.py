"""What a refused connection means, in words that the client's owner can act on."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

import httpx

from coinflower.client.node.proxies import PROXY_VARIABLE, proxy_address
from coinflower.client.node.shown_certificate import shown_issuer
from coinflower.protocol.foreign import MOST_CHARACTERS, printable, quoted

# Codes of OpenSSL's certificate verification (x509_vfy.h).
_NOT_YET_VALID, _EXPIRED = 9, 10
_UNKNOWN_AUTHORITY = (18, 19, 20, 21)
_OTHER_ADDRESS = (62, 64)
# The SuperLink takes signatures from 5 s in its future to 305 s in its past.
_CLOCK_SECONDS = 4.0
# What OpenSSL says of bytes that are not TLS.
_NO_TLS = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE")


def transport_trouble(
    error: httpx.RequestError, address: str, proxy: httpx.Proxy | None = None
) -> str:
    """Return why there is no connection to an address, directly or through a proxy."""
    way = "" if proxy is None else f"through the proxy {proxy_address(proxy)}: "
    if isinstance(error, httpx.ProxyError) and proxy is not None:
        return way + _refusal_of_a_proxy(str(error), address, proxy)
    for cause in _causes(error):
        if isinstance(cause, ssl.SSLCertVerificationError):
            return way + _certificate_trouble(cause, address, proxy)
        if isinstance(cause, ssl.SSLError) and cause.reason in _NO_TLS:
            return f"{way}what answers there does not speak TLS; nothing was sent"
        if isinstance(cause, ssl.SSLEOFError) and isinstance(error, httpx.ConnectError):
            return f"{way}the connection is closed before TLS begins; nothing was sent"
        if isinstance(cause, socket.gaierror):
            name = address.rpartition(":")[0] if proxy is None else proxy.url.host
            return f"no address is known for the name {name}; check its spelling and the DNS"
    if isinstance(error, httpx.TimeoutException):
        return f"{way}no answer in time"
    return way + (printable(str(error), MOST_CHARACTERS) or type(error).__name__)


def _causes(error: BaseException) -> Iterator[BaseException]:
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__ or cause.__context__


def _refusal_of_a_proxy(answer: str, address: str, proxy: httpx.Proxy) -> str:
    status = answer.partition(" ")[0]
    if status == "407" and proxy.auth is None:
        return f"it wants a password: {PROXY_VARIABLE}=http://USER:PASSWORD@{proxy_address(proxy)}"
    if status == "407":
        return f"it does not accept the user and password in {PROXY_VARIABLE}"
    if status in ("403", "405"):
        return (
            f"it does not allow connections to {address} (it says {quoted(answer)}); ask those "
            "who run the proxy to allow them"
        )
    return f"it makes no connection to {address} (it says {quoted(answer)})"


def _certificate_trouble(
    error: ssl.SSLCertVerificationError, address: str, proxy: httpx.Proxy | None
) -> str:
    here = f"this machine's clock says {datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
    code = error.verify_code
    if code == _EXPIRED:
        why = f"its certificate has expired ({here}); its operator must renew it"
    elif code == _NOT_YET_VALID:
        why = f"its certificate is not valid yet ({here}); set the clock"
    elif code in _OTHER_ADDRESS:
        why = (
            f"its certificate is for another address ({error.verify_message.rstrip('.')}); use an "
            "address that it names, or have its operator add this one"
        )
    elif code in _UNKNOWN_AUTHORITY:
        issuer = shown_issuer(address, proxy)
        signer = "" if issuer is None else f" but by {quoted(issuer)}"
        why = (
            f"its certificate was not signed by the authority given here{signer}; "
            "either something between opens connections to inspect them, then ask your network's "
            f"administrators to exempt {address} from TLS inspection, or ca.pem is not of this "
            "server, then ask its operator for the right one"
        )
    else:
        why = f"its certificate is not accepted: {error.verify_message}"
    return f"{why}; nothing was sent"


def clock_trouble(response: httpx.Response) -> str:
    """Return how far this machine's clock is from the server's; empty if it is close."""
    try:
        theirs = parsedate_to_datetime(response.headers["date"])
        ahead = (datetime.now(UTC) - theirs).total_seconds()
    except (KeyError, ValueError, TypeError):
        return ""
    if abs(ahead) < _CLOCK_SECONDS:
        return ""
    direction = "ahead of" if ahead > 0 else "behind"
    return f"this machine's clock is {abs(ahead):.0f} s {direction} the server's; set it by NTP"
