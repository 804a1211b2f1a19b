"""What every question to a node holds, and what its answer does."""

from __future__ import annotations

from collections.abc import Mapping

from flwr.app import ConfigRecord, ConfigRecordValues, Message, RecordDict

from coinflower.flower_internals.long_fields import Buffer
from coinflower.flower_internals.long_records import LongRecord
from coinflower.flower_internals.messages import record_of
from coinflower.protocol import messages
from coinflower.protocol.terms import Terms


def question(
    terms: Terms,
    fields: Mapping[str, int | bytes] | None = None,
    *,
    weights: tuple[str, Buffer] | None = None,
) -> RecordDict:
    """Return the content of a message that carries the terms; clients remember nothing.

    It is salted: clients that are not asked must not find out from its hash that others are.

    Args:
        terms: The public terms.
        fields: What else is asked.
        weights: The model as it travels and its field's name, if that is what the question is
            about; not copied.
    """
    said: dict[str, ConfigRecordValues] = {messages.TERMS: terms.to_json(), **(fields or {})}
    said[messages.SALT] = messages.salt()
    if weights is None:
        return RecordDict({messages.ASK: ConfigRecord(said)})
    return RecordDict({messages.ASK: LongRecord(said, *weights)})


def answer_of(reply: Message) -> ConfigRecord:
    """Return what a reply says; nothing if it is an error, or says something else."""
    try:
        return ConfigRecord() if reply.has_error() else record_of(reply.content, messages.ANSWER)
    except KeyError:
        return ConfigRecord()
