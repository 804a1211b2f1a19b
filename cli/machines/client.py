"""The command that joins a federation as a data owner."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from coinflower.accounting.errors import UserError
from coinflower.cli.machines.connection import (
    Insecure,
    RootCertificates,
    ServerAddress,
    read_authority,
)
from coinflower.cli.machines.options import (
    FOR_THE_OWNER_ONLY,
    DrainSeconds,
    HealthHost,
    HealthPort,
)
from coinflower.cli.options.model import DeviceOption
from coinflower.client.page.access import parse_address
from coinflower.deploy.keys.key_files import require_private
from coinflower.deploy.machines.logs import LogFormat, LogFormatOption, start_logging
from coinflower.deploy.signals import stop_on_signals
from coinflower.protocol.policy import Policy, load_policy

if TYPE_CHECKING:  # these take torch and the web server along
    from coinflower.client.node.resident import ResidentNode
    from coinflower.client.page.server import PageServer
    from coinflower.client.participant import Participant


def client(
    policy: Annotated[Path, typer.Argument(help="The owner's policy (TOML).")],
    superlink: ServerAddress,
    insecure: Insecure = False,
    root_certificates: RootCertificates = None,
    private_key: Annotated[
        Path | None, typer.Option(help="This node's private key (coinflower keys client).")
    ] = None,
    log_format: LogFormatOption = LogFormat.TEXT,
    health_port: HealthPort = None,
    health_host: HealthHost = "127.0.0.1",
    drain_seconds: DrainSeconds = 20.0,
    device: DeviceOption = None,
    page: Annotated[
        str | None,
        typer.Option(help="Serve the owner's page at HOST:PORT, such as 127.0.0.1:8600."),
    ] = None,
) -> None:
    """Join a federation as a data owner and stay until Ctrl-C or SIGTERM."""
    os.umask(FOR_THE_OWNER_ONLY)
    start_logging(log_format)
    authority = read_authority(superlink, root_certificates, insecure=insecure)
    if page is not None:
        parse_address(page)
    if private_key is not None:
        require_private(private_key)
    allowed = load_policy(policy)
    _require_writable(allowed)
    if allowed.signing_key is not None:
        require_private(allowed.signing_key)

    import torch

    from coinflower.client.app import make_app
    from coinflower.client.node.private_key import load_private_key
    from coinflower.client.node.proxies import environment_proxy
    from coinflower.client.node.resident import ResidentNode
    from coinflower.client.participant import Participant
    from coinflower.deploy.machines.health import HealthServer
    from coinflower.deploy.machines.page_link import told_link

    torch.set_num_threads(1)
    key = None if private_key is None else load_private_key(private_key)
    proxy = environment_proxy(superlink)
    # Policy, data and ledger now, so that what is wrong shows before anybody asks.
    participant = Participant.open(policy.absolute(), device=device)
    with stop_on_signals() as stop, contextlib.ExitStack() as stack:
        node = ResidentNode(
            superlink,
            make_app(participant),
            stop=stop,
            insecure=insecure,
            root_certificates=authority,
            private_key=key,
            drain_seconds=drain_seconds,
            proxy=proxy,
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


def _require_writable(policy: Policy) -> None:
    """Refuse to join with a ledger that cannot be written: it would refuse every round."""
    for path in (policy.ledger, policy.ledger.absolute().parent):
        if path.exists() and not os.access(path, os.W_OK):
            raise UserError(
                f"{path} is read-only, so nothing could be charged to the ledger "
                f"{policy.ledger.name}; make it writable for this user."
            )
