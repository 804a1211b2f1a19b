"""A federation in one process: real ClientApps behind a Grid that can lose, hold and spoil."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, RecordDict
from flwr.app.message import make_message

from coinflower.accounting.ledger.entries import Entry
from coinflower.accounting.ledger.ledger import Ledger
from coinflower.client.app import ConfiguredOwners, make_app
from coinflower.client.data import load_local_data
from coinflower.flower_internals.messages import set_message_id
from coinflower.learning import (
    Records,
    SecureRandom,
    Update,
    build_model,
    clipped_gradient_sum,
    flatten_parameters,
    load_parameters,
    to_tensor,
)
from coinflower.notary.app import make_app as make_notary_app
from coinflower.notary.notary import Notary
from coinflower.protocol import messages
from coinflower.protocol.modes import Mode
from coinflower.protocol.policy import load_policy
from coinflower.protocol.terms import Terms
from coinflower.server.checkpoint import CheckpointFolder
from coinflower.server.clients.attendance import Attendance
from coinflower.server.clients.roster import SizeLimits
from coinflower.server.grid import PromptGrid
from coinflower.server.journal import RoundReport
from coinflower.server.lateness import Enough
from coinflower.server.strategy import RandomParticipation
from tests.support.builders import make_owner, make_terms
from tests.support.notaries import make_notary, signing_keys

Make = Callable[..., Any]
NOTARY_NODE = 9000
EVERYTHING: dict[str, Any] = {"p": 1.0, "q": 1.0, "clip_norm": math.inf}
Weights = npt.NDArray[np.float32]
Deliver = Callable[[], Message]
Interference = Callable[[Message, Deliver], Message | None]
"""What happens to a message on its way: the reply that comes back, None if none ever does."""


def kind_of(message: Message) -> str:
    return message.metadata.message_type.partition(".")[2]


def asked_of(message: Message) -> dict[str, Any]:
    return dict(message.content.config_records[messages.ASK])


@dataclass(frozen=True, kw_only=True)
class Event:
    """A message that was sent, or a look for replies to some."""

    what: str
    kind: str
    node: int = 0
    round: int = 0
    count: int = 0


class MemoryGrid:
    """Delivers messages to ClientApps of this process at once; ``interfere`` may do otherwise."""

    def __init__(
        self, policies: dict[int, Path], notaries: dict[int, Notary] | None = None
    ) -> None:
        self.policies = policies
        self.notaries = notaries or {}
        self.online = {*policies, *self.notaries}
        self.events: list[Event] = []
        self.interfere: Interference = lambda _, deliver: deliver()
        self.before_push: Callable[[Message], None] = lambda _: None
        self.held: dict[str, float] = {}
        self.hold: Callable[[Message], float] = lambda _: 0.0
        self.copies = 1
        self.owners = ConfiguredOwners()
        self._app = make_app(self.owners)
        self._replies: dict[str, Message] = {}
        self._kinds: dict[str, str] = {}

    def get_node_ids(self) -> Iterable[int]:
        return sorted(self.online)

    def sent(self, kind: str) -> list[Event]:
        return [event for event in self.events if (event.what, event.kind) == ("send", kind)]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        return [self._push(message) for message in messages]

    def _push(self, message: Message) -> str:
        self.before_push(message)
        fields = asked_of(message)
        node = message.metadata.dst_node_id
        round_, count = fields.get("round", 0), fields.get("count", 0)
        self.events.append(
            Event(what="send", kind=kind_of(message), node=node, round=round_, count=count)
        )
        message_id = f"m{len(self.events)}"
        set_message_id(message, message_id)
        self._kinds[message_id] = kind_of(message)
        reply = self.interfere(message, lambda: self._deliver(message))
        if reply is not None:
            self._replies[message_id] = reply
            self.held[message_id] = time.monotonic() + self.hold(message)
        return message_id

    def _deliver(self, message: Message) -> Message:
        node = message.metadata.dst_node_id
        if node in self.notaries:
            return self._ask_notary(message)
        context = Context(
            run_id=1,
            node_id=node,
            node_config={"policy": str(self.policies[node])},
            state=RecordDict(),
            run_config={},
        )
        copy = make_message(metadata=message.metadata, content=RecordDict({**message.content}))
        try:
            return self._app(copy, context)
        except RuntimeError as error:
            return Message(Error(2, str(error)), reply_to=message)

    def _ask_notary(self, message: Message) -> Message:
        context = Context(run_id=1, node_id=0, node_config={}, state=RecordDict(), run_config={})
        try:
            return make_notary_app(self.notaries[message.metadata.dst_node_id])(message, context)
        except Exception as error:  # as the resident node does
            return Message(Error(2, str(error)), reply_to=message)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        replies: list[Message] = []
        for message_id in message_ids:
            self.events.append(Event(what="look", kind=self._kinds[message_id]))
            if message_id in self._replies and time.monotonic() >= self.held[message_id]:
                replies += [self._replies.pop(message_id)] * self.copies
        return replies


@dataclass(kw_only=True)
class Federation:
    """Clients with data, policies and ledgers, and the server's folder."""

    folder: Path
    terms: Terms
    update: Update
    grid: MemoryGrid
    reports: list[RoundReport] = field(default_factory=list)

    @property
    def nodes(self) -> list[int]:
        return list(self.grid.policies)

    @property
    def state(self) -> Path:
        return self.folder / "server"

    def data(self, node: int) -> Records:
        return load_local_data(load_policy(self.grid.policies[node]))

    def entries(self, node: int, kind: str) -> list[Entry]:
        with Ledger.open(load_policy(self.grid.policies[node]).ledger, read_only=True) as ledger:
            return [entry for entry in ledger.history() if entry.kind == kind]

    def initial(self) -> Weights:
        model = build_model(self.terms.model, classes=self.terms.classes)
        return flatten_parameters(model).numpy()

    def checkpoints(self) -> CheckpointFolder:
        return CheckpointFolder(self.state, self.terms.hash)

    def used_through(self) -> int:
        path = self.state / "used-rounds.json"
        return int(json.loads(path.read_text())["used_through"]) if path.exists() else 0

    def run(
        self,
        *,
        timeout: float = 5.0,
        evaluate: Callable[[int, Weights], None] = lambda *_: None,
        randomness: Any = None,
        sizes: SizeLimits | None = None,
        round_seconds: float | None = None,
        enough: Enough | None = None,
        download_precision: messages.Precision = "single",
        **options: Any,
    ) -> Weights:
        """Run the strategy to its end and return the final weights."""
        attendance = {"expected_clients": len(self.nodes), "patience_seconds": 3.0} | options

        def on_round(report: RoundReport, weights: Weights) -> None:
            self.reports.append(report)
            evaluate(report.round, weights)

        strategy = RandomParticipation(
            self.terms,
            checkpoints=self.checkpoints(),
            randomness=randomness or SecureRandom(),
            attendance=Attendance(**attendance),
            sizes=sizes,
            round_seconds=round_seconds,
            enough=enough,
            download_precision=download_precision,
            on_round=on_round,
            update=self.update,
        )
        result = strategy.start(
            PromptGrid(self.grid, poll_interval=0.002),
            ArrayRecord({messages.VECTOR: Array(self.initial())}),
            num_rounds=self.terms.rounds,
            timeout=timeout,
        )
        return result.arrays[messages.VECTOR].numpy()


def make_federation(
    folder: Path,
    mode: Mode = Mode.TRUSTED,
    *,
    sizes: Sequence[int] = (12, 12, 12),
    spare: int = 0,
    policy: dict[int, dict[str, Any]] | None = None,
    update: Update | None = None,
    **changes: Any,
) -> Federation:
    """Make clients and the terms of their run.

    Args:
        folder: Where the files of all of them go.
        mode: The only one that they allow.
        sizes: Records of each client.
        spare: How many more each declares.
        policy: Changes of policies, by index.
        update: How the model steps.
        changes: Of the terms.
    """
    folder.mkdir(exist_ok=True)
    policies = {}
    for index, size in enumerate(sizes):
        own: dict[str, Any] = {
            "data_set": f"ward {index}",
            "declared_size": size + spare,
            "modes": [str(mode)],
            "largest_clip_norm": np.inf,
            "least_noise_multiplier": 0.0,
            "budget": {"epsilon": 500.0, "delta": 1e-5},
        }
        own.update((policy or {}).get(index, {}))
        path = folder / f"client-{index}.toml"
        policies[1000 + index] = make_owner(path, size, seed=5 + index, **own)
    if mode.masks_sums:
        changes = {"threshold": max(2, len(sizes)), **changes}
    terms = make_terms(mode, **{"rounds": 6, "rounds_per_invitation": 1, **changes})
    update = update or Update(learning_rate=0.5)
    notaries = {}
    if mode.masks_sums:
        notaries[NOTARY_NODE] = make_notary(folder / "notary", signing_keys(policies.values()))
    grid = MemoryGrid(policies, notaries)
    return Federation(folder=folder, terms=terms, update=update, grid=grid)


def round_of(message: Message) -> int:
    return int(str(message.content.config_records[messages.ASK].get("round", 0)))


def reply_with(message: Message, **fields: Any) -> Message:
    copies = {
        key: bytes(value) if isinstance(value, memoryview) else value
        for key, value in fields.items()
    }
    return Message(RecordDict({messages.ANSWER: ConfigRecord(copies)}), reply_to=message)


def coins_of(fed: Any, node: int) -> dict[int, bool]:
    return {entry.round: entry.coin for entry in fed.entries(node, "charge")}


def rounds_sent(fed: Any, kind: str) -> dict[int, list[int]]:
    """The rounds that each client was asked about, in order."""
    asked: dict[int, list[int]] = {node: [] for node in fed.nodes}
    for event in fed.grid.sent(kind):
        asked[event.node] += range(event.round, event.round + max(1, event.count))
    return asked


def central_gradient(fed: Any, weights: np.ndarray) -> np.ndarray:
    """The sum of the gradients of all clients' records."""
    parts = [fed.data(node) for node in fed.nodes]
    inputs = to_tensor(np.concatenate([part.inputs for part in parts]))
    targets = torch.from_numpy(np.concatenate([part.targets for part in parts]))
    model = build_model("digits", classes=10)
    load_parameters(model, weights.astype(np.float32))
    return np.asarray(clipped_gradient_sum(model, inputs, targets, math.inf).numpy())


def central_descent(fed: Any, rounds: int, total: float) -> np.ndarray:
    """Gradient descent with momentum on the data of all clients together."""
    weights = fed.initial().astype(np.float64)
    velocity = np.zeros_like(weights)
    for _ in range(rounds):
        velocity = (fed.update.momentum or 0) * velocity + central_gradient(fed, weights) / total
        weights = weights - fed.update.step_size * velocity
    return np.asarray(weights)
