"""The commands that run a server, and choose who may join it; `experiments` has what it runs."""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path
from typing import Annotated

import typer

from coinflower.accounting.errors import UserError
from coinflower.cli.machines import experiments
from coinflower.cli.machines.options import (
    DEFAULT_FOLDER,
    FOR_THE_OWNER_ONLY,
    DrainSeconds,
    Folder,
    HealthHost,
    HealthPort,
)
from coinflower.cli.stated import stated
from coinflower.client.page.access import is_loopback
from coinflower.deploy.errors import DeploymentError
from coinflower.deploy.machines.logs import LogFormat, LogFormatOption, start_logging
from coinflower.deploy.signals import stop_on_signals
from coinflower.deploy.terminal import say

app = typer.Typer(no_args_is_help=True, add_completion=False)
app.command()(experiments.submit)
app.command("list")(experiments.list_)
app.command()(experiments.stop)
app.command()(experiments.resume)

_APPLY_SECONDS = 10.0

PublicKey = Annotated[Path, typer.Argument(help="The node's public key, NAME.pub.")]


@app.command()
def run(
    context: typer.Context,
    settings: Annotated[
        Path | None,
        typer.Argument(
            help="Settings of an experiment (TOML); without, serve what is submitted.",
            show_default=False,
        ),
    ] = None,
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
    folder: Folder = DEFAULT_FOLDER,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue from the checkpoint, if there is one.")
    ] = False,
    stay: Annotated[
        bool,
        typer.Option("--stay", help="Keep serving when nothing is left to run, until stopped."),
    ] = False,
    side_by_side: Annotated[
        int, typer.Option(min=1, help="How many experiments may run at a time.")
    ] = 1,
    log_format: LogFormatOption = LogFormat.TEXT,
    health_port: HealthPort = None,
    health_host: HealthHost = "127.0.0.1",
    metrics_port: Annotated[
        int | None, typer.Option(help="Port of the Prometheus metrics (default: off).")
    ] = None,
    metrics_host: Annotated[str, typer.Option(help="Interface of the metrics.")] = "127.0.0.1",
    page: Annotated[
        str | None,
        typer.Option(help="Serve the operator's page at HOST:PORT, such as 127.0.0.1:8610."),
    ] = None,
    drain_seconds: DrainSeconds = 10.0,
) -> None:
    """Run a SuperLink, a gateway in front of it, and experiments one after the other or at once."""
    from coinflower.deploy.machines.serve import ServerPlan, serve
    from coinflower.report.run import report_server_run

    os.umask(FOR_THE_OWNER_ONLY)
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
        side_by_side=side_by_side,
        page=page,
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


@app.command()
def allow(key: PublicKey, folder: Folder = DEFAULT_FOLDER) -> None:
    """Let a node join; a running server picks it up within seconds.

    A node that was revoked since the server started has to wait for the end of the round.
    """
    from coinflower.deploy.machines.node_registry import FOLDER, Registry

    say(Registry(folder / FOLDER).allow(key))


@app.command()
def revoke(key: PublicKey, folder: Folder = DEFAULT_FOLDER) -> None:
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
