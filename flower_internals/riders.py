"""What rides along with Flower's calls, so that a message takes one request and not a dozen.

Every request costs a SuperLink 3 to 5 ms, and Flower spends one on each object of a message, on
each confirmation and on each look for messages. Here they are further fields of the Protobuf
message of a call that is made anyway: objects beside the message that they belong to, the names of
messages that are done with, how long a look may wait for something to be there, and whether long
objects may have names that are no hashes (`coinflower.flower_internals.names`). Whoever does not
know these fields skips them, as Protobuf says, and is then asked and told in Flower's own way.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from coinflower.flower_internals.long_fields import LONG_BYTES, Buffer, field_head, fields_of

PUSH_MESSAGES = "push-messages"
PULL_MESSAGES = "pull-messages"

MOST_RIDING_BYTES = 1 << 18
"""Objects that are longer than this are fetched one by one by whoever wants them."""

# Flower's own fields count from 1, and Protobuf keeps 19000 to 19999 for itself.
_OBJECT, _CONFIRMED, _WAIT, _FREE_NAMES = 20001, 20002, 20003, 20004
_FIELDS = frozenset({_OBJECT, _CONFIRMED, _WAIT, _FREE_NAMES})
_NAME_BYTES = 32
_LONGEST_WAIT_SECONDS = 30.0


@dataclass
class Riders:
    """What rides along with one request or answer.

    Attributes:
        objects: By name; in pieces if they are to be sent.
        confirmed: Messages that are done with.
        wait_seconds: In a request, how long to wait for a message; in an answer, that it is done.
            None if nobody is to wait.
        free_names: Whether whoever says this takes names of long objects that are no hashes; a
            SuperLink says it to a server only if all its nodes do.
    """

    objects: dict[str, Buffer] = field(default_factory=dict)
    confirmed: Sequence[str] = ()
    wait_seconds: float | None = None
    free_names: bool = False


def encoded_head(riders: Riders) -> bytes:
    """Return all that rides along but objects."""
    encoded = b""
    for name in riders.confirmed:
        encoded += field_head(_CONFIRMED, _NAME_BYTES) + bytes.fromhex(name)
    if riders.wait_seconds is not None:
        milliseconds = b"%d" % (1000 * riders.wait_seconds)
        encoded += field_head(_WAIT, len(milliseconds)) + milliseconds
    if riders.free_names:
        encoded += field_head(_FREE_NAMES, 0)
    return encoded


def encoded_object(name: str, pieces: Sequence[Buffer]) -> Iterator[Buffer]:
    """Yield an object that rides along, from where its pieces lie."""
    size = _NAME_BYTES + sum(map(len, pieces))
    yield field_head(_OBJECT, size) + bytes.fromhex(name)
    yield from pieces


def take_off(encoded: bytearray) -> tuple[bytes, Riders]:
    """Separate a message from what rides along with it; ``encoded`` is used up.

    Returns:
        The message as Flower knows it, and the rest. The longest object stays in its memory.

    Raises:
        ValueError: The encoding is not one of a message, or of what may ride along.
    """
    rest, riders, confirmed = bytearray(), Riders(), []
    places: dict[str, tuple[int, int]] = {}
    for each in fields_of(encoded):
        value = slice(each.start, each.stop)
        if each.number not in _FIELDS:
            rest += encoded[each.begin : each.stop]
        elif not each.is_bytes:
            raise ValueError(f"field {each.number} is no bytes")
        elif each.number == _WAIT:
            riders.wait_seconds = _seconds(bytes(encoded[value]))
        elif each.number == _FREE_NAMES:
            riders.free_names = True
        elif each.stop - each.start < _NAME_BYTES:
            raise ValueError("a name is cut off")
        elif each.number == _CONFIRMED:
            confirmed.append(encoded[value].hex())
        else:
            start = each.start + _NAME_BYTES
            name = encoded[each.start : start].hex()
            if name in places:
                raise ValueError("an object comes twice")
            places[name] = (start, each.stop)
    riders.confirmed = confirmed
    longest = max(places, key=lambda name: places[name][1] - places[name][0], default="")
    for name, (start, stop) in places.items():
        if name != longest or stop - start <= LONG_BYTES:
            riders.objects[name] = bytes(encoded[start:stop])
    if longest and longest not in riders.objects:
        start, stop = places[longest]
        # Python moves the ends of a bytearray without copying what is between them.
        del encoded[stop:]
        del encoded[:start]
        riders.objects[longest] = encoded
    return bytes(rest), riders


def _seconds(milliseconds: bytes) -> float:
    if not (milliseconds.isdigit() and len(milliseconds) <= 6):
        raise ValueError("a time to wait that is none")
    return min(int(milliseconds) / 1000, _LONGEST_WAIT_SECONDS)
