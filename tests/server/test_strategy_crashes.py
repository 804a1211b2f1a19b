"""Runs that crash and resume, and what is said at the end."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message

from coinflower.learning import Optimizer, SecureRandom, Update
from coinflower.protocol import messages
from coinflower.protocol.modes import Mode
from tests.support.memory_grid import (
    EVERYTHING,
    Make,
    central_descent,
    central_gradient,
    coins_of,
    kind_of,
    make_federation,
    round_of,
    rounds_sent,
)

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


def _crashing_in(round_: int) -> Callable[[int, np.ndarray], None]:
    def evaluate(played: int, _: np.ndarray) -> None:
        if played == round_:
            raise CrashError

    return evaluate


def test_a_resumed_run_continues_with_the_saved_model_and_momentum(federation: Make) -> None:
    update = Update(learning_rate=0.5, momentum=0.9)
    fed = federation(Mode.NONE, **EVERYTHING, rounds=6, rounds_per_invitation=2, update=update)
    with pytest.raises(CrashError):
        fed.run(evaluate=_crashing_in(3))
    assert fed.used_through() == 4
    weights = fed.run()
    assert [report.round for report in fed.reports] == [1, 2, 3, 5, 6]
    np.testing.assert_allclose(weights, central_descent(fed, 5, 36), atol=1e-5)


def test_adam_and_averages_survive_a_crash(federation: Make) -> None:
    update = Update(optimizer="adam", averaging=0.5, schedule="cosine", warm_up_rounds=1)
    fed = federation(Mode.NONE, **EVERYTHING, update=update)
    with pytest.raises(CrashError):
        fed.run(evaluate=_crashing_in(3))
    kept = fed.run()
    oracle = Optimizer(update, fed.initial(), rounds=6)
    for report in fed.reports:
        oracle.step(central_gradient(fed, oracle.weights) / np.float32(36), report.round)
    assert [report.round for report in fed.reports] == [1, 2, 3, 5, 6]
    np.testing.assert_allclose(kept, oracle.kept, atol=1e-5)
    np.testing.assert_allclose(fed.checkpoints().load().weights, oracle.weights, atol=1e-5)
    assert np.abs(oracle.kept - oracle.weights).max() > 5e-4


def test_another_optimizer_cannot_continue(federation: Make) -> None:
    fed = federation(Mode.NONE, **EVERYTHING, update=Update(optimizer="adam"))
    with pytest.raises(CrashError):
        fed.run(evaluate=_crashing_in(3))
    fed.update = Update(learning_rate=1.0)
    with pytest.raises(ValueError, match="resume with the update that the run began with"):
        fed.run()


def test_terms_of_earlier_versions_say_how_to_step(tmp_path: Path) -> None:
    asked: dict[str, Any] = {"mode": Mode.NONE, **EVERYTHING}
    old = make_federation(tmp_path / "old", learning_rate=0.5, update=Update(), **asked)
    new = make_federation(tmp_path / "new", **asked)
    assert np.array_equal(old.run(), new.run())
    doubled = Update(momentum=0.9)
    both = make_federation(tmp_path / "both", learning_rate=0.5, update=doubled, **asked)
    with pytest.raises(ValueError, match=r"leave it out of \[terms\]"):
        both.run()


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
    from coinflower.server.checkpoint import Checkpoint

    vector = np.zeros(7, np.float32)
    fed.checkpoints().save(Checkpoint(weights=vector, memory={"steps": np.array([1])}, round=1))
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
    from coinflower.server.strategy import RandomParticipation

    for mode in (Mode.NONE, Mode.TRUSTED):
        fed = federation(mode, experiment=str(mode), sizes=())
        caplog.clear()
        with caplog.at_level(logging.INFO):
            RandomParticipation(
                fed.terms, checkpoints=fed.checkpoints(), randomness=SecureRandom()
            ).summary()
        assert ("NO PRIVACY" in caplog.text) is (mode is Mode.NONE)
        assert fed.terms.to_json() in caplog.text
