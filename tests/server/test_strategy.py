"""Whole runs of the parameter server, in one process, with real clients and a bad network."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ConfigRecord, Error, Message, RecordDict
from scipy import stats

from learning import SecureRandom, build_model, clipped_gradient_sum, load_parameters, to_tensor
from learning.lattice import lattice_cell
from protocol import messages
from protocol.policy import Refusal
from protocol.terms import Mode
from server.strategy import DivergedError, TooFewClientsError

Make = Callable[..., Any]
Deliver = Callable[[], Message]
EVERYTHING: dict[str, Any] = {"p": 1.0, "q": 1.0, "clip_norm": math.inf}


def kind_of(message: Message) -> str:
    return message.metadata.message_type.partition(".")[2]


def round_of(message: Message) -> int:
    return int(str(message.content.config_records[messages.ASK].get("round", 0)))


def reply_with(message: Message, **fields: Any) -> Message:
    return Message(RecordDict({messages.ANSWER: ConfigRecord(fields)}), reply_to=message)


def coins_of(fed: Any, node: int) -> dict[int, bool]:
    return {entry.round: entry.coin for entry in fed.entries(node, "charge")}


def rounds_sent(fed: Any, kind: str) -> dict[int, list[int]]:
    """The rounds that each client was asked about, in order."""
    asked: dict[int, list[int]] = {node: [] for node in fed.nodes}
    for event in fed.grid.sent(kind):
        asked[event.node] += range(event.round, event.round + max(1, event.count))
    return asked


# Modes


@pytest.mark.parametrize("mode", Mode)
def test_a_run_of_any_mode_ends_with_a_finite_model_that_moved(
    federation: Make, mode: Mode
) -> None:
    fed = federation(mode)
    weights = fed.run()
    assert np.isfinite(weights).all()
    assert not np.array_equal(weights, fed.initial())
    assert [report.round for report in fed.reports] == list(range(1, 7))
    assert {report.available for report in fed.reports} == {3}
    charged = 6 if mode.is_private else 0
    assert all(len(fed.entries(node, "charge")) == charged for node in fed.nodes)


@pytest.mark.parametrize("mode", [Mode.TRUSTED, Mode.QUIET])
def test_the_model_goes_only_to_those_whose_coin_said_yes(federation: Make, mode: Mode) -> None:
    fed = federation(mode, rounds=12, rounds_per_invitation=5)
    fed.run()
    asked = rounds_sent(fed, "gradient")
    for node in fed.nodes:
        coins = coins_of(fed, node)
        assert sorted(coins) == list(range(1, 13))
        assert asked[node] == [round_ for round_ in sorted(coins) if coins[round_]]
    assert [report.participants for report in fed.reports] == [
        sum(coins_of(fed, node)[round_] for node in fed.nodes) for round_ in range(1, 13)
    ]


def test_untrusted_everybody_is_asked_and_nobody_invited(federation: Make) -> None:
    fed = federation(Mode.UNTRUSTED)
    fed.run()
    assert fed.grid.sent("invite") == []
    assert rounds_sent(fed, "gradient") == {node: list(range(1, 7)) for node in fed.nodes}
    assert [report.answered for report in fed.reports] == [3] * 6


def test_messages_carry_the_documented_fields_and_no_others(federation: Make) -> None:
    fed = federation(Mode.TRUSTED)
    seen: dict[str, set[str]] = {}

    def watch(message: Message) -> None:
        assert list(message.content) == [messages.ASK]
        seen.setdefault(kind_of(message), set()).update(message.content[messages.ASK])

    fed.grid.before_push = watch
    fed.run()
    assert seen == {
        "enrol": {"terms"},
        "invite": {"terms", "round", "count"},
        "gradient": {"terms", "round", "weights"},
    }


# Arithmetic


def central_descent(fed: Any, rounds: int, total: float) -> np.ndarray:
    """Gradient descent with momentum on the data of all clients together."""
    parts = [fed.data(node) for node in fed.nodes]
    inputs = to_tensor(np.concatenate([part.inputs for part in parts]))
    targets = torch.from_numpy(np.concatenate([part.targets for part in parts]))
    weights = fed.initial().astype(np.float64)
    velocity = np.zeros_like(weights)
    model = build_model("digits", classes=10)
    for _ in range(rounds):
        load_parameters(model, weights.astype(np.float32))
        gradient = clipped_gradient_sum(model, inputs, targets, math.inf).numpy() / total
        velocity = fed.terms.momentum * velocity + gradient
        weights = weights - fed.terms.learning_rate * velocity
    return np.asarray(weights)


def test_with_everybody_and_everything_it_is_central_gradient_descent(federation: Make) -> None:
    fed = federation(Mode.NONE, **EVERYTHING, sizes=(12, 7, 20), momentum=0.9, rounds=8)
    np.testing.assert_allclose(fed.run(), central_descent(fed, 8, 39), atol=1e-5)


def test_the_scale_is_the_declared_size_of_all_available_clients(federation: Make) -> None:
    fed = federation(Mode.NONE, **EVERYTHING, sizes=(12, 7), spare=10, rounds=3)
    np.testing.assert_allclose(fed.run(), central_descent(fed, 3, 39), atol=1e-5)


def test_who_sits_out_counts_in_the_scale(federation: Make) -> None:
    fed = federation(Mode.NONE, **{**EVERYTHING, "p": 0.5}, rounds=1)
    said = {1000: True, 1001: False, 1002: False}

    def coins(message: Message, deliver: Deliver) -> Message:
        if kind_of(message) == "invite":
            deliver()
            return reply_with(message, coins=[said[message.metadata.dst_node_id]])
        if kind_of(message) == "gradient":
            return reply_with(message, sum=np.ones(2410, "<f4").tobytes())
        return deliver()

    fed.grid.interfere = coins
    moved = fed.initial() - fed.run()
    np.testing.assert_allclose(moved, 0.5 / (0.5 * 1.0 * 36), rtol=1e-3)


def test_who_is_away_does_not_count_in_the_scale(federation: Make) -> None:
    fed = federation(Mode.NONE, **EVERYTHING, sizes=(12, 7, 20), rounds=4)
    fed.grid.online.discard(1001)
    weights = fed.run(expected_clients=2)
    del fed.grid.policies[1001]
    np.testing.assert_allclose(weights, central_descent(fed, 4, 32), atol=1e-5)


def nobody_joins(message: Message, deliver: Deliver) -> Message:
    if kind_of(message) != "invite":
        return deliver()
    count = int(str(message.content[messages.ASK]["count"]))
    return reply_with(message, coins=[False] * count)


def variance_p_value(values: np.ndarray, std: float) -> float:
    law = stats.chi2(len(values))
    statistic = float((values.astype(np.float64) ** 2).sum() / std**2)
    return float(2 * min(law.cdf(statistic), law.sf(statistic)))


@pytest.mark.parametrize("mode", [Mode.TRUSTED, Mode.LOCAL_ONLY])
def test_empty_rounds_add_noise_of_the_agreed_variance(federation: Make, mode: Mode) -> None:
    """Fails falsely once in 10⁷ runs; rejects a noise that is 10 % off."""
    fed = federation(mode, clip_norm=0.5, noise_multiplier=2.0, learning_rate=1.0, spare=4)
    fed.grid.interfere = nobody_joins
    models = [fed.initial()]
    fed.run(evaluate=lambda _, weights: models.append(weights))
    assert fed.grid.sent("gradient") == []
    noise = -np.concatenate(np.diff(models, axis=0))
    std = 2.0 * 0.5 / (fed.terms.p * 0.5 * 48)
    assert len(noise) == 6 * 2410
    assert variance_p_value(noise, std) > 1e-7
    assert variance_p_value(noise, 0.9 * std) < 1e-7
    assert variance_p_value(noise, 1.1 * std) < 1e-7


def test_central_noise_lies_on_its_lattice(federation: Make) -> None:
    fed = federation(Mode.TRUSTED, rounds=1, sizes=(16, 16), learning_rate=8.0)
    fed.grid.interfere = nobody_joins
    fed.run()
    steps = fed.checkpoints().load().velocity.astype(np.float64) * 8.0 / lattice_cell(1.5)
    assert (steps == np.floor(steps)).all()


@pytest.mark.parametrize("mode", [Mode.UNTRUSTED, Mode.QUIET])
def test_where_clients_add_noise_the_server_adds_none(federation: Make, mode: Mode) -> None:
    fed = federation(mode, rounds=1)

    def zeros(message: Message, deliver: Deliver) -> Message:
        if kind_of(message) == "gradient":
            return reply_with(message, sum=bytes(4 * 2410))
        return deliver()

    fed.grid.interfere = zeros
    assert np.array_equal(fed.run(), fed.initial())


def test_untrusted_noise_grows_with_the_clients(federation: Make) -> None:
    fed = federation(Mode.UNTRUSTED, rounds=4, learning_rate=1.0, q=1e-9)
    models = [fed.initial()]
    fed.run(evaluate=lambda _, weights: models.append(weights))
    noise = np.concatenate(np.diff(models, axis=0))
    std = math.sqrt(3) * 1.5 / (0.5 * 1e-9 * 36)
    assert variance_p_value(noise, std) > 1e-7
    assert variance_p_value(noise, 1.1 * std) < 1e-7


@pytest.mark.filterwarnings("ignore:overflow encountered")
def test_a_model_that_blows_up_stops_the_run_with_a_sentence(federation: Make) -> None:
    fed = federation(Mode.NONE, **EVERYTHING, learning_rate=1e38)

    def large(message: Message, deliver: Deliver) -> Message:
        if kind_of(message) == "gradient":
            return reply_with(message, sum=np.full(2410, 1e38, "<f4").tobytes())
        return deliver()

    fed.grid.interfere = large
    with pytest.raises(DivergedError, match="Round 1 led to a model with values that are not fin"):
        fed.run()
    assert fed.checkpoints().load().round == 0


# Invitations


def test_coins_are_asked_for_block_by_block_and_the_last_may_be_shorter(federation: Make) -> None:
    fed = federation(rounds=7, rounds_per_invitation=3)
    fed.run()
    blocks = Counter((event.round, event.count) for event in fed.grid.sent("invite"))
    assert blocks == {(1, 3): 3, (4, 3): 3, (7, 1): 3}


@pytest.mark.parametrize("block", [1, 3])
def test_the_next_block_is_invited_before_this_rounds_replies_are_looked_for(
    federation: Make, block: int
) -> None:
    fed = federation(Mode.LOCAL_ONLY, rounds=6, rounds_per_invitation=block)
    fed.run()
    events = fed.grid.events
    for last in range(block, 6, block):
        invited = next(i for i, e in enumerate(events) if (e.kind, e.round) == ("invite", last + 1))
        sent = next(i for i, e in enumerate(events) if (e.kind, e.round) == ("gradient", last))
        between = [event.what for event in events[sent:invited] if event.kind == "gradient"]
        assert between == ["send"] * 3


def test_coins_that_make_no_sense_leave_a_client_out_of_the_block(
    federation: Make, caplog: pytest.LogCaptureFixture
) -> None:
    fed = federation(rounds=2, rounds_per_invitation=2)
    junk: dict[int, list[Any]] = {1000: [True], 1001: [1, 0]}

    def spoil(message: Message, deliver: Deliver) -> Message:
        node = message.metadata.dst_node_id
        if kind_of(message) == "invite" and node in junk:
            return reply_with(message, coins=junk[node])
        return deliver()

    fed.grid.interfere = spoil
    fed.run()
    assert [report.available for report in fed.reports] == [1, 1]
    assert "Client 1000 gave no coins" in caplog.text
    assert "Client 1001 gave no coins" in caplog.text


# A bad network


def lose(kind: str, nodes: set[int], rounds: set[int]) -> Callable[..., Message | None]:
    def interfere(message: Message, deliver: Deliver) -> Message | None:
        lost = (
            kind_of(message) == kind
            and message.metadata.dst_node_id in nodes
            and round_of(message) in rounds
        )
        return None if lost else deliver()

    return interfere


@pytest.mark.parametrize("mode", [Mode.UNTRUSTED, Mode.LOCAL_ONLY])
def test_a_client_that_does_not_answer_is_left_out_and_comes_back(
    federation: Make, mode: Mode, caplog: pytest.LogCaptureFixture
) -> None:
    fed = federation(mode, rounds=40)
    fed.grid.interfere = lose("gradient", {1001}, {2})
    fed.run(timeout=0.2)
    assert [report.round for report in fed.reports] == list(range(1, 41))
    assert [report.answered for report in fed.reports[:2]] == [3, 2]
    assert fed.reports[-1].answered == 3
    assert "Client 1001 gave no usable answer" in caplog.text


def test_an_answer_that_is_late_is_not_waited_for(federation: Make) -> None:
    fed = federation(Mode.LOCAL_ONLY, rounds=2)
    fed.grid.hold = lambda message: (
        30.0 if (kind_of(message), message.metadata.dst_node_id) == ("gradient", 1002) else 0.0
    )
    fed.run(timeout=0.2)
    assert fed.reports[0].answered == 2
    assert max(report.seconds for report in fed.reports) < 2


def test_an_invitation_that_is_not_answered_costs_its_client_the_block_only(
    federation: Make,
) -> None:
    fed = federation(rounds=6, rounds_per_invitation=2)
    fed.grid.interfere = lose("invite", {1000}, {3})
    fed.run(timeout=0.2)
    available = [report.available for report in fed.reports]
    assert available[:2] == [3, 3]
    assert available[2:4] == [2, 2]


def test_a_client_that_goes_offline_does_not_stop_the_run_and_may_return(federation: Make) -> None:
    fed = federation(Mode.UNTRUSTED, rounds=9)

    def come_and_go(round_: int, _: np.ndarray) -> None:
        if round_ == 3:
            fed.grid.online.discard(1002)
        if round_ == 6:
            fed.grid.online.add(1002)

    fed.run(evaluate=come_and_go)
    assert [report.answered for report in fed.reports] == [3, 3, 3, 2, 2, 2, 3, 3, 3]


def test_a_client_that_joins_later_takes_part_from_then_on(federation: Make) -> None:
    fed = federation(Mode.UNTRUSTED, rounds=8)
    fed.grid.online.discard(1002)

    def join(round_: int, _: np.ndarray) -> None:
        if round_ == 4:
            fed.grid.online.add(1002)

    fed.run(evaluate=join, expected_clients=2)
    answered = [report.answered for report in fed.reports]
    assert answered[:4] == [2, 2, 2, 2]
    assert answered[-1] == 3


CORRUPT: dict[str, dict[str, Any]] = {
    "short": {"sum": bytes(4 * 2409)},
    "doubles": {"sum": bytes(8 * 2410)},
    "nan": {"sum": np.full(2410, np.nan, "<f4").tobytes()},
    "infinite": {"sum": np.full(2410, np.inf, "<f4").tobytes()},
    "another type": {"sum": "hello"},
    "missing": {"other": 1},
}


@pytest.mark.parametrize("fields", CORRUPT.values(), ids=CORRUPT)
def test_a_corrupt_reply_is_dropped_and_its_client_named(
    federation: Make, fields: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    fed = federation(Mode.NONE, **EVERYTHING, sizes=(12, 12), rounds=1)

    def corrupt(message: Message, deliver: Deliver) -> Message:
        if (kind_of(message), message.metadata.dst_node_id) == ("gradient", 1001):
            return reply_with(message, **fields)
        return deliver()

    fed.grid.interfere = corrupt
    weights = fed.run()
    assert (fed.reports[0].answered, fed.reports[0].dropped) == (1, 1)
    assert "Dropped what client 1001 sent" in caplog.text
    del fed.grid.policies[1001]
    np.testing.assert_allclose(weights, central_descent(fed, 1, 24), atol=1e-5)


def test_replies_that_come_twice_count_once(federation: Make) -> None:
    fed = federation(Mode.NONE, **EVERYTHING, rounds=3)
    fed.grid.copies = 2
    np.testing.assert_allclose(fed.run(), central_descent(fed, 3, 36), atol=1e-5)


def test_a_client_that_dies_in_mid_round_does_not_stop_it(federation: Make) -> None:
    fed = federation(Mode.UNTRUSTED, rounds=3)

    def die(message: Message, deliver: Deliver) -> Message:
        if (kind_of(message), message.metadata.dst_node_id) == ("gradient", 1000):
            return Message(Error(8, "the process died"), reply_to=message)
        return deliver()

    fed.grid.interfere = die
    fed.run()
    assert [report.answered for report in fed.reports] == [2, 2, 2]


# Who is in


def test_a_client_that_refuses_stays_out_and_the_run_goes_on(
    federation: Make, caplog: pytest.LogCaptureFixture
) -> None:
    fed = federation(policy={1: {"least_noise_multiplier": 9.0}})
    fed.run()
    assert {report.available for report in fed.reports} == {2}
    assert Counter(event.node for event in fed.grid.sent("enrol"))[1001] == 1
    assert {event.node for event in fed.grid.sent("invite")} == {1000, 1002}
    assert fed.entries(1001, "charge") == []
    assert f"Client 1001 stays away: {Refusal.NOISE.value}" in caplog.text


def test_an_answer_to_enrolment_that_makes_no_sense_leaves_the_client_out(
    federation: Make,
) -> None:
    fed = federation(Mode.NONE, **EVERYTHING, sizes=(12, 12, 12, 12), rounds=2)
    junk: dict[int, dict[str, Any]] = {
        1000: {"enrolled": True, "declared-size": True, "reason": ""},
        1001: {"enrolled": True, "declared-size": -5, "reason": "x" * 10_000},
        1002: {"enrolled": 1},
    }

    def spoil(message: Message, deliver: Deliver) -> Message:
        node = message.metadata.dst_node_id
        if kind_of(message) == "enrol" and node in junk:
            return reply_with(message, **junk[node])
        return deliver()

    fed.grid.interfere = spoil
    fed.run(expected_clients=3)
    assert {report.available for report in fed.reports} == {1}


def test_too_few_clients_stop_the_run_with_a_sentence(federation: Make) -> None:
    fed = federation(policy={i: {"modes": ["quiet"]} for i in range(3)})
    with pytest.raises(TooFewClientsError) as caught:
        fed.run(patience_seconds=0.2)
    assert str(caught.value) == (
        "Only 0 of at least 1 clients were there for 0.2 s, so the run stops. "
        f"Refusals: {Refusal.MODE.value}"
    )


def test_fewer_than_the_least_number_stop_the_run(federation: Make) -> None:
    fed = federation()
    with pytest.raises(TooFewClientsError, match="Only 3 of at least 4 clients"):
        fed.run(least_clients=4, patience_seconds=0.2)
    assert fed.grid.sent("invite") == []


@pytest.mark.parametrize("mode", [Mode.UNTRUSTED, Mode.TRUSTED])
def test_clients_that_enrol_but_always_fail_stop_the_run_too(federation: Make, mode: Mode) -> None:
    fed = federation(mode, rounds=1000)

    def fail(message: Message, deliver: Deliver) -> Message:
        if kind_of(message) == "enrol":
            return deliver()
        return Message(Error(2, "failed"), reply_to=message)

    fed.grid.interfere = fail
    with pytest.raises(TooFewClientsError, match="Only 0 of at least 1"):
        fed.run(patience_seconds=0.4)
    assert len(fed.reports) < 50


def test_a_round_that_too_few_answered_makes_no_step(
    federation: Make, caplog: pytest.LogCaptureFixture
) -> None:
    fed = federation(Mode.UNTRUSTED, rounds=2)
    fed.grid.interfere = lose("gradient", {1000, 1001}, {1, 2})
    models: list[np.ndarray] = []
    fed.run(timeout=0.2, least_clients=2, evaluate=lambda _, weights: models.append(weights))
    assert np.array_equal(models[0], fed.initial())
    assert "Round 1 had too few available clients; no step." in caplog.text


# Crashes


@pytest.mark.parametrize("mode", [Mode.TRUSTED, Mode.UNTRUSTED])
@pytest.mark.parametrize("block", [1, 4])
def test_rounds_are_used_up_on_disk_before_anybody_hears_of_them(
    federation: Make, mode: Mode, block: int
) -> None:
    fed = federation(mode, rounds_per_invitation=block)
    heard: list[int] = []

    def watch(message: Message) -> None:
        last = round_of(message) + int(str(message.content[messages.ASK].get("count", 1))) - 1
        heard.append(last)
        assert kind_of(message) == "enrol" or fed.used_through() >= last

    fed.grid.before_push = watch
    fed.run()
    assert max(heard) == 6


class CrashError(Exception):
    """The server's process ends here."""


def crash_when(kind: str, round_: int) -> Callable[[Message], None]:
    def before_push(message: Message) -> None:
        if (kind_of(message), round_of(message)) == (kind, round_):
            raise CrashError

    return before_push


@pytest.mark.parametrize("mode", [Mode.TRUSTED, Mode.UNTRUSTED, Mode.LOCAL_ONLY])
@pytest.mark.parametrize("block", [1, 3])
@pytest.mark.parametrize("where", ["invite", "gradient", "evaluate"])
def test_a_run_that_crashed_resumes_and_asks_no_round_twice(
    federation: Make, mode: Mode, block: int, where: str
) -> None:
    if (mode, where) == (Mode.UNTRUSTED, "invite"):
        where = "gradient"
    fed = federation(mode, rounds=12, rounds_per_invitation=block, p=1.0)

    def evaluate(round_: int, _: np.ndarray) -> None:
        if where == "evaluate" and round_ == 4:
            raise CrashError

    fed.grid.before_push = crash_when(where, 4)
    with pytest.raises(CrashError):
        fed.run(evaluate=evaluate)
    saved, used = fed.checkpoints().load(), fed.used_through()
    played = [report.round for report in fed.reports]
    fed.grid.before_push = lambda _: None
    fed.run()
    assert [report.round for report in fed.reports] == played + list(range(used + 1, 13))
    assert saved.round == played[-1]
    for kind in ("invite", "gradient"):
        for rounds in rounds_sent(fed, kind).values():
            assert len(rounds) == len(set(rounds))
    for node in fed.nodes:
        assert len(coins_of(fed, node)) <= 12


def test_a_resumed_run_goes_on_from_the_saved_model_and_momentum(federation: Make) -> None:
    fed = federation(Mode.NONE, **EVERYTHING, rounds=6, rounds_per_invitation=2, momentum=0.9)

    def evaluate(round_: int, _: np.ndarray) -> None:
        if round_ == 3:
            raise CrashError

    with pytest.raises(CrashError):
        fed.run(evaluate=evaluate)
    assert fed.used_through() == 4
    weights = fed.run()
    assert [report.round for report in fed.reports] == [1, 2, 3, 5, 6]
    np.testing.assert_allclose(weights, central_descent(fed, 5, 36), atol=1e-5)


def test_the_new_model_is_on_disk_before_it_leaves(federation: Make) -> None:
    fed = federation(Mode.UNTRUSTED)

    def watch(message: Message) -> None:
        if kind_of(message) == "gradient":
            saved = fed.checkpoints().load()
            assert saved.round == round_of(message) - 1
            sent = message.content[messages.ASK][messages.WEIGHTS]
            assert sent == messages.vector_to_bytes(saved.weights)

    fed.grid.before_push = watch
    fed.run()


def test_a_run_with_no_round_left_returns_its_model(federation: Make) -> None:
    fed = federation()
    weights = fed.run()
    before = len(fed.grid.sent("gradient"))
    assert np.array_equal(fed.run(), weights)
    assert len(fed.grid.sent("gradient")) == before


def test_a_checkpoint_of_another_model_is_refused(federation: Make) -> None:
    fed = federation()
    from server.checkpoint import Checkpoint

    vector = np.zeros(7, np.float32)
    fed.checkpoints().save(Checkpoint(weights=vector, velocity=vector, round=1))
    with pytest.raises(ValueError, match="has 7 parameters, but the model has 2410"):
        fed.run()


def test_evaluation_follows_every_round_and_never_asks_clients(federation: Make) -> None:
    fed = federation()
    rounds: list[int] = []
    fed.run(evaluate=lambda round_, _: rounds.append(round_))
    assert rounds == list(range(1, 7))
    assert {event.kind for event in fed.grid.events} == {"enrol", "invite", "gradient"}


def test_the_log_says_when_nothing_is_protected(
    federation: Make, caplog: pytest.LogCaptureFixture
) -> None:
    from server.strategy import RandomParticipation

    for mode in (Mode.NONE, Mode.TRUSTED):
        fed = federation(mode, experiment=str(mode), sizes=())
        caplog.clear()
        with caplog.at_level(logging.INFO):
            RandomParticipation(
                fed.terms, checkpoints=fed.checkpoints(), randomness=SecureRandom()
            ).summary()
        assert ("NO PRIVACY" in caplog.text) is (mode is Mode.NONE)
        assert fed.terms.to_json() in caplog.text
