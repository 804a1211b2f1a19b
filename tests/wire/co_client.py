"""A client that is curious about the others: a node like them, with a key of its own.

It is as honest as it likes to be and may call everything below ``/v1/fleet/``. The server of these
trials asks for coins and then keeps still, so that answers lie in the SuperLink for as long as the
curious one needs.
"""

import contextlib
import itertools
import json
import sys
import threading
import time
from pathlib import Path

from flwr.app import ConfigRecord, Message, Metadata, RecordDict
from flwr.app.message import make_message
from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.common.serde import message_to_proto
from flwr.proto.fleet_pb2 import PushMessagesRequest
from flwr.proto.message_pb2 import ObjectTree, PullObjectRequest, PushObjectRequest
from flwr.proto.run_pb2 import GetRunRequest
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
)

from coinflower.accounting.ledger.echo import NO_TOKEN
from coinflower.client.app import make_app
from coinflower.client.node.link import Link
from coinflower.client.node.polling_group import PollingGroup
from coinflower.client.node.resident import ResidentNode
from coinflower.client.participant import Participant
from coinflower.deploy.flower.run_app import write_app
from coinflower.deploy.flower.superlink import Superlink
from coinflower.deploy.local.cluster import prepare
from coinflower.flower_internals.messages import object_ids, set_message_id
from coinflower.protocol import messages
from coinflower.protocol.modes import Mode
from tests.support.federations import plan
from tests.support.waiting import wait_until

COINS = 6

_SERVER = """
import json, os, time
from flwr.app import Message
from flwr.serverapp import ServerApp
from coinflower.server.grid import PromptGrid
from coinflower.server.questions import question
from coinflower.server.settings import load_settings

app = ServerApp()

@app.main()
def main(grid, context):
    out = context.run_config["out"]
    settings = load_settings(__import__("pathlib").Path(context.run_config["settings"]))
    grid = PromptGrid(grid)
    victim = context.run_config["victim"]
    while len(nodes := sorted(grid.get_node_ids(), key=lambda node: node != victim)) < 2:
        time.sleep(0.05)

    def ask(kind, nodes, **fields):
        content = question(settings.terms, fields)
        return grid.push(Message(content, node, f"query.{kind}") for node in nodes)

    list(grid.collect(ask("enrol", [victim])))
    coins = ask("invite", nodes, round=1, count=settings.terms.rounds_per_invitation)
    (name,) = [name for name, node in coins._nodes.items() if node == victim]
    def tell(what, path):
        with open(out + ".part", "w") as file:
            json.dump(what, file)
        os.rename(out + ".part", path)

    tell(name, out)
    while not os.path.exists(out + ".go"):
        time.sleep(0.05)
    while not (answers := list(grid.pull([name]))):
        time.sleep(0.05)
    tell(answers[0].has_error() or answers[0].content["answer"]["coins"], out + ".end")
"""


class StockSuperlink(Superlink):
    """Flower's SuperLink as it comes, without the fence."""

    def _command(self):
        fenced = super()._command()
        binary = str(Path(sys.executable).parent / "flower-superlink")
        return [binary, *fenced[fenced.index("coinflower.deploy.flower.fenced_superlink") + 1 :]]


class CoClient:
    """The curious one."""

    def __init__(self, address):
        self._stop = threading.Event()
        self._link = Link(
            address,
            insecure=True,
            root_certificates=None,
            private_key=None,
            heartbeat_interval=1800,  # it never beats, and must not count as gone
            polling_group=PollingGroup(),
            stop=self._stop,
        )
        self.node = self._link.join()

    @property
    def _fleet(self):
        return self._link._fleet._client

    def close(self):
        self._link.leave()

    def take_question(self):
        """Return its own next question and the names of its objects."""
        return wait_until(self._link.poll)

    def find(self, run, name):
        """Return an object of this name: its content, empty if it is announced only, or None."""
        request = PullObjectRequest(node=self._link._fleet._node, run_id=run, object_id=name)
        response = self._fleet.PullObject(request)
        return response.object_content if response.object_found else None

    def stored_already(self, question, names):
        """Return those of the names that it need not upload, as part of an answer of its own."""
        answer = Message(RecordDict(), reply_to=question)
        tree = get_object_tree(answer)
        tree.children.extend(ObjectTree(object_id=name) for name in names)
        missing = self._push(answer, tree).objects_to_push
        return set(names) - set(missing)

    def put(self, run, content, name):
        """Offer an object that belongs to no answer of its own."""
        node = self._link._fleet._node
        request = PushObjectRequest(
            node=node, run_id=run, object_id=name, object_content=content, session_id=""
        )
        return self._fleet.PushObject(request).stored

    def forge(self, run, node, content):
        """Put a question to another node in the server's name."""
        head = Metadata(
            run_id=run,
            message_id="",
            src_node_id=SUPERLINK_NODE_ID,
            dst_node_id=node,
            reply_to_message_id="",
            group_id="",
            created_at=time.time(),
            ttl=3600,
            message_type=f"query.{messages.ENROL}",
        )
        question = make_message(metadata=head, content=content)
        response = self._push(question, get_object_tree(question))
        objects = get_all_nested_objects(question)
        for name in response.objects_to_push:
            self._fleet.PushObject(
                PushObjectRequest(
                    node=self._link._fleet._node,
                    run_id=run,
                    object_id=name,
                    object_content=objects[name].deflate(),
                    session_id=response.session_id,
                )
            )

    def answer_for(self, question_id, node, question):
        """Answer another node's question in its name."""
        answer = Message(RecordDict(), reply_to=question)
        answer.metadata.__dict__.update(_src_node_id=node, _reply_to_message_id=question_id)
        self._push(answer, get_object_tree(answer))

    def delete(self, run, name):
        """Confirm a message as received."""
        self._link.confirm(run, name)

    def totals(self, run):
        """Return what it is told that all nodes have sent, received and computed."""
        told = self._fleet.GetRun(GetRunRequest(node=self._link._fleet._node, run_id=run)).run
        return told.bytes_sent, told.bytes_recv, told.clientapp_runtime

    def _push(self, message, tree):
        set_message_id(message, tree.object_id)
        head = message_to_proto(message)
        return self._fleet.PushMessages(
            PushMessagesRequest(
                node=self._link._fleet._node, messages_list=[head], message_object_trees=[tree]
            )
        )


class Scene:
    """A victim whose answer lies in the SuperLink, and a curious client."""

    def __init__(self, *, curious, victim, run, question, names, out):
        self.curious = curious
        self.victim = victim
        self.run = run
        self.question = question
        self.names = names
        self.others_question = json.loads(out.read_text())
        self._out = out

    def finish(self):
        """Let the server read what the victim answered: its coins, or True for an error."""
        Path(f"{self._out}.go").touch()
        end = Path(f"{self._out}.end")
        wait_until(end.exists)
        return json.loads(end.read_text())


@contextlib.contextmanager
def scene(folder, superlink_class):
    """Set up a victim with a real policy and ledger, and let it flip its coins."""
    terms = {"rounds": 2 * COINS, "rounds_per_invitation": COINS}
    cluster = prepare(plan(mode=Mode.TRUSTED, clients=1, **terms), folder / "run")
    out = folder / "out.json"
    stop = threading.Event()
    with contextlib.ExitStack() as stack:
        superlink = stack.enter_context(superlink_class(folder / "superlink"))
        curious = CoClient(superlink.address)
        stack.callback(curious.close)
        owner = Participant.open(cluster.policies[0])
        stack.callback(owner.ledger.close)
        app = make_app(owner)
        victim = ResidentNode(superlink.address, app, stop=stop, insecure=True)
        thread = threading.Thread(target=victim.run)
        stack.callback(thread.join)
        stack.callback(stop.set)
        thread.start()
        wait_until(lambda: victim.joined)
        app = write_app(
            folder / "app",
            serverapp="quiet_server:app",
            clientapp="nowhere:app",
            config={
                "victim": victim.node_id,
                "settings": str(cluster.settings),
                "out": str(out),
            },
        )
        (app / "quiet_server.py").write_text(_SERVER)
        run = superlink.start_run(app)
        wait_until(out.exists)
        arrival = curious.take_question()
        yield Scene(
            curious=curious,
            victim=victim,
            run=run,
            question=arrival.message,
            names=object_ids(arrival.tree),
            out=out,
        )


def guesses(salt):
    """Return all answers, one for every pattern of coins."""
    patterns = itertools.product([False, True], repeat=COINS)
    fixed = {messages.ECHO: NO_TOKEN, messages.SALT: salt}
    return [ConfigRecord({messages.COINS: list(coins), **fixed}) for coins in patterns]
