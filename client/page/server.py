"""Serves a page from a thread of its own, for as long as a block lasts."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from typing import Self

import uvicorn
from fastapi import FastAPI

from coinflower.accounting.errors import UserError
from coinflower.client.page.access import Access, is_loopback, parse_address
from coinflower.client.page.site import make_site
from coinflower.client.page.view import Subject, render

_STOP_SECONDS = 3.0


class SiteServer:
    """A site at an address; lives as long as its ``with`` block.

    Args:
        address: ``HOST:PORT``; port 0 takes any that is free.
        make: Returns the app for those who may see it, and the port.

    Raises:
        ValueError: The address cannot be used.
    """

    def __init__(self, address: str, make: Callable[[Access, int], FastAPI]) -> None:
        host, port = parse_address(address)
        self._host = host
        self._socket = _bind(host, port)
        self.port: int = self._socket.getsockname()[1]
        self.access = Access(host=host)
        config = uvicorn.Config(
            make(self.access, self.port),
            log_level="warning",
            log_config=None,
            access_log=False,  # it would write down the token
            lifespan="off",
            proxy_headers=False,
            server_header=False,
            timeout_graceful_shutdown=1,
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(
            target=self._server.run, args=([self._socket],), name="coinflower-page", daemon=True
        )

    @property
    def url(self) -> str:
        """Where to open the page, with the token that it takes."""
        return f"http://{_visible(self._host)}:{self.port}/?token={self.access.token}"

    @property
    def warning(self) -> str:
        """What its owner should know when it starts; empty if there is nothing."""
        if is_loopback(self._host):
            return ""
        return (
            "The page travels unencrypted; where others share the network, bind it to 127.0.0.1 "
            "and use a tunnel (ssh -L)."
        )

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True
        self._thread.join(_STOP_SECONDS)
        self._socket.close()


class PageServer(SiteServer):
    """The owner's page at an address.

    Args:
        address: ``HOST:PORT``; port 0 takes any that is free.
        subject: What the page is about.

    Raises:
        ValueError: The address cannot be used.
    """

    def __init__(self, address: str, subject: Subject) -> None:
        super().__init__(address, lambda access, port: make_site(subject, access, port=port))
        self._subject = subject

    def __enter__(self) -> Self:
        super().__enter__()
        # Work the figures out now, so that the first visitor does not wait for them.
        threading.Thread(target=self._prepare, name="coinflower-figures", daemon=True).start()
        return self

    def _prepare(self) -> None:
        render(self._subject, self._subject.reader.look(), self.access.form_key)


def _bind(host: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family)
    except OSError as error:
        raise UserError(
            f"The page cannot be served at {host}:{port} ({error.strerror or error}); choose "
            "another with --page, or port 0 for any that is free."
        ) from None


def _visible(host: str) -> str:
    """Return a host that a browser can open: all interfaces are reached by this machine's name."""
    if host in ("0.0.0.0", "::"):
        return socket.gethostname()
    return f"[{host}]" if ":" in host else host
