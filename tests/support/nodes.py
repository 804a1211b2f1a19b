"""What the tests of a resident node share."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from coinflower.client.node.resident import ResidentNode
from tests.support.waiting import PATIENCE

SECRET = "the value of patient 17 is 42"

SERVER = """
import json, threading, time
import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.serverapp import ServerApp
from coinflower.server.grid import PromptGrid

app = ServerApp()
naps, sleep = [], time.sleep

def nap(seconds):
    naps.append([threading.current_thread().name, seconds])
    sleep(seconds)

@app.main()
def main(grid, context):
    grid = PromptGrid(grid)
    while len(nodes := list(grid.get_node_ids())) < context.run_config["nodes"]:
        time.sleep(0.05)
    found = {}
    for kind in ("query.invite", "train.gradient", "train.fail", "query.nothing"):
        weights = np.arange(200_000, dtype=np.float32)
        content = RecordDict({
            "weights": ArrayRecord({"w": Array(weights)}), "config": ConfigRecord({"kind": kind})
        })
        messages = [Message(content, node, kind) for node in nodes]
        time.sleep = nap
        found[kind] = []
        for reply in grid.collect(grid.push(messages), 240):
            assert reply.metadata.src_node_id in nodes
            if reply.has_error():
                found[kind].append([reply.error.code, reply.error.reason])
            else:
                echo = reply.content["weights"]["w"].numpy()
                state = reply.content["config"]["state"]
                found[kind].append([bool(np.array_equal(echo, weights + 1)), state])
        time.sleep = sleep
    found["naps"] = naps
    with open(context.run_config["out"], "w") as file:
        json.dump(found, file)
"""


def echo_app() -> ClientApp:
    app = ClientApp()

    def echo(message: Message, context: Context) -> Message:
        seen = context.state.config_records.get("seen", ConfigRecord({"count": 0}))
        name, count = context.node_config["name"], int(str(seen["count"])) + 1
        context.state["seen"] = ConfigRecord({"count": count})
        weights = message.content.array_records["weights"]["w"].numpy() + np.float32(1)
        answer: dict[str, ArrayRecord | MetricRecord | ConfigRecord] = {
            "weights": ArrayRecord({"w": Array(weights)}),
            "config": ConfigRecord({"state": f"{name!s} {count}"}),
        }
        return Message(RecordDict(answer), reply_to=message)

    app.query("invite")(echo)
    app.train("gradient")(echo)

    @app.train("fail")
    def fail(message: Message, context: Context) -> Message:
        raise ValueError(SECRET)

    return app


@contextlib.contextmanager
def running(*nodes: ResidentNode, stop: threading.Event) -> Iterator[None]:
    threads = [threading.Thread(target=node.run) for node in nodes]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join(PATIENCE)
            assert not thread.is_alive()
