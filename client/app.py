"""The Flower ClientApp: three handlers around a `coinflower.client.participant.Participant`.

Works in the resident node, under a stock SuperNode and in Flower's simulation engine. The node's
own configuration names the policy (``policy = PATH``); in a simulation the folder of policies comes
from this machine's environment, never from the wire.
"""

from __future__ import annotations

import functools
import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path

from flwr.app import ConfigRecord, ConfigRecordValues, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from coinflower.accounting.ledger.echo import NO_TOKEN
from coinflower.accounting.ledger.errors import LedgerError
from coinflower.client.participant import Participant
from coinflower.flower_internals.long_fields import Buffer
from coinflower.flower_internals.long_records import LongRecord
from coinflower.flower_internals.messages import record_of
from coinflower.protocol import messages
from coinflower.protocol.foreign import printable, quoted
from coinflower.protocol.policy import Refusal, RefusedError
from coinflower.protocol.terms import Terms

POLICY_KEY = "policy"
SIMULATED_POLICIES = "COINFLOWER_SIMULATED_POLICIES"
"""Environment variable: folder of client-0.toml, client-1.toml, ... for Flower's simulation."""

logger = logging.getLogger("coinflower.client")
_MOST_CHARACTERS = 400

Handler = Callable[[Message, Context], Message]
OwnerOf = Callable[[Context], Participant]


class ConfiguredOwners:
    """The participants of nodes whose Flower configuration names a policy, opened on first use."""

    def __init__(self) -> None:
        self._participants: dict[Path, Participant] = {}
        self._opening = threading.Lock()

    def of(self, context: Context) -> Participant:
        """Return a node's participant.

        Raises:
            ValueError: The node is not configured.
        """
        path = _policy_path(context).resolve()
        with self._opening:
            if path not in self._participants:
                self._participants[path] = Participant.open(path)
            return self._participants[path]

    def close(self) -> None:
        """Close all ledgers; who is asked for again is opened again."""
        with self._opening:
            for participant in self._participants.values():
                participant.ledger.close()
            self._participants.clear()

    def __reduce__(self) -> str:
        # Ray sends `app` to a worker with every message; the worker has owners of its own.
        return "owners_of_this_process"


def _policy_path(context: Context) -> Path:
    if POLICY_KEY in context.node_config:
        return Path(str(context.node_config[POLICY_KEY]))
    folder, part = os.environ.get(SIMULATED_POLICIES), context.node_config.get("partition-id")
    if folder is not None and part is not None:
        return Path(folder) / f"client-{part}.toml"
    raise ValueError(f"this node's configuration has no {POLICY_KEY!r}")


def make_app(owner: Participant | ConfiguredOwners) -> ClientApp:
    """Return the app of one participant, or of those that nodes' configurations name."""
    owner_of = owner.of if isinstance(owner, ConfiguredOwners) else lambda _: owner
    made = ClientApp()
    made.query(messages.ENROL)(_discreet(_enrol, owner_of))
    made.query(messages.INVITE)(_discreet(_invite, owner_of))
    made.train(messages.GRADIENT)(_discreet(_gradient, owner_of))
    return made


def _discreet(
    handler: Callable[[Message, Callable[[], Participant]], Message], owner_of: OwnerOf
) -> Handler:
    """Let nothing about a failure leave the client: Flower sends an exception's text."""

    def handle(message: Message, context: Context) -> Message:
        try:
            return handler(message, functools.partial(_heeding, message, context, owner_of))
        except Exception as error:  # whatever it was, only a constant sentence may leave
            kind, what = quoted(message.metadata.message_type), type(error).__name__
            logger.warning("%s not answered: %s: %s", kind, what, _shown(error))
        raise RuntimeError(messages.FAILURE_REASON)

    return handle


def _shown(error: Exception) -> str:
    """Return what an error says, which may quote the server."""
    return printable(str(error), _MOST_CHARACTERS)


def _ask(message: Message) -> ConfigRecord:
    return record_of(message.content, messages.ASK)


def _terms(message: Message) -> Terms:
    return Terms.from_json(str(_ask(message)[messages.TERMS]))


def _whole(record: ConfigRecord, key: str) -> int:
    value = record[key]
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{key} = {value!r} is not an integer")
    return value


def _answer(
    message: Message, fields: dict[str, ConfigRecordValues], total: Buffer | None = None
) -> Message:
    """Return a reply whose hashes nobody can guess and whose size reveals nothing.

    Every object of it names the ones below by their hash, so that one salt does for all. The
    lengths of fields of bytes are fixed by the protocol; those of numbers and texts are padded.

    Args:
        message: The question.
        fields: What is answered.
        total: The sum as it travels, if it is asked for; not copied.
    """
    varying = ConfigRecord()
    varying.update((key, value) for key, value in fields.items() if not isinstance(value, bytes))
    size = len(varying.deflate())
    said = {**fields, messages.SALT: messages.salt(size)}
    record = ConfigRecord(said) if total is None else LongRecord(said, messages.SUM, total)
    return Message(RecordDict({messages.ANSWER: record}), reply_to=message)


def _enrol(message: Message, owner: Callable[[], Participant]) -> Message:
    """Agree to the terms, or refuse with a sentence that says nothing about the data."""
    size, reason, echo = 0, "", NO_TOKEN
    beside: dict[str, ConfigRecordValues] = {}
    try:
        participant = owner()
        terms = _understood(message)
        size = participant.enrol(terms)
        echo = participant.echo()
        if terms.mode.masks_sums:
            beside = {messages.REQUEST: participant.request(terms)}
    except RefusedError as refused:
        logger.warning("Refused to enrol: %s (%s)", refused.refusal.value, _shown(refused))
        reason = refused.refusal.value
    except LedgerError as error:
        logger.warning("Refused to enrol: %s", error)
        reason = Refusal.LEDGER.value
    return _answer(
        message,
        # A refusal sends no new echo: the echo of a ledger that was set back would hide this.
        {
            messages.ENROLLED: not reason,
            messages.DECLARED_SIZE: size,
            messages.REASON: reason,
            messages.ECHO: echo,
            **beside,
        },
    )


def _heeding(message: Message, context: Context, owner_of: OwnerOf) -> Participant:
    """Return this node's participant, unless the question shows that its ledger was set back."""
    participant = owner_of(context)
    if messages.ECHO in message.content:
        participant.heed(record_of(message.content, messages.ECHO).get(messages.ECHO))
    return participant


def _understood(message: Message) -> Terms:
    try:
        return _terms(message)
    except ValueError as error:
        raise RefusedError(Refusal.TERMS, str(error)) from error


def _invite(message: Message, owner: Callable[[], Participant]) -> Message:
    """Flip the coins of the next rounds, charged first, and say what they showed."""
    first, count = _whole(_ask(message), messages.ROUND), _whole(_ask(message), messages.COUNT)
    terms = _terms(message)
    if not 1 <= count <= terms.rounds_per_invitation:
        raise ValueError(f"{count} rounds in one invitation")
    participant = owner()
    coins = participant.flip(terms, range(first, first + count))
    return _answer(message, {messages.COINS: coins, messages.ECHO: participant.echo()})


def _gradient(message: Message, owner: Callable[[], Participant]) -> Message:
    """Answer a model with the (noisy, masked) sum of clipped gradients, once per round."""
    terms, round_ = _terms(message), _whole(_ask(message), messages.ROUND)
    participant = owner()
    # The participant has the only reference, and frees the memory before it computes a sum.
    weights = [messages.weights_in(message.content.pop(messages.ASK))]
    sent: dict[str, ConfigRecordValues] = {}
    total: Buffer
    if terms.mode.masks_sums:
        vouchers = record_of(message.content, messages.ECHO).get(messages.VOUCHERS)
        total, ticket = participant.masked_sum(terms, round_, weights.pop(), vouchers)
        sent[messages.TICKET] = ticket
    else:
        total = messages.vector_to_view(participant.gradient_sum(terms, round_, weights.pop()))
    return _answer(message, {**sent, messages.ECHO: participant.echo()}, total)


owners_of_this_process = ConfiguredOwners()
app = make_app(owners_of_this_process)
"""For engines that start a process of their own and import this: stock SuperNodes and Ray."""
