"""Long fields of Protobuf messages, read and written by hand, against Protobuf itself."""

import pytest
from flwr.proto.message_pb2 import PushObjectRequest
from flwr.proto.node_pb2 import Node
from hypothesis import given
from hypothesis import strategies as st

from coinflower.flower_internals.long_fields import field_head, fields_of, take_out

CONTENT = PushObjectRequest.OBJECT_CONTENT_FIELD_NUMBER

requests = st.builds(
    PushObjectRequest,
    node=st.builds(Node, node_id=st.integers(0, 2**64 - 1)),
    run_id=st.integers(0, 2**64 - 1),
    object_id=st.text(max_size=80),
    object_content=st.binary(min_size=1, max_size=300),
    session_id=st.text(max_size=40),
)


@given(requests)
def test_a_field_is_taken_out_of_what_protobuf_wrote(request: PushObjectRequest) -> None:
    rest, content = take_out(bytearray(request.SerializeToString()), CONTENT)
    assert content == request.object_content
    request.ClearField("object_content")
    assert PushObjectRequest.FromString(rest) == request


@given(requests)
def test_protobuf_reads_a_field_that_was_written_by_hand(request: PushObjectRequest) -> None:
    content = request.object_content
    whole = PushObjectRequest.FromString(request.SerializeToString())
    request.ClearField("object_content")
    written = request.SerializeToString() + field_head(CONTENT, len(content)) + content
    assert PushObjectRequest.FromString(written) == whole


def test_a_field_that_is_taken_out_stays_where_it_was() -> None:
    encoded = bytearray(
        PushObjectRequest(object_id="name", object_content=b"x" * 9000).SerializeToString()
    )
    assert take_out(encoded, CONTENT)[1] is encoded


@pytest.mark.parametrize("times", [0, 2])
def test_a_field_that_is_not_there_once_is_not_taken_out(times: int) -> None:
    encoded = (field_head(CONTENT, 3) + b"abc") * times + field_head(3, 1) + b"n"
    with pytest.raises(ValueError, match=f"field {CONTENT}"):
        take_out(bytearray(encoded), CONTENT)


@given(st.binary(max_size=200))
def test_bytes_that_are_no_message_are_an_error_and_nothing_else(encoded: bytes) -> None:
    try:
        fields = list(fields_of(encoded))
    except ValueError:
        return
    assert [field.begin for field in fields[1:]] == [field.stop for field in fields[:-1]]


@pytest.mark.parametrize(
    "encoded", [b"\x22\x05abc", b"\x22", b"\xff" * 11, b"\x0b", b"\x09\x00", b"\x80"]
)
def test_fields_that_are_cut_off_or_unknown_are_malformed(encoded: bytes) -> None:
    with pytest.raises(ValueError, match=r"a (field|number)"):
        list(fields_of(encoded))
