"""Clients that conspire: they can spoil the model, and learn nothing about the others by it.

Against sums in floating point they could: one sends something huge, the honest client's sum is
rounded to steps larger than the noise, and another takes the huge thing away again.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Message, RecordDict
from hypothesis import given
from hypothesis import strategies as st

from coinflower.accounting.analyses.binomial import most_samples
from coinflower.learning import SeededRandom
from coinflower.learning.noise import LARGEST_COUNT
from coinflower.protocol import messages
from coinflower.protocol.modes import PRIVATE_MODES, Mode
from coinflower.protocol.terms import Terms
from coinflower.server.aggregation import RunningSum, cell_of, largest_norm
from coinflower.server.clients.roster import LARGEST_TOTAL_SIZE, SizeLimits
from tests.support.builders import make_terms, reply_of

Make = Callable[..., Any]
HONEST, FIRST, SECOND, THIRD = 5, 6, 7, 8
LIMITS = SizeLimits()
SIZES = {HONEST: 100, FIRST: LIMITS.each, SECOND: LIMITS.each, THIRD: LIMITS.each}
TERMS = make_terms(Mode.LOCAL_ONLY, q=0.3, noise_multiplier=20.0, rounds=20)
CENTRAL = [mode for mode in Mode if mode.server_adds_noise]


def reply(node: int, vector: Sequence[float] | np.ndarray) -> Message:
    content = np.asarray(vector, "<f4").tobytes()
    record = RecordDict({messages.ANSWER: ConfigRecord({messages.SUM: content})})
    return reply_of(node, record)


def added_up(
    answers: Sequence[tuple[int, Sequence[float]]],
    terms: Terms = TERMS,
    sizes: dict[int, int] = SIZES,
) -> RunningSum:
    total = RunningSum(terms, len(answers[0][1]), sizes)
    for node, vector in answers:
        total.add(reply(node, vector))
    return total


def released(total: RunningSum, seed: int = 1) -> bytes:
    return total.noisy_total(SeededRandom(seed)).tobytes()


@pytest.mark.parametrize("mode", CENTRAL)
@pytest.mark.parametrize("honest", [0.01, -0.99, 1 / 3, 2.0**-30])
def test_in_every_order_of_arrival_colluders_add_what_they_sent_and_nothing_else(
    mode: Mode, honest: float
) -> None:
    terms = replace(TERMS, mode=mode)
    most = float(np.float32(largest_norm(terms, LIMITS.each, 1) * 0.999))
    answers = [(HONEST, [honest]), (FIRST, [512.0]), (SECOND, [most]), (THIRD, [-most])]
    alone = released(added_up([(HONEST, [honest + 0.0]), (FIRST, [512.0])], terms))
    outcomes = set()
    for order in itertools.permutations(answers):
        total = added_up(order, terms)
        assert total.answered == set(SIZES)
        outcomes.add(released(total))
    assert outcomes == {alone}


def test_the_attack_that_float_sums_fall_for() -> None:
    """What the server had before: the record that contributes 0.01·C shows at 512·C."""
    most = 2.0**62
    for honest in (0.0, 0.01):
        total = np.zeros(1)
        for vector in ([512.0 - 0.005], [most], [honest], [-most]):
            total += np.asarray(vector, np.float32)
        assert total[0] in (0.0, 1024.0)
        for order in itertools.permutations(
            [(HONEST, [honest]), (FIRST, [512.0 - 0.005]), (SECOND, [most]), (THIRD, [-most])]
        ):
            sound = added_up(order)
            assert sound.dropped == {SECOND, THIRD}
            assert abs(float(sound.total[0]) - (512.0 - 0.005 + honest)) < 1e-4


EXTREMES = st.one_of(
    st.floats(-1, 1, width=32),
    st.sampled_from([0.0, -0.0, 1e-45, -1e-40, 2.0**-40, 1.5, 2.0**24, -(2.0**24), 3.0e6, -3.0e6]),
)


@given(
    honest=st.lists(EXTREMES.filter(lambda x: abs(x) <= 1), min_size=3, max_size=3),
    sent=st.lists(st.lists(EXTREMES, min_size=3, max_size=3), min_size=3, max_size=3),
    order=st.permutations(range(4)),
)
def test_whatever_colluders_send_the_rest_of_the_sum_is_the_honest_clients(
    honest: list[float], sent: list[list[float]], order: list[int]
) -> None:
    answers = [(HONEST, honest), *zip((FIRST, SECOND, THIRD), sent, strict=True)]
    total = added_up([answers[i] for i in order])
    others = RunningSum(TERMS, 3, SIZES)
    for node, vector in answers[1:]:
        if node in total.answered:
            others.add(reply(node, vector))
    alone = added_up(answers[:1])
    assert total._total is not None
    assert others._total is not None
    assert alone._total is not None
    assert np.array_equal(total._total.counts - others._total.counts, alone._total.counts)
    assert released(total) == released(added_up(answers_in(total, answers)))


def answers_in(total: RunningSum, answers: list[Any]) -> list[Any]:
    return [answer for answer in answers if answer[0] in total.answered]


@pytest.mark.parametrize("mode", [mode for mode in PRIVATE_MODES if not mode.masks_sums])
@pytest.mark.parametrize("clip_norm", [1e-12, 0.75, 1.0, 1.999, 1e12])
def test_as_many_clients_as_the_limit_allows_cannot_make_a_sum_overflow(
    mode: Mode, clip_norm: float
) -> None:
    terms = replace(TERMS, mode=mode, clip_norm=clip_norm, q=1.0, noise_multiplier=1e-3)
    clients = 50
    sizes = dict.fromkeys(range(clients), LARGEST_TOTAL_SIZE // clients)
    most = np.float32(largest_norm(terms, sizes[0], 1) * (1 - 1e-6))
    total = RunningSum(terms, 1, sizes)
    for node in range(clients):
        total.add(reply(node, [most]))
    assert len(total.answered) == clients
    assert total._total is not None
    exact = clients * Fraction(float(most)) / Fraction(cell_of(terms))
    assert abs(int(total._total.counts[0]) - exact) <= clients
    assert abs(exact) <= LARGEST_COUNT
    assert total.noisy_total(SeededRandom(1))[0] > 0


def test_more_data_than_a_sum_can_hold_is_refused_before_the_round() -> None:
    with pytest.raises(ValueError, match="set a smaller largest_total_size"):
        RunningSum(replace(TERMS, q=1.0), 1, {HONEST: 3 * LARGEST_TOTAL_SIZE})


SENSELESS = [np.nan, np.inf, -np.inf, 3.4e38, -3.4e38, 1e20, 1e7]


@pytest.mark.parametrize("value", SENSELESS)
def test_senseless_numbers_are_dropped_and_leave_no_trace(value: float) -> None:
    total = added_up([(HONEST, [0.5]), (FIRST, [value])])
    assert total.dropped == {FIRST}
    assert released(total) == released(added_up([(HONEST, [0.5])]))


@pytest.mark.parametrize("value", [-0.0, 1e-45, -1e-45, 1e-38])
def test_zeros_and_denormals_add_nothing(value: float) -> None:
    total = added_up([(HONEST, [0.5]), (FIRST, [value])])
    assert total.answered == {HONEST, FIRST}
    assert released(total) == released(added_up([(HONEST, [0.5])]))


def test_a_second_answer_of_a_colluder_is_not_added() -> None:
    once = added_up([(HONEST, [0.5]), (FIRST, [1000.0])])
    twice = added_up([(FIRST, [1000.0]), (HONEST, [0.5]), (FIRST, [-1000.0]), (9, [3.0])])
    assert released(once) == released(twice)


@pytest.mark.parametrize(
    ("size", "q"),
    [(1, 0.5), (3, 0.5), (480, 0.1), (480, 1.0), (2000, 0.5), (300, 0.001), (60, 1 - 1e-9)],
)
def test_more_samples_than_the_bound_have_a_probability_of_2_to_the_minus_80(
    size: int, q: float
) -> None:
    """Oracle: the binomial tail in fractions."""

    def tail(k: int) -> Fraction:
        rate, term, total = Fraction(q), Fraction(0), Fraction(0)
        for i in range(size, k, -1):
            term = rate**size if i == size else term * (i + 1) / (size - i) * (1 - rate) / rate
            total += term
        return total

    k, rare = most_samples(size, q), Fraction(1, 2**80)
    assert 0 <= k <= size
    assert tail(k) <= rare
    assert k == 0 or tail(k - 1) > rare


def test_the_bound_on_samples_is_far_below_the_declared_size() -> None:
    assert most_samples(10_000_000, 0.05) < 1.02 * 500_000
    assert most_samples(480, 0.1) == 127
    assert largest_norm(TERMS, 1_000_000, 10) < 1.02 * 0.3 * 1_000_000


class Colluder:
    """A node that says yes to everything, declares what it likes and sends what it likes."""

    def __init__(self, size: Any, vector: Callable[[int], np.ndarray]) -> None:
        self.size = size
        self.vector = vector

    def __call__(self, message: Message) -> Message:
        asked = message.content.config_records[messages.ASK]
        fields: dict[str, Any] = {
            messages.ENROLLED: True,
            messages.DECLARED_SIZE: self.size,
            messages.REASON: "",
        }
        kind = message.metadata.message_type.partition(".")[2]
        if kind == messages.INVITE:
            fields = {messages.COINS: [True] * int(str(asked[messages.COUNT]))}
        if kind == messages.GRADIENT:
            length = len(bytes(asked[messages.WEIGHTS])) // 4  # type: ignore[arg-type]
            fields = {messages.SUM: self.vector(length).astype("<f4").tobytes()}
        return Message(RecordDict({messages.ANSWER: ConfigRecord(fields)}), reply_to=message)


def with_colluders(fed: Any, *colluders: Colluder) -> Any:
    """Put nodes beside the federation's; half of them are asked before the honest ones."""
    at = dict(zip((1, 9001, 2, 9002), colluders, strict=False))
    fed.grid.online |= at.keys()
    fed.grid.interfere = lambda message, deliver: (
        at[message.metadata.dst_node_id](message)
        if message.metadata.dst_node_id in at
        else deliver()
    )
    return fed


def towards(value: float) -> Callable[[int], np.ndarray]:
    def vector(length: int) -> np.ndarray:
        sent = np.zeros(length, np.float32)
        sent[0] = value
        return sent

    return vector


@pytest.mark.parametrize("mode", CENTRAL)
@pytest.mark.parametrize(
    "size",
    [LIMITS.each + 1, 2**62, 2**63, 10**400, 10**5000],
    ids=lambda size: f"2^{size.bit_length()}",
)
def test_absurd_sizes_are_refused_by_name_and_change_nothing(
    federation: Make, mode: Mode, size: int, caplog: pytest.LogCaptureFixture
) -> None:
    fed = federation(mode, sizes=(12,), q=1.0, p=1.0, rounds=2)
    colluders = [Colluder(size, towards(value)) for value in (512, 2.0**62, -(2.0**62))]
    weights = with_colluders(fed, *colluders).run(randomness=SeededRandom(3))
    assert [report.available for report in fed.reports] == [1, 1]
    for node in (1, 2, 9001):
        assert (
            caplog.text.count(
                f"Client {node} stays away: It declares more records than "
                f"largest_declared_size = {LIMITS.each}."
            )
            == 1
        )
    assert np.isfinite(weights).all()


@pytest.mark.parametrize("mode", [Mode.TRUSTED, Mode.UNTRUSTED, Mode.QUIET])
def test_one_client_cannot_stop_a_run_by_what_it_sends(federation: Make, mode: Mode) -> None:
    fed = federation(mode, sizes=(12, 12), p=1.0, rounds=5)
    most = largest_norm(fed.terms, LIMITS.each, fed.initial().size)
    with_colluders(
        fed,
        Colluder(LIMITS.each, towards(0.999 * most)),
        Colluder(LIMITS.each, towards(-3e38)),
        Colluder(3, lambda length: np.full(length + 1, np.nan, np.float32)),
    )
    weights = fed.run()
    assert np.isfinite(weights).all()
    assert len(fed.reports) == 5
    assert fed.reports[0].dropped == 2
    assert all(report.answered >= 3 for report in fed.reports)


def test_all_sizes_together_are_limited_first_come_first_served(
    federation: Make, caplog: pytest.LogCaptureFixture
) -> None:
    fed = federation(Mode.LOCAL_ONLY, sizes=(12, 12, 12), rounds=2)
    fed.run(sizes=SizeLimits(each=12, together=30))
    assert [report.available for report in fed.reports] == [2, 2]
    assert caplog.text.count("is left out: The declared sizes of all clients add up to more") == 1
