"""A server on a machine of its own: SuperLink, gateway, runs, and what others see of them."""

from __future__ import annotations

import contextlib
import functools
import logging
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from coinflower.accounting.errors import UserError
from coinflower.client.page.access import is_loopback, parse_address
from coinflower.deploy.errors import DeploymentError
from coinflower.deploy.flower.loopback import LOOPBACK
from coinflower.deploy.flower.superlink import Superlink, TlsFiles
from coinflower.deploy.gateway.config import LEAST_BODY, largest_body
from coinflower.deploy.gateway.process import Gateway, find_nginx, gateway, listen_address
from coinflower.deploy.keys.keys import (
    CA_CERTIFICATE,
    SERVER_CERTIFICATE,
    SERVER_KEY,
    SOON,
    require_server_files,
)
from coinflower.deploy.machines.experiment import Experiment
from coinflower.deploy.machines.experiment_run import WriteReport
from coinflower.deploy.machines.health import HealthServer
from coinflower.deploy.machines.prometheus import metrics_server
from coinflower.deploy.machines.queue import ExperimentQueue, largest_body_of
from coinflower.deploy.machines.run_supervisor import RunSupervisor
from coinflower.deploy.trackers.following import require_trackers
from coinflower.server.app import require_ready
from coinflower.server.settings import Settings
from coinflower.server.sole_use import sole_use

logger = logging.getLogger("coinflower.server")


@dataclass(frozen=True, kw_only=True)
class ServerPlan:
    """What `coinflower server run` is asked for.

    Attributes:
        settings: Settings of the experiment to begin with; None serves what is submitted.
        folder: For the SuperLink's files, logs and the keys of nodes that may join.
        keys: Folder with the server's certificate; None is plain HTTP on loopback.
        listen: ``host:port`` of the gateway; None has none.
        host: Interface of the SuperLink.
        port: Port of the SuperLink.
        resume: Go on from the checkpoint.
        health_host: Interface of the gRPC health protocol.
        health_port: Its port; None has none.
        metrics_host: Interface of the metrics.
        metrics_port: Their port; None has none.
        drain_seconds: How long a round may continue after a request to stop.
        stay: Keep the SuperLink up once nothing is left to run, until told to stop.
        side_by_side: How many experiments may run at a time.
        page: ``HOST:PORT`` of the operator's page; None has none.
        write_report: Writes the report of a complete run and returns its file.
    """

    settings: Path | None
    folder: Path
    write_report: WriteReport
    keys: Path | None = None
    listen: str | None = None
    host: str = LOOPBACK
    port: int = 8000
    resume: bool = False
    health_host: str = LOOPBACK
    health_port: int | None = None
    metrics_host: str = LOOPBACK
    metrics_port: int | None = None
    drain_seconds: float = 10.0
    stay: bool = False
    side_by_side: int = 1
    page: str | None = None

    def __post_init__(self) -> None:
        """Check what can be checked without starting anything."""
        if self.keys is None and (self.listen is not None or self.host != LOOPBACK):
            raise UserError(
                "Without --keys the server speaks plain HTTP, on this machine's loopback only."
            )
        if self.page is not None and not is_loopback(parse_address(self.page)[0]):
            raise UserError(
                f"page = {self.page!r} must be on this machine's loopback, as in 127.0.0.1:8610; "
                "from elsewhere, use a tunnel (ssh -L)."
            )
        if self.listen is not None:
            listen_address(self.listen)
            find_nginx()


def serve(plan: ServerPlan, stop: threading.Event) -> str:
    """Serve until nothing is left to run or ``stop`` is set; return how it ended, in a sentence.

    Raises:
        ValueError: Settings or keys cannot be used.
        DeploymentError: A part could not be started or ended, or the run failed.
    """
    folder = plan.folder.absolute()
    queue = ExperimentQueue(folder)
    settings = None if plan.settings is None else _ready(queue, plan.settings, resume=plan.resume)
    tls = None if plan.keys is None else _tls_files(plan.keys)
    folder.mkdir(parents=True, exist_ok=True)
    with sole_use(folder, patience_seconds=0):
        main = None if settings is None else queue.enter(settings)
        if main is not None and main.held and not plan.stay and not _is_anything_due(folder):
            raise UserError(
                f"Experiment {main.name} was stopped; to continue it: coinflower server resume "
                f"{main.name} --folder {plan.folder}"
            )
        if plan.listen is None and plan.host != LOOPBACK:
            logger.warning(
                "Port %d on %s is the SuperLink itself, whose Control API has no password: whoever "
                "reaches it can start runs and register nodes. Let nobody reach it but a gateway.",
                plan.port,
                plan.host,
            )
        with operators_page(plan.page, folder):
            while (outcome := _serve_once(plan, main, folder, tls, stop)) is None:
                pass  # all experiments go on from their checkpoints
        return outcome


@contextlib.contextmanager
def operators_page(address: str | None, folder: Path) -> Iterator[None]:
    """Serve the operator's page as long as the block lasts; without an address, do nothing."""
    if address is None:
        yield
        return
    from coinflower.client.page.server import SiteServer
    from coinflower.deploy.machines.page_link import told_link
    from coinflower.deploy.status_page.site import make_status_site

    site = SiteServer(address, functools.partial(make_status_site, folder))
    with site, told_link(site, folder / "server", whose="operator"):
        yield


def _ready(queue: ExperimentQueue, path: Path, *, resume: bool) -> Settings:
    """Return the settings that a server is started with, before anybody is told that it serves."""
    settings = queue.load(path)
    settings = replace(settings, resume=True) if resume else settings
    require_trackers(settings.trackers)
    require_ready(settings)
    return settings


def _is_anything_due(folder: Path) -> bool:
    return any(one.is_due for one in ExperimentQueue(folder).all())


def _serve_once(
    plan: ServerPlan,
    main: Experiment | None,
    folder: Path,
    tls: TlsFiles | None,
    stop: threading.Event,
) -> str | None:
    """Serve with one SuperLink; return None if all is to continue with another."""
    body = LEAST_BODY if main is None else largest_body(main.settings.terms)
    with _superlink(plan, folder, tls, body) as (superlink, door, address):
        supervisor = RunSupervisor(
            folder,
            superlink,
            door,
            address,
            stay=plan.stay or main is None,
            side_by_side=plan.side_by_side,
            main=None if main is None else main.name,
            write_report=plan.write_report,
            passes=_passes(plan, main, folder),
        )
        metrics = metrics_server(folder, host=plan.metrics_host, port=plan.metrics_port)
        health = HealthServer(plan.health_port, supervisor.is_well, host=plan.health_host)
        with metrics, health:
            try:
                return supervisor.follow(stop, plan.drain_seconds)
            except DeploymentError as error:
                supervisor.status_file.note_error(str(error))
                raise


def _passes(plan: ServerPlan, main: Experiment | None, folder: Path) -> int | None:
    """Return what a gateway that was set up elsewhere lets pass, for what there was to run then."""
    if main is None or plan.keys is None or plan.listen is not None:
        return None
    return largest_body_of(main.settings, folder)


def _tls_files(keys: Path) -> TlsFiles:
    item = require_server_files(keys)
    assert item.expires is not None
    left = item.expires - datetime.now(UTC)
    if left < SOON:
        logger.warning(
            "The server's certificate expires in %d days; renew it: coinflower keys server %s",
            left.days,
            keys,
        )
    return TlsFiles(
        ca=keys / CA_CERTIFICATE, certificate=keys / SERVER_CERTIFICATE, key=keys / SERVER_KEY
    )


@contextlib.contextmanager
def _superlink(
    plan: ServerPlan, folder: Path, tls: TlsFiles | None, body: int
) -> Iterator[tuple[Superlink, Gateway | None, str]]:
    """Run the SuperLink, and the gateway before it if there is to be one."""
    started = Superlink(
        folder,
        port=plan.port,
        host=plan.host,
        tls=tls,
        authenticate_nodes=tls is not None,
    )
    with started as superlink:
        if plan.listen is None or tls is None:
            yield superlink, None, superlink.address
            return
        door = gateway(
            folder,
            listen=plan.listen,
            tls=tls,
            upstream=superlink.address,
            largest_body=body,  # until an experiment begins that has larger messages
        )
        with door as running:
            yield superlink, running, plan.listen
