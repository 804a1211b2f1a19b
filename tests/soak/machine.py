"""A client machine: the resident nodes of one process, until SIGTERM."""

import threading

from coinflower.client.node.polling_group import PollingGroup
from coinflower.client.node.resident import ResidentNode
from coinflower.deploy.machines.logs import LogFormat, start_logging
from coinflower.deploy.signals import stop_on_signals


def run_nodes(address, nodes):
    """Run a node for each ClientApp and its node configuration."""
    start_logging(LogFormat.TEXT)
    polling_group = PollingGroup()
    with stop_on_signals() as stop:
        threads = [
            threading.Thread(
                target=ResidentNode(
                    address,
                    app,
                    stop=stop,
                    node_config=config,
                    insecure=True,
                    drain_seconds=10.0,
                    polling_group=polling_group,
                ).run
            )
            for app, config in nodes
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
