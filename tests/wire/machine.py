"""The clients of an observed federation in a process of their own.

Run as ``python machine.py CA IDS KIND=PORT=POLICY...``, until SIGTERM. Every node has a connection
and a cache of its own, as if it were alone on its machine. The file IDS tells their node ids. The
kind ``notary`` is a notary, with its folder in place of a policy.
"""

import json
import sys
import threading
from pathlib import Path

import torch

from coinflower.client.app import make_app
from coinflower.client.node.resident import ResidentNode
from coinflower.deploy.flower.loopback import LOOPBACK
from coinflower.deploy.machines.logs import LogFormat, start_logging
from coinflower.deploy.machines.notary_folder import NotaryFolder
from coinflower.deploy.signals import stop_on_signals
from coinflower.notary.app import make_app as make_notary_app
from coinflower.server.checkpoint import write_atomically
from tests.wire.leaky import KINDS

NOTARY = "notary"


def main(authority, ids, *nodes):
    start_logging(LogFormat.TEXT)
    torch.set_num_threads(1)
    with stop_on_signals() as stop:
        residents = []
        for node in nodes:
            kind, port, path = node.split("=")
            residents.append(
                ResidentNode(
                    f"{LOOPBACK}:{port}",
                    _app_of(kind, Path(path)),
                    stop=stop,
                    root_certificates=Path(authority).read_bytes(),
                    poll_interval=0.8,  # polls are most of the work of so many nodes on one machine
                )
            )
        threads = [threading.Thread(target=resident.run) for resident in residents]
        for thread in threads:
            thread.start()
        while not all(resident.joined for resident in residents) and not stop.wait(0.05):
            pass
        write_atomically(Path(ids), json.dumps([one.node_id for one in residents]).encode())
        for thread in threads:
            thread.join()


def _app_of(kind, path):
    if kind == NOTARY:
        return make_notary_app(NotaryFolder(path).open())
    return make_app(KINDS[kind].open(path))


if __name__ == "__main__":
    main(*sys.argv[1:])
