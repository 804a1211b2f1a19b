"""Adding up replies: what is not usable is dropped and its client named."""

from __future__ import annotations

import gc
import tracemalloc
import weakref
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Error, MetricRecord, RecordDict

from coinflower.flower_internals.long_records import LongRecord
from coinflower.flower_internals.messages import NEVER_ARRIVED
from coinflower.protocol import messages
from coinflower.protocol.modes import Mode
from coinflower.server.aggregation import RunningSum, largest_norm
from coinflower.server.clients.echoes import Echoes
from tests.support.builders import make_terms
from tests.support.builders import reply_of as reply

MODES = [Mode.TRUSTED, Mode.UNTRUSTED, Mode.NONE]
SIZE = 1 << 25


def summing(length: int, asked: Iterable[int], mode: Mode = Mode.TRUSTED) -> RunningSum:
    """A sum over clients so large that nothing in these tests is too long."""
    noise_multiplier = 1.0 if mode.is_private else 0.0
    terms = make_terms(mode, q=1.0, noise_multiplier=noise_multiplier)
    asked = list(asked)
    return RunningSum(terms, length, dict.fromkeys(asked, min(SIZE, 500_000_000 // len(asked))))


def carrying(value: Any) -> RecordDict:
    return RecordDict({messages.ANSWER: ConfigRecord({messages.SUM: value})})


def vector(*values: float) -> RecordDict:
    return carrying(np.array(values, "<f4").tobytes())


@pytest.mark.parametrize("mode", MODES)
def test_replies_of_those_who_were_asked_are_added(mode: Mode) -> None:
    total = summing(2, [5, 6, 7], mode)
    total.add(reply(5, vector(1, 2)))
    total.add(reply(7, vector(10, 20)))
    assert total.total.tolist() == [11, 22]
    assert total.total.dtype == np.float32
    assert total.answered == {5, 7}
    assert total.dropped == set()
    assert total.received_bytes == 16


def test_without_replies_the_sum_is_zero() -> None:
    assert summing(3, [5]).total.tolist() == [0, 0, 0]


UNUSABLE: dict[str, RecordDict | Error] = {
    "error": Error(2, "failed"),
    "nan": vector(1, np.nan),
    "infinite": vector(np.inf, 1),
    "too short": vector(1),
    "too long": vector(1, 2, 3),
    "doubles": carrying(np.zeros(2).tobytes()),
    "cut in mid-number": carrying(np.zeros(2, np.float32).tobytes()[:7]),
    "text": carrying("ab"),
    "list": carrying([1.0, 2.0]),
    "nothing": RecordDict(),
    "another record": RecordDict({messages.ANSWER: MetricRecord({"sum": 1.0})}),
    "another field": RecordDict({messages.ANSWER: ConfigRecord({"other": b"12345678"})}),
}


@pytest.mark.parametrize("content", UNUSABLE.values(), ids=UNUSABLE)
def test_what_is_not_usable_is_dropped_and_its_client_named(
    content: RecordDict | Error, caplog: pytest.LogCaptureFixture
) -> None:
    total = summing(2, [5, 6])
    total.add(reply(6, vector(1, 1)))
    total.add(reply(5, content))
    assert total.total.tolist() == [1, 1]
    assert total.answered == {6}
    assert total.dropped == {5}
    assert "Dropped what client 5 sent: " in caplog.text


def test_nobody_who_was_not_asked_is_listened_to(caplog: pytest.LogCaptureFixture) -> None:
    total = summing(2, [5])
    total.add(reply(8, vector(1, 1)))
    assert not total.total.any()
    assert total.answered == set()
    assert "Dropped what client 8 sent: not asked for." in caplog.text


def test_a_second_answer_does_not_count(caplog: pytest.LogCaptureFixture) -> None:
    total = summing(2, [5])
    total.add(reply(5, vector(1, 1)))
    total.add(reply(5, vector(9, 9)))
    assert total.total.tolist() == [1, 1]
    assert total.answered == {5}
    assert "Dropped what client 5 sent: not asked for." in caplog.text


def test_an_answer_that_did_not_arrive_in_time_is_told_in_words_of_ours(
    caplog: pytest.LogCaptureFixture,
) -> None:
    total = summing(2, [5])
    total.add(reply(5, Error(NEVER_ARRIVED, "a client's text")))
    assert total.dropped == {5}
    assert "client 5 sent: its answer was announced but did not arrive in time" in caplog.text
    assert "a client's text" not in caplog.text


def test_the_error_of_a_client_is_logged_by_its_number_only(
    caplog: pytest.LogCaptureFixture,
) -> None:
    summing(2, [5]).add(reply(5, Error(2, "text from elsewhere")))
    assert "error 2" in caplog.text
    assert "elsewhere" not in caplog.text


@pytest.mark.parametrize("mode", MODES)
def test_many_small_terms_do_not_vanish_beside_a_large_one(mode: Mode) -> None:
    total = summing(1, range(2, 103), mode)
    total.add(reply(2, vector(2.0**22)))
    for node in range(3, 103):
        total.add(reply(node, vector(2.0**-3)))
    assert total.total[0] == 2.0**22 + 100 / 8


def test_however_many_clients_the_sum_holds_one_vector() -> None:
    length, clients = 100_000, 40
    total = summing(length, range(2, 2 + clients))
    content = np.ones(length, "<f4").tobytes()
    tracemalloc.start()
    for node in range(2, 2 + clients):
        total.add(reply(node, carrying(content)))
    held, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held < 100_000
    assert most < 4 * 8 * length
    assert total.total[0] == clients


@pytest.mark.parametrize("mode", [Mode.TRUSTED, Mode.COVERED, Mode.LOCAL_ONLY])
def test_a_client_that_ignores_the_cap_is_dropped_and_named(
    mode: Mode, caplog: pytest.LogCaptureFixture
) -> None:
    terms = make_terms(mode, q=1.0, clip_norm=0.5, cap=3.0)
    total = RunningSum(terms, 2, dict.fromkeys([5, 6, 7], 1000))
    total.add(reply(5, vector(1.5, 0)))
    total.add(reply(6, vector(1.2, 0.95)))  # longer than 1.5
    assert total.answered == {5}
    assert total.dropped == {6}
    assert total.total.tolist() == [1.5, 0]
    assert "client 6 sent: longer than its records of one round, or the cap, allow" in caplog.text
    free = RunningSum(make_terms(mode, q=1.0, clip_norm=0.5), 2, {6: 1000})
    free.add(reply(6, vector(1.2, 0.95)))
    assert free.answered == {6}


def test_a_cap_beyond_all_records_leaves_the_bound_as_it_is() -> None:
    for mode in Mode:
        if mode.is_private:
            free, capped = make_terms(mode, q=0.1), make_terms(mode, q=0.1, cap=1e6)
            assert largest_norm(capped, 1000, 50) == largest_norm(free, 1000, 50)


@pytest.mark.parametrize("mode", [Mode.UNTRUSTED, Mode.QUIET])
def test_where_clients_add_noise_the_cap_leaves_room_for_it(mode: Mode) -> None:
    """The least bound that lets honest noise through: the cap, and s·(√n + 10)."""
    terms = make_terms(mode, q=1.0, cap=2.0, noise_multiplier=3.0)
    wanted = (2.0 + 3.0 * (10_000**0.5 + 10)) * (1 + 1e-3)
    assert largest_norm(terms, 1000, 10_000) == pytest.approx(wanted, rel=1e-12)


class Memory(bytearray):
    """Memory of which one can see when it is freed."""


def test_a_reply_that_was_added_up_is_freed_at_once() -> None:
    memory = Memory(np.array([1, 1], "<f4").tobytes())
    content = RecordDict({messages.ANSWER: LongRecord({}, messages.SUM, memory)})
    total, freed = summing(2, [5]), weakref.ref(memory)
    del memory
    gc.disable()
    try:
        Echoes().note_answer(reply(5, content))
        total.add(reply(5, content))
        del content
        assert freed() is None
    finally:
        gc.enable()
    assert total.answered == {5}
