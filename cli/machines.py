"""The commands for separate machines: a server, its clients, and how they are."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from coinflower.accounting.errors import UserError
from coinflower.cli.output import JsonFlag, print_json, print_table
from coinflower.cli.stated import stated
from coinflower.client.page.access import is_loopback, parse_address
from coinflower.deploy.errors import DeploymentError
from coinflower.deploy.machines.logs import LogFormat, LogFormatOption, start_logging
from coinflower.deploy.signals import stop_on_signals
from coinflower.deploy.terminal import complain, say
from coinflower.protocol.policy import Policy, load_policy

if TYPE_CHECKING:  # these take torch and the web server along
    from coinflower.client.node.resident import ResidentNode
    from coinflower.client.page.server import PageServer
    from coinflower.client.participant import Participant

server_app = typer.Typer(no_args_is_help=True, help="Run a server and choose who may join it.")

_DEFAULT_FOLDER = Path("superlink")
_APPLY_SECONDS = 10.0
# Of what a client or a server writes, nothing is for others on its machine.
_FOR_THE_OWNER_ONLY = 0o077

Folder = Annotated[
    Path, typer.Option(help="The server's folder, for logs, files and allowed keys.")
]
HealthPort = Annotated[
    int | None, typer.Option(help="Port of the gRPC health service (default: off).")
]
HealthHost = Annotated[str, typer.Option(help="Interface of the health service.")]
DrainSeconds = Annotated[
    float, typer.Option(help="Seconds to finish work in hand when told to stop.")
]
PublicKey = Annotated[Path, typer.Argument(help="The node's public key, NAME.pub.")]


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
    os.umask(_FOR_THE_OWNER_ONLY)
    start_logging(log_format)
    _require_address(superlink, insecure=insecure)
    if insecure and root_certificates is not None:
        raise UserError(
            f"--insecure asks no certificate of the server, so it cannot keep to the authority in "
            f"--root-certificates {root_certificates}; leave out one of them."
        )
    if page is not None:
        parse_address(page)
    authority = None if root_certificates is None else _authority(root_certificates)
    if private_key is not None:
        from coinflower.deploy.keys.key_files import require_private

        require_private(private_key)
    _require_writable(load_policy(policy))

    import torch

    from coinflower.client.app import make_app
    from coinflower.client.node.identity import load_private_key
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
            make_app(lambda _: participant),
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
    from coinflower.deploy.keys.key_files import load_certificate

    ends = load_certificate(path).not_valid_after_utc
    if ends < datetime.now(UTC):
        raise UserError(
            f"The authority in {path} expired on {ends:%Y-%m-%d %H:%M} UTC; ask the server's "
            "operator for a new one."
        )
    return path.read_bytes()


def _require_writable(policy: Policy) -> None:
    """A ledger that cannot be written refuses every round; say so before joining."""
    for path in (policy.ledger, policy.ledger.absolute().parent):
        if path.exists() and not os.access(path, os.W_OK):
            raise UserError(
                f"{path} is read-only, so nothing could be charged to the ledger "
                f"{policy.ledger.name}; make it writable for this user."
            )


@server_app.command()
def run(
    context: typer.Context,
    settings: Annotated[Path, typer.Argument(help="Settings of the run (TOML).")],
    keys: Annotated[
        Path | None,
        typer.Option(
            help="Folder with ca.pem, server.pem and server.key (default: loopback only)."
        ),
    ] = None,
    listen: Annotated[
        str, typer.Option(help="host:port of the gateway, the only port that clients need.")
    ] = "0.0.0.0:8443",
    gateway: Annotated[
        bool, typer.Option(help="Run nginx in front of the SuperLink (needs --keys).")
    ] = True,
    host: Annotated[
        str, typer.Option(help="Interface of the SuperLink itself; only with --no-gateway.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port of the SuperLink itself.")] = 8000,
    folder: Folder = _DEFAULT_FOLDER,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue from the checkpoint, if there is one.")
    ] = False,
    stay: Annotated[
        bool,
        typer.Option("--stay", help="Keep serving after the run is complete, until told to stop."),
    ] = False,
    log_format: LogFormatOption = LogFormat.TEXT,
    health_port: HealthPort = None,
    health_host: HealthHost = "127.0.0.1",
    metrics_port: Annotated[
        int | None, typer.Option(help="Port of the Prometheus metrics (default: off).")
    ] = None,
    metrics_host: Annotated[str, typer.Option(help="Interface of the metrics.")] = "127.0.0.1",
    drain_seconds: DrainSeconds = 10.0,
) -> None:
    """Run a SuperLink, a gateway in front of it, and the parameter server."""
    from coinflower.deploy.machines.serve import ServerPlan, serve
    from coinflower.report.run import report_server_run

    os.umask(_FOR_THE_OWNER_ONLY)
    start_logging(log_format)
    guarded = gateway and keys is not None
    if not guarded:
        _refuse_gateway_options(context, keys)
    if guarded and not is_loopback(host):
        raise UserError(f"host = {host} would bypass the gateway; use it with --no-gateway only.")
    plan = ServerPlan(
        settings=settings,
        folder=folder,
        write_report=report_server_run,
        keys=keys,
        listen=listen if guarded else None,
        host=host,
        port=port,
        resume=resume,
        health_host=health_host,
        health_port=health_port,
        metrics_host=metrics_host,
        metrics_port=metrics_port,
        drain_seconds=drain_seconds,
        stay=stay,
    )
    with stop_on_signals() as stop:
        outcome = serve(plan, stop)
    logging.getLogger("coinflower.server").info(outcome)


def _refuse_gateway_options(context: typer.Context, keys: Path | None) -> None:
    """Refuse what is stated about a gateway where there is none."""
    given = stated(context).keys() & {"listen", "gateway"}
    if keys is None and given:
        raise UserError(
            "Without --keys the server speaks plain HTTP, on this machine's loopback only, and has "
            "no gateway: give --keys, or leave out --listen and --gateway."
        )
    if "listen" in given:
        raise UserError(
            "--listen is the gateway's address, and --no-gateway has none: leave out one of them; "
            "--host and --port are the SuperLink's own."
        )


@server_app.command()
def allow(key: PublicKey, folder: Folder = _DEFAULT_FOLDER) -> None:
    """Let a node join; a running server picks it up within seconds.

    A node that was revoked since the server started has to wait for the end of the round.
    """
    from coinflower.deploy.machines.node_registry import FOLDER, Registry

    say(Registry(folder / FOLDER).allow(key))


@server_app.command()
def revoke(key: PublicKey, folder: Folder = _DEFAULT_FOLDER) -> None:
    """Keep a node out from now on, even after a restart; a running server drops it."""
    from coinflower.deploy.machines.node_registry import FOLDER, Registry
    from coinflower.deploy.machines.status_file import is_served, read_status_file

    registry = Registry(folder / FOLDER)
    told = registry.revoke(key)
    deadline = time.monotonic() + _APPLY_SECONDS
    while is_served(folder):
        if set(read_status_file(folder)["nodes"]) <= set(registry.names().values()):
            break
        if time.monotonic() > deadline:
            raise DeploymentError(
                f"{told} But the running server has not applied it yet: restart it."
            )
        time.sleep(0.1)
    say(told)


def status(
    folder: Annotated[
        Path, typer.Argument(help="Folder of a server or of `coinflower run`.")
    ] = _DEFAULT_FOLDER,
    as_json: JsonFlag = False,
) -> None:
    """Show who is online, the round, the accuracy, refusals and the last error of a run."""
    from coinflower.deploy.machines.status_file import read_server_status

    found = read_server_status(folder)
    if as_json:
        print_json(found)
        return
    accuracy = found["accuracy"]
    at = "" if accuracy is None else f" (round {found['accuracy_round']})"
    rows = [
        ["server", " at ".join(filter(None, (found["server"], found["address"])))],
        ["run", f"{found['run']}, mode {found['mode']}"],
        ["round", f"{found['round']} of {found['rounds']}"],
        ["accuracy", ("–" if accuracy is None else f"{accuracy:.1%}") + at],
        ["nodes online", str(found["online"])],
        *([f"node {name}", "online" if up else "away"] for name, up in found["nodes"].items()),
        ["refusals", found["refusals"] or "none"],
        ["last error", found["last_error"] or "none"],
    ]
    print_table(f"{folder}", ["what", "is"], rows)


def health(
    port: Annotated[int, typer.Argument(help="The port given to --health-port.")],
) -> None:
    """Exit with 0 if the client or server on this machine is healthy, with 1 otherwise."""
    from coinflower.deploy.machines.health import ask_health

    answer = ask_health(port)
    if answer == "SERVING":
        say(answer)
        return
    complain(answer)
    raise typer.Exit(1)
