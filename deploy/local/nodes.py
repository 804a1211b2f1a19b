"""The clients of a local federation: threads, processes, stock SuperNodes, or simulated nodes."""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum
from pathlib import Path

from coinflower.accounting.errors import UserError
from coinflower.deploy.flower.guard import start_guarded, stop_guarded
from coinflower.deploy.flower.loopback import LOOPBACK, free_port, spare_loopback
from coinflower.deploy.machines.logs import TextFormatter


class NodeKind(StrEnum):
    """How a local client runs."""

    THREADS = "threads"
    PROCESSES = "processes"
    STOCK = "stock"
    SIMULATED = "ray"
    """By Flower's simulation engine (Ray) inside of the SuperLink; there is no node to start."""


def require_ray() -> None:
    """Refuse simulated nodes where Flower's simulation engine is not installed."""
    if importlib.util.find_spec("ray") is None:
        raise UserError(
            "Flower's simulation engine needs Ray; install it with "
            "pip install 'coinflower[simulation]'."
        )


class LocalNodes:
    """The running clients of a local federation.

    Args:
        ended: Tells for each client whether it has ended; in the order of their policies.
    """

    def __init__(self, ended: Callable[[], Sequence[bool]] = lambda: ()) -> None:
        self._ended = ended

    def dead(self) -> list[int]:
        """Return the clients that have ended although nobody told them to."""
        return [index for index, ended in enumerate(self._ended()) if ended]


@contextlib.contextmanager
def local_nodes(
    kind: NodeKind, address: str, policies: Sequence[Path], folder: Path
) -> Iterator[LocalNodes]:
    """Run one node for every policy as long as the block lasts; all of them end with it.

    Args:
        kind: Threads of this process, processes of our own, stock SuperNodes, or none at all.
        address: The SuperLink on this machine.
        policies: One policy a node.
        folder: For the nodes' logs.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if kind is NodeKind.SIMULATED:
        yield LocalNodes()
        return
    if kind is NodeKind.THREADS:
        with _threads(address, policies, folder) as nodes:
            yield nodes
        return
    make = _resident_command if kind is NodeKind.PROCESSES else _stock_command
    guards: list[subprocess.Popen[bytes]] = []
    try:
        for index, policy in enumerate(policies):
            environment = {**spare_loopback(os.environ), "FLWR_HOME": str(folder / f"flwr-{index}")}
            environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
            with (folder / f"client-{index}.log").open("ab") as log:
                guards.append(start_guarded(make(address, policy), env=environment, log=log))
        yield LocalNodes(lambda: [guard.poll() is not None for guard in guards])
    finally:
        enders = [threading.Thread(target=stop_guarded, args=(guard,)) for guard in guards]
        for ender in enders:
            ender.start()
        for ender in enders:
            ender.join()


def _resident_command(address: str, policy: Path) -> list[str]:
    program = str(Path(sys.executable).parent / "coinflower")
    return [program, "client", str(policy), "--superlink", address, "--insecure"]


def _stock_command(address: str, policy: Path) -> list[str]:
    program = str(Path(sys.executable).parent / "flower-supernode")
    config = f'policy="{policy}"'
    # Every SuperNode serves its own app processes on a port of its own.
    port = str(free_port(LOOPBACK))
    return [program, "--insecure", "--superlink", address, "--port", port, "--node-config", config]


@contextlib.contextmanager
def _threads(address: str, policies: Sequence[Path], folder: Path) -> Iterator[LocalNodes]:
    import torch

    from coinflower.client.app import ConfiguredOwners, make_app
    from coinflower.client.node.polling_group import PollingGroup
    from coinflower.client.node.resident import ResidentNode
    from coinflower.learning.freed_memory import share_freed_memory

    # Clients that share a machine share its processors; one thread each is fastest in sum.
    torch.set_num_threads(1)
    share_freed_memory()
    handler = logging.FileHandler(folder / "clients.log")
    handler.setFormatter(TextFormatter("%(asctime)s %(threadName)s %(message)s"))
    log = logging.getLogger("coinflower.client")
    before = log.level, log.propagate
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    log.propagate = False
    stop = threading.Event()
    polling_group = PollingGroup()
    owners = ConfiguredOwners()
    workers = []
    for policy in policies:
        node = ResidentNode(
            address,
            make_app(owners),
            stop=stop,
            node_config={"policy": str(policy)},
            insecure=True,
            polling_group=polling_group,
        )
        workers.append(threading.Thread(target=node.run, name=policy.stem, daemon=True))
    try:
        for worker in workers:
            worker.start()
        yield LocalNodes(lambda: [not worker.is_alive() for worker in workers])
    finally:
        stop.set()
        for worker in workers:
            worker.join()
        owners.close()
        log.removeHandler(handler)
        log.setLevel(before[0])
        log.propagate = before[1]
        handler.close()
