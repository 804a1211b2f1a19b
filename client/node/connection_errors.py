"""What a refused connection means, in words that the client's owner can act on."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

import httpx

from coinflower.protocol.foreign import MOST_CHARACTERS, printable

# Codes of OpenSSL's certificate verification (x509_vfy.h).
_NOT_YET_VALID, _EXPIRED = 9, 10
_UNKNOWN_AUTHORITY = (18, 19, 20, 21)
_OTHER_ADDRESS = (62, 64)
# The SuperLink takes signatures from 5 s in its future to 305 s in its past.
_CLOCK_SECONDS = 4.0


def transport_trouble(error: httpx.RequestError) -> str:
    """Return why there is no connection."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return _certificate_trouble(cause)
        if isinstance(cause, ssl.SSLError) and cause.reason in (
            "WRONG_VERSION_NUMBER",
            "RECORD_LAYER_FAILURE",
        ):
            return "what answers there does not speak TLS; nothing was sent"
        cause = cause.__cause__ or cause.__context__
    return printable(str(error), MOST_CHARACTERS) or type(error).__name__


def _certificate_trouble(error: ssl.SSLCertVerificationError) -> str:
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
        why = (
            "its certificate was not signed by the authority given here; ask its operator for the "
            "right ca.pem"
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
