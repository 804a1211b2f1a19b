"""Records with a vector are what Flower's own would be, and are read without a copy."""

import pickle

import pytest
from flwr.app import ConfigRecord, RecordDict
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from hypothesis import given
from hypothesis import strategies as st

from coinflower.flower_internals.long_fields import LONG_BYTES
from coinflower.flower_internals.long_records import LongRecord, read_object

FIELDS = {"terms": "p = 0.5", "round": 3, "coins": [True, False], "salt": b"abc", "size": 2.5}
VECTOR = bytes(range(256)) * (LONG_BYTES // 64)


@given(
    st.dictionaries(
        st.text(min_size=1, max_size=9).filter(lambda key: key != "weights"),
        st.one_of(st.integers(-(2**63), 2**63), st.text(max_size=9), st.binary(max_size=9)),
    ),
    st.binary(min_size=1, max_size=500),
)
def test_a_long_record_is_on_the_wire_what_flower_makes_of_it(fields: dict, value: bytes) -> None:
    ours, theirs = LongRecord(fields, "weights", value), ConfigRecord({**fields, "weights": value})
    assert ours.deflate() == b"".join(ours.pieces()) == theirs.deflate()
    assert ours.object_id == theirs.object_id
    assert ConfigRecord.inflate(ours.deflate()) == theirs


def test_a_long_value_is_sent_from_where_it_lies() -> None:
    value = bytearray(VECTOR)
    piece = LongRecord(FIELDS, "weights", value).pieces()[-1]
    value[0] ^= 1
    assert bytes(piece) == value


def test_nobody_writes_through_a_record() -> None:
    record = LongRecord(FIELDS, "weights", bytearray(VECTOR))
    with pytest.raises(TypeError, match="read-only"):
        record["weights"][0] = 1  # type: ignore[index]


def test_a_record_whose_value_is_changed_has_another_name() -> None:
    record = LongRecord(FIELDS, "weights", VECTOR)
    before = record.object_id
    record["weights"] = b"other"
    assert record.object_id != before
    assert record.object_id == ConfigRecord({**FIELDS, "weights": b"other"}).object_id


def test_a_long_record_goes_to_another_process_as_flowers_own() -> None:
    record = pickle.loads(pickle.dumps(LongRecord(FIELDS, "weights", VECTOR)))
    assert type(record) is ConfigRecord
    assert record == {**FIELDS, "weights": VECTOR}


def test_long_values_are_read_where_they_lie() -> None:
    content = RecordDict({"ask": LongRecord(FIELDS, "weights", VECTOR)})
    objects = {
        name: bytearray(part.deflate()) for name, part in get_all_nested_objects(content).items()
    }
    read = read_object(content.object_id, objects, {"weights"})
    assert isinstance(read, RecordDict)
    weights = read["ask"]["weights"]
    assert isinstance(weights, memoryview)
    assert weights.obj is objects[content["ask"].object_id]
    assert {**read["ask"], "weights": bytes(weights)} == {**FIELDS, "weights": VECTOR}


def test_values_that_are_not_bytes_are_left_to_flower() -> None:
    record = ConfigRecord({"text": "x" * 3 * LONG_BYTES, "list": [1.5] * LONG_BYTES})
    contents = {record.object_id: record.deflate()}
    assert read_object(record.object_id, contents, {"text", "list"}) == record


def test_long_values_that_nobody_wants_to_view_are_bytes() -> None:
    record = LongRecord(FIELDS, "tickets", VECTOR)
    read = read_object("name", {"name": record.deflate()}, {"weights"})
    assert read == ConfigRecord({**FIELDS, "tickets": VECTOR})


@given(st.binary(max_size=60), st.integers(0, 3 * LONG_BYTES))
def test_whatever_is_malformed_is_an_error(junk: bytes, place: int) -> None:
    record = LongRecord(FIELDS, "weights", VECTOR)
    content = bytearray(record.deflate())
    content[place : place + len(junk)] = junk
    try:
        read = read_object("name", {"name": content}, {"weights"})
    except Exception:
        return
    assert isinstance(read, ConfigRecord)
