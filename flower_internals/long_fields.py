"""A long field of a Protobuf message, read and written where it lies.

Protobuf copies a field of bytes when it is set, when it is serialised, when it is parsed and when
it is read. Of a model those copies take longer than its way through the network. The encoding of
such a field is simple: its number and its length, and then the bytes themselves, anywhere among the
others.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

Buffer = bytes | bytearray | memoryview

LONG_BYTES = 1 << 12
"""Fields that are longer than this are worth the trouble."""

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_MOST_VARINT_BYTES = 10


@dataclass(frozen=True, kw_only=True)
class Field:
    """Where a field is in the encoding of a message.

    Attributes:
        number: The field's number.
        is_bytes: Whether it has a length: bytes, text, or another message.
        begin: Where its number stands.
        start: Where its value begins.
        stop: Where its value ends.
    """

    number: int
    is_bytes: bool
    begin: int
    start: int
    stop: int


def fields_of(encoded: Buffer) -> Iterator[Field]:
    """Yield the fields of an encoded message.

    Raises:
        ValueError: The encoding is not one of a message.
    """
    place = 0
    while place < len(encoded):
        begin = place
        key, place = _varint(encoded, place)
        kind = key & 7
        if kind == _VARINT:
            start, stop = place, _varint(encoded, place)[1]
        elif kind == _BYTES:
            length, start = _varint(encoded, place)
            stop = start + length
        elif kind in (_FIXED64, _FIXED32):
            start, stop = place, place + (8 if kind == _FIXED64 else 4)
        else:
            raise ValueError(f"a field of kind {kind}")
        if stop > len(encoded):
            raise ValueError("a field is cut off")
        yield Field(number=key >> 3, is_bytes=kind == _BYTES, begin=begin, start=start, stop=stop)
        place = stop


def field_head(number: int, length: int) -> bytes:
    """Return what stands before a field of so many bytes."""
    return _encoded_varint(number << 3 | _BYTES) + _encoded_varint(length)


def take_out(encoded: bytearray, number: int) -> tuple[bytes, bytearray]:
    """Take a field of bytes out of an encoded message, which is used up.

    Returns:
        The message without the field, and the field, in the memory of the message.

    Raises:
        ValueError: The encoding is not one of a message that has the field exactly once.
    """
    found = [field for field in fields_of(encoded) if field.number == number]
    if len(found) != 1 or not found[0].is_bytes:
        raise ValueError(f"field {number} is not there, or not once")
    field = found[0]
    rest = bytes(encoded[: field.begin]) + bytes(encoded[field.stop :])
    # Python moves the ends of a bytearray without copying what is between them.
    del encoded[field.stop :]
    del encoded[: field.start]
    return rest, encoded


def _varint(encoded: Buffer, place: int) -> tuple[int, int]:
    """Return the number at a place, and the place behind it."""
    number = 0
    for shift in range(_MOST_VARINT_BYTES):
        if place >= len(encoded):
            raise ValueError("a number is cut off")
        byte = encoded[place]
        place += 1
        number |= (byte & 0x7F) << 7 * shift
        if byte < 0x80:
            return number, place
    raise ValueError("a number is too long")


def _encoded_varint(number: int) -> bytes:
    encoded = bytearray()
    while number >= 0x80:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)
