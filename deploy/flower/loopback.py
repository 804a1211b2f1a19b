"""Talk between programs on this machine: without proxies, whatever the environment says of them."""

from __future__ import annotations

import socket
import ssl
import urllib.error
import urllib.request
from collections.abc import Mapping

LOOPBACK = "127.0.0.1"
_ANSWER_SECONDS = 2.0


def spare_loopback(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment whose proxies, if there are any, are not used on this machine."""
    spared = dict(environment)
    named = spared.get("no_proxy") or spared.get("NO_PROXY", "")
    # Flower's programs fail at networks of IPv6, which httpx cannot read.
    read = [entry for entry in named.split(",") if not (":" in entry and "/" in entry)]
    # Programs differ in which of the two they read.
    for variable in ("no_proxy", "NO_PROXY"):
        spared[variable] = ",".join(filter(None, [*read, "localhost", LOOPBACK, "::1"]))
    return spared


def is_healthy(url: str, context: ssl.SSLContext | None) -> bool:
    """Return whether a program of this machine answers at a URL."""
    handlers: list[urllib.request.BaseHandler] = [urllib.request.ProxyHandler({})]
    if context is not None:
        handlers.append(urllib.request.HTTPSHandler(context=context))
    try:
        urllib.request.build_opener(*handlers).open(url, timeout=_ANSWER_SECONDS).close()
    except (urllib.error.URLError, OSError):
        return False
    return True


def free_port(host: str) -> int:
    """Return a TCP port that nobody listens on, and that nobody else is given for a minute.

    A connection that this end closes first keeps the port in TIME_WAIT for that long. The system
    then hands it to nobody who asks for any port, but whoever asks for this one may listen on it.
    """
    with socket.create_server((host, 0)) as listening:
        address = listening.getsockname()
        with socket.create_connection(address), listening.accept()[0]:
            return int(address[1])


def is_free(host: str, port: int) -> bool:
    """Return whether a program may listen there."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        # As the SuperLink does: a port whose last connections are still fading away is free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
        return True
