"""The nodes of one client machine, and a witness of all that they were asked and said.

Run as ``python witness.py ADDRESS POLICY...``: one resident node a policy, until SIGTERM. The
witness stands between node and app. It writes a line to standard output for every question before
the app hears it, and for every answer before the node can send it, so what leaves is never more
than what the lines say. Standard output is a pipe: a full disk does not silence it, and a line in
it outlives the process.
"""

import json
import os
import sys
import threading
from pathlib import Path

import torch

from coinflower.client.app import app
from coinflower.client.node.polling_group import PollingGroup
from coinflower.client.node.resident import ResidentNode
from coinflower.deploy.machines.logs import LogFormat, start_logging
from coinflower.deploy.signals import stop_on_signals
from coinflower.protocol import messages
from coinflower.protocol.terms import Terms

ASKED, SAID = "asked", "said"
COINS, SUM, ENROL = "coins", "sum", "enrol"


class Witness:
    """A ClientApp that tells what passes through it, and changes nothing."""

    def __init__(self, client):
        self._client = client

    def __call__(self, message, context):
        ask = message.content.config_records[messages.ASK]
        first, count = ask.get(messages.ROUND, 0), ask.get(messages.COUNT, 1)
        line = {
            "client": self._client,
            "message": message.metadata.message_id,
            "experiment": Terms.from_json(str(ask[messages.TERMS])).ledger_key,
            "rounds": [] if first == 0 else list(range(first, first + count)),
            "what": _kind(message.metadata.message_type),
        }
        _tell({**line, "event": ASKED})
        reply = app(message, context)
        coins = reply.content.config_records[messages.ANSWER].get(messages.COINS)
        _tell({**line, "event": SAID, "coins": None if coins is None else list(coins)})
        return reply


def _kind(message_type):
    names = {messages.INVITE: COINS, messages.GRADIENT: SUM, messages.ENROL: ENROL}
    return names[message_type.partition(".")[2]]


def _tell(line):
    # One write of less than PIPE_BUF: lines of several threads never mix, and none is torn.
    os.write(sys.stdout.fileno(), (json.dumps(line) + "\n").encode())


def main(address, *policies):
    start_logging(LogFormat.TEXT)
    torch.set_num_threads(1)
    polling_group = PollingGroup()
    with stop_on_signals() as stop:
        nodes = [
            ResidentNode(
                address,
                Witness(Path(policy).stem),
                stop=stop,
                node_config={"policy": policy},
                insecure=True,
                drain_seconds=10.0,
                polling_group=polling_group,
            )
            for policy in policies
        ]
        threads = [threading.Thread(target=node.run) for node in nodes]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


if __name__ == "__main__":
    main(*sys.argv[1:])
