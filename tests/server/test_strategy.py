"""Whole runs of the parameter server in one process: modes, arithmetic, invitations."""

from __future__ import annotations

import gc
import math
import weakref
from collections import Counter
from typing import Any

import numpy as np
import pytest
from flwr.app import Message
from scipy import stats

from coinflower.learning import Update
from coinflower.learning.noise import lattice_cell
from coinflower.protocol import messages
from coinflower.protocol.modes import Mode
from coinflower.server.rounds import Rounds
from coinflower.server.strategy import DivergedError
from tests.support import memory_grid
from tests.support.memory_grid import (
    EVERYTHING,
    Deliver,
    Make,
    central_descent,
    coins_of,
    kind_of,
    reply_with,
    rounds_sent,
)

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
        assert list(message.content) == [messages.ASK, messages.ECHO]
        assert set(message.content[messages.ECHO]) == {"echo", "salt"}
        seen.setdefault(kind_of(message), set()).update(message.content[messages.ASK])

    fed.grid.before_push = watch
    fed.run()
    assert seen == {
        "enrol": {"terms", "salt"},
        "invite": {"terms", "round", "count", "salt"},
        "gradient": {"terms", "round", "weights", "salt"},
    }


# Arithmetic


def test_with_everybody_and_everything_it_is_central_gradient_descent(federation: Make) -> None:
    fed = federation(
        Mode.NONE,
        **EVERYTHING,
        sizes=(12, 7, 20),
        update=Update(learning_rate=0.5, momentum=0.9),
        rounds=8,
    )
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
    fed = federation(
        mode, clip_norm=0.5, noise_multiplier=2.0, update=Update(learning_rate=1.0), spare=4
    )
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
    fed = federation(Mode.TRUSTED, rounds=1, sizes=(16, 16), update=Update(momentum=0.5))
    fed.grid.interfere = nobody_joins
    fed.run()
    gradient = fed.checkpoints().load().memory["momentum_buffer"]
    steps = gradient.astype(np.float64) * 8.0 / lattice_cell(1.5)
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
    fed = federation(Mode.UNTRUSTED, rounds=4, update=Update(learning_rate=1.0), q=1e-9)
    models = [fed.initial()]
    fed.run(evaluate=lambda _, weights: models.append(weights))
    noise = np.concatenate(np.diff(models, axis=0))
    std = math.sqrt(3) * 1.5 / (0.5 * 1e-9 * 36)
    assert variance_p_value(noise, std) > 1e-7
    assert variance_p_value(noise, 1.1 * std) < 1e-7


@pytest.mark.filterwarnings("ignore:overflow encountered")
def test_a_model_that_blows_up_stops_the_run_with_a_sentence(federation: Make) -> None:
    fed = federation(Mode.NONE, **EVERYTHING, update=Update(learning_rate=1e38))

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


def test_nothing_as_large_as_the_model_outlives_its_round(
    federation: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    fed = federation(Mode.UNTRUSTED, rounds=3)
    totals: list[weakref.ref[Any]] = []
    initial: list[weakref.ref[Any]] = []
    play, make = Rounds.play, memory_grid.ArrayRecord

    def watched(rounds: Rounds, *arguments: Any, **options: Any) -> Any:
        played = play(rounds, *arguments, **options)
        totals.append(weakref.ref(played.total))
        return played

    def made(content: Any) -> Any:
        record = make(content)
        initial.append(weakref.ref(record))
        return record

    monkeypatch.setattr(Rounds, "play", watched)
    monkeypatch.setattr(memory_grid, "ArrayRecord", made)
    left: list[int] = []

    def count(*_: object) -> None:
        gc.collect()
        left.append(sum(one() is not None for one in [*totals, *initial]))

    fed.run(evaluate=count)
    assert len(totals) == 3
    assert left == [0, 0, 0]
