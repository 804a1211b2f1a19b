"""Records with a vector in them, on the wire the same as Flower's own.

Flower serialises a record anew whenever it is asked for its name, and copies every field several
times on the way. These are named once, and sent from and read in the memory where the vector is.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from typing import Any, cast

from flwr.app import ConfigRecord, ConfigRecordValues
from flwr.proto.recorddict_pb2 import ConfigRecord as Encoded
from flwr.proto.recorddict_pb2 import ConfigRecordValue
from flwr.supercore.constant import HEAD_BODY_DIVIDER, HEAD_VALUE_DIVIDER
from flwr.supercore.inflatable.inflatable_object import InflatableObject
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents

from coinflower.flower_internals.long_fields import LONG_BYTES, Buffer, field_head, fields_of

_KIND = ConfigRecord.__qualname__
_RECORD = f"{_KIND}{HEAD_VALUE_DIVIDER}{HEAD_VALUE_DIVIDER}".encode()
_ITEMS = Encoded.ITEMS_FIELD_NUMBER
_KEY, _VALUE = Encoded.Item.KEY_FIELD_NUMBER, Encoded.Item.VALUE_FIELD_NUMBER
_BYTES = ConfigRecordValue.BYTES_FIELD_NUMBER


class LongRecord(ConfigRecord):
    """A ConfigRecord with one long value of bytes, whose memory must not change any more.

    Args:
        fields: The other values.
        key: The long value's name.
        value: The long value; not copied.
    """

    def __init__(self, fields: Mapping[str, ConfigRecordValues], key: str, value: Buffer) -> None:
        super().__init__(dict(fields))
        self._key = key
        self._name = ""
        _set(self, key, memoryview(value).cast("B").toreadonly())

    def __setitem__(self, key: str, value: ConfigRecordValues) -> None:
        """Change a value, and so the record's name."""
        self._name = ""
        super().__setitem__(key, value)

    def rename(self, name: str) -> None:
        """Give the record a name that is no hash, until it changes; an empty one takes it away."""
        self._name = name

    @property
    def object_id(self) -> str:
        """The record's name: the hash of what it is on the wire, unless it was given another."""
        if not self._name:
            digest = hashlib.sha256()
            for piece in self.pieces():
                digest.update(piece)
            self._name = digest.hexdigest()
        return self._name

    def pieces(self) -> list[Buffer]:
        """Return what the record is on the wire, the long value as it lies in memory."""
        fields, long = self._split()
        key = self._key.encode()
        value = field_head(_BYTES, len(long))
        item = field_head(_KEY, len(key)) + key + field_head(_VALUE, len(value) + len(long)) + value
        short = bytes(_body(ConfigRecord(fields).deflate()))
        head = short + field_head(_ITEMS, len(item) + len(long)) + item
        return [_header(len(head) + len(long)), head, long]

    def deflate(self) -> bytes:
        """Return what the record is on the wire, in one piece."""
        return b"".join(self.pieces())

    def _split(self) -> tuple[dict[str, ConfigRecordValues], memoryview]:
        fields = dict(self)
        return fields, memoryview(cast(Buffer, fields.pop(self._key)))

    def __reduce__(self) -> tuple[Any, ...]:
        # Flower's simulation engine sends messages to processes, and views of memory stay here.
        fields, long = self._split()
        return ConfigRecord, ({**fields, self._key: bytes(long)},)


def is_record(content: Buffer) -> bool:
    """Return whether an object is a record, which holds no other objects."""
    return bytes(content[: len(_RECORD)]) == _RECORD


def read_object(
    name: str, contents: Mapping[str, Buffer], viewed: Collection[str]
) -> InflatableObject:
    """Return the object of a name, given what it and all that it holds are on the wire.

    Args:
        name: The object's.
        contents: What each object is on the wire, by name.
        viewed: Fields of records whose values, if they are long, are views of ``contents``.

    Raises:
        Exception: Whatever Flower's parsers raise if the contents are malformed.
    """
    records: dict[str, InflatableObject] = {}
    others: dict[str, bytes] = {}
    for key, content in contents.items():
        record = _read_long_record(content, viewed) if len(content) > LONG_BYTES else None
        if record is None:
            others[key] = bytes(content)
        else:
            records[key] = record
    return inflate_object_from_contents(name, others, objects=records)


def _read_long_record(content: Buffer, viewed: Collection[str]) -> ConfigRecord | None:
    """Return a record with views among its values; None if it is not a record."""
    if not is_record(content):
        return None
    body = _body(content)
    short = bytearray()
    long: dict[str, memoryview] = {}
    for field in fields_of(body):
        found = _long_value(body[field.start : field.stop]) if field.number == _ITEMS else None
        if found is None or found[0] not in viewed:
            short += body[field.begin : field.stop]
        else:
            long.update([found])
    record = ConfigRecord.inflate(_header(len(short)) + bytes(short))
    for key, value in long.items():
        _set(record, key, value)
    return record


def _long_value(item: memoryview) -> tuple[str, memoryview] | None:
    """Return the name and the value of a field of a record, if its value is long."""
    if len(item) <= LONG_BYTES:
        return None
    parts = {field.number: item[field.start : field.stop] for field in fields_of(item)}
    values = list(fields_of(parts[_VALUE]))
    if set(parts) != {_KEY, _VALUE} or [field.number for field in values] != [_BYTES]:
        return None
    return bytes(parts[_KEY]).decode(), parts[_VALUE][values[0].start : values[0].stop]


def _header(body_bytes: int) -> bytes:
    head = HEAD_VALUE_DIVIDER.join((_KIND, "", str(body_bytes)))
    return head.encode() + HEAD_BODY_DIVIDER


def _body(content: Buffer) -> memoryview:
    view = memoryview(content)
    head = bytes(view[:LONG_BYTES])
    return view[head.index(HEAD_BODY_DIVIDER) + len(HEAD_BODY_DIVIDER) :]


def _set(record: ConfigRecord, key: str, value: memoryview) -> None:
    """Set a value that is bytes but for its type, which Flower would refuse."""
    cast(dict[str, Any], record.__dict__["_data"])[key] = value
