"""The shipped server and clients in one process, and everything that an observer sees of them.

Messages go from the strategy through a Grid straight into the ClientApp; the policy, the data, the
ledger and the checkpoints are files. Nothing of client or server is re-implemented.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, RecordDict

from coinflower.accounting.ledger.entries import Budget, EntryKind
from coinflower.accounting.ledger.ledger import Ledger
from coinflower.client.app import make_app
from coinflower.client.node.private_key import load_private_key
from coinflower.client.participant import Participant
from coinflower.experiments.audit.colluders import Colluder
from coinflower.experiments.audit.masked import MaskedColluder, make_notary, write_key
from coinflower.flower_internals.messages import as_task, set_message_id
from coinflower.learning import SecureRandom, SeededRandom, flatten_parameters, model_of
from coinflower.notary.app import make_app as make_notary_app
from coinflower.notary.notary import Notary
from coinflower.protocol import messages
from coinflower.protocol.policy import Policy
from coinflower.protocol.terms import Terms
from coinflower.server.checkpoint import CheckpointFolder
from coinflower.server.clients.attendance import Attendance
from coinflower.server.grid import PromptGrid
from coinflower.server.strategy import RandomParticipation

Vector = npt.NDArray[np.float32]
Images = npt.NDArray[np.float32]
Classes = npt.NDArray[np.int64]

# Steps so short that the weights stay near zero, where gradients are what the data say.
STEP = 1e-6
_FIRST_NODE = 1000
_NOTARY_NODE = 9000
_NO_LIMIT = 1e9
_NO_CONTEXT = Context(run_id=1, node_id=0, node_config={}, state=RecordDict(), run_config={})


def write_client(
    folder: Path,
    terms: Terms,
    images: Images,
    classes: Classes,
    *,
    declared_size: int,
    rows_per_person: int = 1,
    seed: int | None = None,
) -> Path:
    """Write a data set with a ledger and a policy that allows just these terms; return the policy.

    Args:
        folder: Where to; made if missing.
        terms: What the policy allows.
        images: The data.
        classes: Their classes.
        declared_size: Public bound on their number.
        rows_per_person: How many rows, one after the other, are one person's.
        seed: Makes the client predictable, and marks its ledger so.
    """
    folder.mkdir(parents=True, exist_ok=True)
    np.savez(
        folder / "data.npz",
        x_train=images,
        y_train=classes,
        persons_train=np.arange(len(classes)) // rows_per_person,
        x_test=images[:1],
        y_test=classes[:1],
    )
    if terms.mode.masks_sums:
        write_key(folder / "owner.key")
    policy = Policy.for_terms(
        terms,
        data_set="audit",
        data="data.npz",
        ledger=Path("ledger.db"),
        declared_size=declared_size,
        budget=Budget(epsilon=_NO_LIMIT, delta=1e-3),
        insecure_seed=seed,
        signing_key=Path("owner.key") if terms.mode.masks_sums else None,
    )
    path = folder / "policy.toml"
    path.write_text(policy.to_toml())
    Ledger.create(folder / "ledger.db", "audit").close()
    return path


@dataclass(frozen=True, kw_only=True, eq=False)
class Seen:
    """What there was to be seen of a run, and what the ledgers say about it.

    Attributes:
        sums: Noisy sum behind every step of the model, rounds x parameters.
        replies: By client and round, the vector that it sent; a silent round is missing, and so is
            one whose vector is masked.
        heard: By client, every round of which a coin or a vector left it.
        coins: By client and charged round, the coin in its ledger.
    """

    sums: Vector
    replies: list[dict[int, Vector]]
    heard: list[set[int]]
    coins: list[dict[int, bool]]


def play(
    terms: Terms,
    policies: Sequence[Path],
    folder: Path,
    *,
    colluders: Sequence[Colluder] = (),
    seed: int | None = None,
) -> Seen:
    """Train by the shipped strategy with the shipped ClientApp behind every policy.

    Args:
        terms: The terms of the run; its learning rate should be :func:`learning_rate`'s.
        policies: The clients.
        folder: For the server's state.
        colluders: Clients that conspire; their answers arrive last, in this order.
        seed: Makes the server's noise predictable.
    """
    owners = [Participant.open(policy) for policy in policies]
    notary = None
    if terms.mode.masks_sums:
        keys = [load_private_key(policy.with_name("owner.key")) for policy in policies]
        known = [each.public_key for each in colluders if isinstance(each, MaskedColluder)]
        notary = make_notary(folder / "notary", [*(key.public_key() for key in keys), *known])
    grid = WatchedGrid(owners, colluders, notary)
    start = flatten_parameters(model_of(terms)).numpy()
    path = [start]
    strategy = RandomParticipation(
        terms,
        checkpoints=CheckpointFolder(folder, terms.hash),
        randomness=SecureRandom() if seed is None else SeededRandom(seed),
        attendance=Attendance(
            expected_clients=len(policies) + len(colluders), patience_seconds=0.0
        ),
        on_round=lambda _, weights: path.append(weights),
    )
    with as_task():
        strategy.start(
            PromptGrid(grid, batch=len(list(grid.get_node_ids()))),
            ArrayRecord({messages.VECTOR: Array(start)}),
            num_rounds=terms.rounds,
        )
    for owner in owners:
        owner.ledger.close()
    steps = -np.diff(np.stack(path), axis=0)
    return Seen(
        sums=(steps / STEP).astype(np.float32),
        replies=grid.replies,
        heard=grid.heard,
        coins=[_charged_coins(policy.with_name("ledger.db")) for policy in policies],
    )


def learning_rate(p: float, q: float, declared_total: int) -> float:
    """Return the learning rate with which the model steps by ``STEP`` times the noisy sum."""
    return STEP * p * q * declared_total


@contextmanager
def one_thread() -> Iterator[None]:
    """Let torch use one thread: tiny models gain nothing from more."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class WatchedGrid:
    """Hands messages to ClientApps of this process at once and keeps what they answer.

    Args:
        owners: The clients.
        colluders: Further nodes, which are not watched.
        notary: One more, in mode masked.
    """

    def __init__(
        self,
        owners: Sequence[Participant],
        colluders: Sequence[Colluder] = (),
        notary: Notary | None = None,
    ) -> None:
        self._apps = [make_app(owner) for owner in owners]
        self._notary = None if notary is None else make_notary_app(notary)
        self._colluders = dict(enumerate(colluders, start=len(owners)))
        self.replies: list[dict[int, Vector]] = [{} for _ in owners]
        self.heard: list[set[int]] = [set() for _ in owners]
        self._answers: dict[str, Message] = {}
        self._ids = itertools.count()

    def get_node_ids(self) -> Iterable[int]:
        """Ids of all clients, and of the notary."""
        clients = range(_FIRST_NODE, _FIRST_NODE + len(self._apps) + len(self._colluders))
        return clients if self._notary is None else [*clients, _NOTARY_NODE]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Deliver each message at once."""
        return [self._deliver(message) for message in messages]

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return the answers, once, in the order of the clients."""
        answers = [self._answers.pop(name) for name in message_ids if name in self._answers]
        return sorted(answers, key=lambda answer: answer.metadata.src_node_id)

    def _deliver(self, message: Message) -> str:
        name = f"message-{next(self._ids)}"
        set_message_id(message, name)
        index = message.metadata.dst_node_id - _FIRST_NODE
        if self._notary is not None and message.metadata.dst_node_id == _NOTARY_NODE:
            self._answers[name] = self._notary(message, _NO_CONTEXT)
            return name
        if index in self._colluders:
            self._answers[name] = self._colluders[index].answer(message)
            return name
        asked = message.content.config_records[messages.ASK]  # which the client uses up
        try:
            answer = self._apps[index](message, _NO_CONTEXT)
            self._watch(index, asked, answer)
        except RuntimeError as error:
            answer = Message(Error(0, str(error)), reply_to=message)
        self._answers[name] = answer
        return name

    def _watch(self, index: int, asked: ConfigRecord, answer: Message) -> None:
        given = answer.content.config_records[messages.ANSWER]
        first = int(asked.get(messages.ROUND, 0))  # type: ignore[arg-type]
        if messages.COINS in given:
            count = int(asked[messages.COUNT])  # type: ignore[arg-type]
            self.heard[index].update(range(first, first + count))
        if messages.SUM in given:
            self.heard[index].add(first)
            content = memoryview(given[messages.SUM])  # type: ignore[arg-type]
            if messages.TICKET in given:
                return
            self.replies[index][first] = messages.vector_from_bytes(content, len(content) // 4)


def _charged_coins(path: Path) -> dict[int, bool]:
    with Ledger.open(path, read_only=True) as ledger:
        return {
            entry.round: bool(entry.coin)
            for entry in ledger.history()
            if entry.kind == EntryKind.FLIP and entry.round is not None
        }
