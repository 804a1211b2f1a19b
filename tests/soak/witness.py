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
from pathlib import Path

import torch

from coinflower.client.app import app
from coinflower.protocol import messages
from coinflower.protocol.terms import Terms
from tests.soak.machine import run_nodes

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
    torch.set_num_threads(1)
    run_nodes(address, [(Witness(Path(policy).stem), {"policy": policy}) for policy in policies])


if __name__ == "__main__":
    main(*sys.argv[1:])
