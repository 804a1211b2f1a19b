"""Names of long objects that are no hashes: nobody need read twenty megabytes to name them.

Flower names an object by its SHA-256, which whoever sends, stores or fetches it computes anew. For
long records that takes longer than their way through the network. So between our own programs

- a server names its long records at random;
- the long record of an answer has a name that follows from the question's. Only the node that was
  asked knows that, and the SuperLink takes the record under that name from this node alone.

All other objects keep their hashes: only a record, which holds no other objects, has a free name. A
node can neither choose one nor learn that of another node's answer, so it can stand in for nothing
but its own.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterable

from flwr.app import Message

from coinflower.flower_internals.long_fields import Buffer
from coinflower.flower_internals.long_records import LongRecord, is_record


def name_in_answer(question_id: str) -> str:
    """Return the free name of the long record in the answer to a question."""
    return hashlib.sha256(b"answer to " + question_id.encode()).hexdigest()


def name_answer(answer: Message, *, free: bool) -> None:
    """Name the long record of an answer, if it has one, after its question; or by its hash."""
    for record in _long_records(answer)[:1]:
        record.rename(name_in_answer(answer.metadata.reply_to_message_id) if free else "")


def name_questions(questions: Iterable[Message], *, free: bool) -> None:
    """Name the long records of questions at random, or by their hashes."""
    for question in questions:
        for record in _long_records(question):
            record.rename(secrets.token_hex(32) if free else "")


def _long_records(message: Message) -> list[LongRecord]:
    if not message.has_content():
        return []
    records = message.content.values()
    return [record for record in records if isinstance(record, LongRecord)]


def has_name(content: Buffer, name: str, *, free: bool) -> bool:
    """Return whether an object has this name: its hash, or any if it is a record and ``free``."""
    return (free and is_record(content)) or hashlib.sha256(content).hexdigest() == name
