"""How a node is told where its server is, and whom to trust there."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from coinflower.accounting.errors import UserError
from coinflower.client.page.access import is_loopback
from coinflower.deploy.keys.key_files import load_certificate

ServerAddress = Annotated[str, typer.Option("--superlink", help="host:port of the server.")]
Insecure = Annotated[
    bool, typer.Option("--insecure", help="Use plain HTTP; only for a server on this machine.")
]
RootCertificates = Annotated[
    Path | None, typer.Option(help="ca.pem of the server's authority (default: public ones).")
]


def read_authority(address: str, certificates: Path | None, *, insecure: bool) -> bytes | None:
    """Return the authority to trust at an address; None trusts public ones, or needs none.

    Raises:
        ValueError: The address, or what is said of TLS, makes no sense.
    """
    _require_address(address, insecure=insecure)
    if insecure and certificates is not None:
        raise UserError(
            f"--insecure checks no certificate, so --root-certificates {certificates} would "
            "have no effect; leave out one of them."
        )
    return None if certificates is None else _authority(certificates)


def _require_address(address: str, *, insecure: bool) -> None:
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or not 1 <= int(port) <= 65535:
        raise UserError(f"superlink = {address!r} must be host:port, as in fl.example.org:8443.")
    if insecure and not is_loopback(host.strip("[]")):
        raise UserError(
            f"--insecure sends everything unprotected, so it is for this machine only, not for "
            f"{host}; use --root-certificates and --private-key."
        )


def _authority(path: Path) -> bytes:
    ends = load_certificate(path).not_valid_after_utc
    if ends < datetime.now(UTC):
        raise UserError(
            f"The authority in {path} expired on {ends:%Y-%m-%d %H:%M} UTC; ask the server's "
            "operator for a new one."
        )
    return path.read_bytes()
