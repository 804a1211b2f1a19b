"""Whether a node's connection goes by way of a forward proxy, as the environment says.

``HTTPS_PROXY``, else ``ALL_PROXY``, names the proxy and ``NO_PROXY`` the exceptions; networks such
as ``10.0.0.0/8`` may be among them, which httpx would overlook. This machine never needs a proxy.
"""

from __future__ import annotations

import ipaddress
from urllib.request import getproxies

import httpx

from coinflower.accounting.errors import UserError

PROXY_VARIABLE = "HTTPS_PROXY"
_THIS_MACHINE = "localhost 127.0.0.0/8 ::1"


def environment_proxy(address: str) -> httpx.Proxy | None:
    """Return the proxy to the SuperLink at ``host:port``; None if it is reached directly.

    Raises:
        ValueError: What the environment names is no HTTP proxy. The message shows no password.
    """
    known = getproxies()
    url = known.get("https") or known.get("all")
    host, _, port = address.rpartition(":")
    host = host.strip("[]").lower()
    if not url or _is_excepted(host, port, f"{known.get('no', '')} {_THIS_MACHINE}"):
        return None
    try:
        proxy = httpx.Proxy(url if "://" in url else f"http://{url}")
    except (ValueError, httpx.InvalidURL):
        proxy = None
    if proxy is None or proxy.url.scheme not in ("http", "https") or not proxy.url.host:
        raise UserError(
            f"{PROXY_VARIABLE} must be http://HOST:PORT or http://USER:PASSWORD@HOST:PORT, with "
            "characters such as @ and : of a password written as %40 and %3A."
        )
    return proxy


def proxy_address(proxy: httpx.Proxy) -> str:
    """Return ``host:port`` of a proxy, for people: without user and password."""
    return proxy.url.netloc.decode("ascii")


def _is_excepted(host: str, port: str, exceptions: str) -> bool:
    entries = exceptions.lower().replace(",", " ").split()
    # One with the right port holds as if it were without.
    entries += [entry.removesuffix(f":{port}") for entry in entries]
    return any(_covers(entry, host) for entry in entries)


def _covers(entry: str, host: str) -> bool:
    if entry == "*":
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        name = entry.removeprefix("*").removeprefix(".")
        return bool(name) and (host == name or host.endswith(f".{name}"))
    try:
        return address in ipaddress.ip_network(entry.strip("[]"), strict=False)
    except ValueError:
        return False
