"""What rides along with calls: it comes off whole, and those who do not know it skip it."""

from __future__ import annotations

import contextlib

import pytest
from flwr.proto.fleet_pb2 import PullMessagesRequest
from flwr.proto.node_pb2 import Node
from hypothesis import given
from hypothesis import strategies as st

from coinflower.flower_internals.long_fields import field_head
from coinflower.flower_internals.riders import Riders, encoded_head, encoded_object, take_off

NAMES = [f"{index:064x}" for index in range(4)]
CALL = PullMessagesRequest(node=Node(node_id=7))


def encoded(riders: Riders, objects: dict[str, bytes]) -> bytearray:
    parts = [encoded_head(riders), CALL.SerializeToString()]
    for name, content in objects.items():
        parts += [bytes(part) for part in encoded_object(name, [content[:3], content[3:]])]
    return bytearray(b"".join(parts))


@given(
    sizes=st.lists(st.integers(0, 9000), max_size=4),
    confirmed=st.lists(st.sampled_from(NAMES), max_size=2),
    wait=st.none() | st.integers(0, 30_000),
    free=st.booleans(),
)
def test_what_rides_along_comes_off_as_it_went_on(
    sizes: list[int], confirmed: list[str], wait: int | None, free: bool
) -> None:
    objects = {
        name: bytes([65 + size % 7]) * size for name, size in zip(NAMES, sizes, strict=False)
    }
    seconds = None if wait is None else wait / 1000
    riders = Riders(confirmed=confirmed, wait_seconds=seconds, free_names=free)
    call, came = take_off(encoded(riders, objects))
    assert PullMessagesRequest.FromString(call) == CALL
    assert came.objects == objects
    assert came.confirmed == confirmed
    assert came.wait_seconds == pytest.approx(seconds)
    assert came.free_names is free


def test_flower_skips_what_it_does_not_know() -> None:
    whole = bytes(encoded(Riders(confirmed=NAMES[:1], wait_seconds=5.0), {NAMES[1]: b"object"}))
    assert PullMessagesRequest.FromString(whole).node.node_id == 7


def test_a_long_object_stays_in_the_memory_in_which_it_came() -> None:
    body = encoded(Riders(), {NAMES[0]: b"short", NAMES[1]: b"long" * 5000, NAMES[2]: b"last"})
    _, came = take_off(body)
    assert came.objects[NAMES[1]] is body
    assert body == b"long" * 5000


def test_nobody_waits_longer_than_half_a_minute() -> None:
    assert take_off(encoded(Riders(wait_seconds=900.0), {}))[1].wait_seconds == 30.0


@pytest.mark.parametrize(
    "junk",
    [
        field_head(20001, 31) + b"x" * 31,  # an object without a whole name
        field_head(20002, 3) + b"abc",
        field_head(20003, 2) + b"-1",
        field_head(20003, 9) + b"999999999",
        field_head(20003, 50) + b"1",  # cut off
        b"\x88\xe2\x09\x05",  # field 20001 as a number
        2 * (field_head(20001, 32) + b"n" * 32),
    ],
)
def test_what_may_not_ride_along_is_an_error(junk: bytes) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        take_off(bytearray(CALL.SerializeToString() + junk))


@given(st.binary(max_size=60))
def test_any_bytes_come_apart_or_are_an_error(junk: bytes) -> None:
    with contextlib.suppress(ValueError):
        take_off(bytearray(junk))
