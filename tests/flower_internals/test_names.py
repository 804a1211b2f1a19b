"""Names of long records that are no hashes: who gives them, and what a store takes under them."""

from __future__ import annotations

import hashlib
import time

import pytest
from flwr.app import ConfigRecord, Message, Metadata, RecordDict
from flwr.app.message import make_message
from flwr.proto.message_pb2 import ObjectTree
from flwr.supercore.object_store import NoObjectInStoreError

from coinflower.flower_internals.long_records import LongRecord
from coinflower.flower_internals.messages import Departure, as_task
from coinflower.flower_internals.names import (
    has_name,
    name_answer,
    name_in_answer,
    name_questions,
)
from coinflower.flower_internals.superlink.store import NamedStore, taking

FREE, OTHER = "ab" * 32, "cd" * 32
QUESTION = "12" * 32


def record(value: bytes = b"x" * 9000) -> LongRecord:
    return LongRecord({"salt": b"s"}, "sum", value)


def message(content: RecordDict, *, answers: str = "") -> Message:
    metadata = Metadata(
        run_id=1,
        message_id="",
        src_node_id=1,
        dst_node_id=7,
        reply_to_message_id=answers,
        group_id="",
        created_at=time.time(),
        ttl=60,
        message_type="train.gradient",
    )
    return make_message(metadata=metadata, content=content)


def hash_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def announced(*names: str) -> NamedStore:
    store = NamedStore()
    for name in names:
        store.preregister(1, ObjectTree(object_id=name))
    return store


def test_an_answer_is_named_after_its_question_however_often_it_is_sent() -> None:
    sums = record()
    answer = message(RecordDict({"answer": sums}), answers=QUESTION)
    with as_task():
        names = []
        for _ in range(2):
            name_answer(answer, free=True)
            departure = Departure(answer)
            names.append(departure.tree.object_id)
            assert b"".join(departure.pieces()[name_in_answer(QUESTION)]) == sums.deflate()
    assert names[0] == names[1]
    name_answer(answer, free=False)
    assert sums.object_id == hash_of(sums.deflate())


def test_an_answer_without_a_long_record_keeps_its_hashes() -> None:
    short = ConfigRecord({"coins": [True]})
    name_answer(message(RecordDict({"answer": short}), answers=QUESTION), free=True)
    assert short.object_id == hash_of(short.deflate())


def test_what_several_questions_hold_has_one_name_that_nobody_can_know_before() -> None:
    model = record()
    questions = [message(RecordDict({"ask": model})) for _ in range(2)]
    seen = set()
    for _ in range(2):
        name_questions(questions, free=True)
        with as_task():
            (name,) = {Departure(each).tree.children[0].children[0].object_id for each in questions}
        seen.add(name)
    assert len(seen) == 2
    assert hash_of(model.deflate()) not in seen


def test_a_record_that_changes_goes_by_its_hash_again() -> None:
    model = record()
    model.rename(FREE)
    model["round"] = 2
    assert model.object_id == hash_of(model.deflate())


def test_only_a_record_has_another_name_than_its_hash_and_only_if_that_is_agreed() -> None:
    content, holder = record().deflate(), RecordDict({"ask": ConfigRecord()}).deflate()
    assert has_name(content, FREE, free=True)
    assert not has_name(content, FREE, free=False)
    assert not has_name(holder, FREE, free=True)
    assert has_name(holder, hash_of(holder), free=True)


def test_a_store_takes_a_record_under_the_name_that_it_is_told() -> None:
    store, content = announced(FREE), record().deflate()
    with taking(FREE):
        store.put(FREE, content)
    assert store.get(FREE) == content
    store.delete(FREE)
    assert store.get(FREE) is None


def test_a_store_takes_nothing_else_that_does_not_match_its_hash() -> None:
    store, content = announced(FREE, OTHER), record().deflate()
    with pytest.raises(ValueError, match="does not match"):
        store.put(FREE, content)
    with taking(OTHER), pytest.raises(ValueError, match="does not match"):
        store.put(FREE, content)
    with taking(FREE), pytest.raises(ValueError, match="does not match"):
        store.put(FREE, RecordDict({"answer": ConfigRecord()}).deflate())
    assert store.get(FREE) == b""


def test_a_record_that_is_cut_off_is_refused_under_any_name() -> None:
    store = announced(FREE)
    with taking(FREE), pytest.raises(Exception, match="length"):
        store.put(FREE, record().deflate()[:-1])
    assert store.get(FREE) == b""


def test_what_is_stored_is_never_replaced_and_what_is_not_announced_never_stored() -> None:
    store, first = announced(FREE), record(b"1" * 9000).deflate()
    with taking(FREE):
        store.put(FREE, first)
        store.put(FREE, record(b"2" * 9000).deflate())
    assert store.get(FREE) == first
    with taking(OTHER), pytest.raises(NoObjectInStoreError):
        store.put(OTHER, first)
