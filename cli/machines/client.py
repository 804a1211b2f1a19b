"""The command that joins a federation as a data owner."""

from __future__ import annotations

import contextlib
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from coinflower.accounting.errors import UserError
from coinflower.cli.machines.options import (
    FOR_THE_OWNER_ONLY,
    DrainSeconds,
    HealthHost,
    HealthPort,
)
from coinflower.client.page.access import is_loopback, parse_address
from coinflower.deploy.keys.key_files import load_certificate, require_private
from coinflower.deploy.machines.logs import LogFormat, LogFormatOption, start_logging
from coinflower.deploy.signals import stop_on_signals
from coinflower.protocol.policy import Policy, load_policy

if TYPE_CHECKING:  # these take torch and the web server along
    from coinflower.client.node.resident import ResidentNode
    from coinflower.client.page.server import PageServer
    from coinflower.client.participant import Participant


def client(
    policy: Annotated[Path, typer.Argument(help="The owner's policy (TOML).")],
    superlink: Annotated[str, typer.Option(help="host:port of the server.")],
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Use plain HTTP; only for a server on this machine.")
    ] = False,
    root_certificates: Annotated[
        Path | None, typer.Option(help="ca.pem of the server's authority (default: the system's).")
    ] = None,
    private_key: Annotated[
        Path | None, typer.Option(help="This node's private key (coinflower keys client).")
    ] = None,
    log_format: LogFormatOption = LogFormat.TEXT,
    health_port: HealthPort = None,
    health_host: HealthHost = "127.0.0.1",
    drain_seconds: DrainSeconds = 20.0,
    page: Annotated[
        str | None,
        typer.Option(help="Serve the owner's page at HOST:PORT, such as 127.0.0.1:8600."),
    ] = None,
) -> None:
    """Join a federation as a data owner and stay until Ctrl-C or SIGTERM."""
    os.umask(FOR_THE_OWNER_ONLY)
    start_logging(log_format)
    _require_address(superlink, insecure=insecure)
    if insecure and root_certificates is not None:
        raise UserError(
            f"--insecure checks no certificate, so --root-certificates {root_certificates} would "
            "have no effect; leave out one of them."
        )
    if page is not None:
        parse_address(page)
    authority = None if root_certificates is None else _authority(root_certificates)
    if private_key is not None:
        require_private(private_key)
    _require_writable(load_policy(policy))

    import torch

    from coinflower.client.app import make_app
    from coinflower.client.node.private_key import load_private_key
    from coinflower.client.node.resident import ResidentNode
    from coinflower.client.participant import Participant
    from coinflower.deploy.machines.health import HealthServer
    from coinflower.deploy.machines.page_link import told_link

    torch.set_num_threads(1)
    key = None if private_key is None else load_private_key(private_key)
    # Policy, data and ledger now, so that what is wrong shows before anybody asks.
    participant = Participant.open(policy.absolute())
    with stop_on_signals() as stop, contextlib.ExitStack() as stack:
        node = ResidentNode(
            superlink,
            make_app(participant),
            stop=stop,
            insecure=insecure,
            root_certificates=authority,
            private_key=key,
            drain_seconds=drain_seconds,
        )
        if page is not None:
            server = stack.enter_context(_owners_page(page, participant, superlink, node))
            stack.enter_context(told_link(server, participant.policy.ledger))
        health = HealthServer(health_port, lambda: node.joined, host=health_host)
        stack.enter_context(health)
        node.run()


def _owners_page(
    address: str, participant: Participant, superlink: str, node: ResidentNode
) -> PageServer:
    from coinflower.client.page.ledger_snapshot import Reader
    from coinflower.client.page.server import PageServer
    from coinflower.client.page.view import Subject

    policy = participant.policy
    subject = Subject(
        reader=Reader(path=policy.ledger),
        delta=policy.budget.delta,
        policy=policy,
        participant=participant,
        server=superlink,
        joined=lambda: node.joined,
    )
    return PageServer(address, subject)


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


def _require_writable(policy: Policy) -> None:
    """Refuse to join with a ledger that cannot be written: it would refuse every round."""
    for path in (policy.ledger, policy.ledger.absolute().parent):
        if path.exists() and not os.access(path, os.W_OK):
            raise UserError(
                f"{path} is read-only, so nothing could be charged to the ledger "
                f"{policy.ledger.name}; make it writable for this user."
            )
