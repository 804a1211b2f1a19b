"""Who may look at the page and who may press its buttons.

Only who has the token, on loopback too: a machine may have other users, and the ledger names every
coin. A page of another site may neither read nor press anything, even in a browser that has the
token: the host must be a name that nobody else can point here, the origin must be the page's own,
and a form must carry a value that only the page itself knows.
"""

from __future__ import annotations

import hmac
import ipaddress
import secrets
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from coinflower.accounting.errors import UserError


class DeniedError(Exception):
    """A request is refused.

    Attributes:
        status: The HTTP status that says so.
    """

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


def is_loopback(host: str) -> bool:
    """Return whether a host stands for this machine only."""
    address = _address(host)
    return host.lower() == "localhost" if address is None else address.is_loopback


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def parse_address(text: str) -> tuple[str, int]:
    """Return host and port of ``HOST:PORT``; port 0 stands for any that is free.

    Raises:
        ValueError: It is something else.
    """
    host, _, port = text.rpartition(":")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not bare or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise UserError(f"page = {text!r} must be HOST:PORT, as in 127.0.0.1:8600.")
    if _address(bare) is None and ":" in bare:
        raise UserError(f"page = {text!r}: an IPv6 address needs brackets, as in [::1]:8600.")
    return bare, int(port)


@dataclass(frozen=True, kw_only=True)
class Access:
    """The rules for one page.

    Attributes:
        host: Where the page is bound to.
        token: What a visitor must bring.
        form_key: What every form must carry.
    """

    host: str
    token: str = field(default_factory=lambda: secrets.token_urlsafe(32))
    form_key: str = field(default_factory=lambda: secrets.token_urlsafe(32))

    def check(self, method: str, headers: Mapping[str, str]) -> None:
        """Refuse requests that another site's page may have sent.

        Raises:
            DeniedError: With the status and the reason.
        """
        host = headers.get("host", "")
        if not self._is_ours(host):
            raise DeniedError(421, "This page is not served under that name.")
        origin = headers.get("origin")
        reads = method in ("GET", "HEAD")
        if origin is None and not reads:
            raise DeniedError(403, "A form must say which page it comes from.")
        if origin is not None and origin != f"http://{host}":
            raise DeniedError(403, "Requests from other pages are refused.")
        site, mode = headers.get("sec-fetch-site", "none"), headers.get("sec-fetch-mode", "")
        # A link to the page may be followed from anywhere; nothing else may come from elsewhere.
        if site not in ("none", "same-origin") and not (reads and mode == "navigate"):
            raise DeniedError(403, "Requests from other pages are refused.")

    def _is_ours(self, host: str) -> bool:
        """Return whether nobody else can have pointed this host name here.

        Addresses are nobody's; names are anybody's, but for this machine's own. Ports are left
        open, since a tunnel may lead here from another one.
        """
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:
            return False
        if is_loopback(self.host):
            return is_loopback(name)
        own = {self.host.lower(), socket.gethostname().lower(), "localhost"}
        return _address(name) is not None or name in own

    def admits(self, token: str | None) -> bool:
        """Return whether a visitor with that token may look."""
        return _equal(token, self.token)

    def require_form_key(self, key: str | None) -> None:
        """Refuse a form that the page did not make.

        Raises:
            DeniedError: It carries another key, or none.
        """
        if not _equal(key, self.form_key):
            raise DeniedError(403, "This form is out of date: reload the page and try again.")


def _equal(given: str | None, wanted: str) -> bool:
    return given is not None and hmac.compare_digest(given.encode(), wanted.encode())
