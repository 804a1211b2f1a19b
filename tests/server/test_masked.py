"""A server in mode masked: the sums that it learns from, and what they carry."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from coinflower.learning import Update
from coinflower.protocol.modes import Mode
from tests.support.masked_rounds import FOUR, opened, stepped
from tests.support.memory_grid import NOTARY_NODE, kind_of, round_of, rounds_sent
from tests.support.participants import variance_p_value

Make = Callable[..., Any]


def moves(fed: Any, **options: Any) -> np.ndarray:
    """The step of every round."""
    path = [fed.initial()]
    fed.run(evaluate=lambda _, weights: path.append(weights), **options)
    return np.diff(np.stack(path), axis=0)


def test_the_model_learns_from_the_exact_sum_of_all_clients(federation: Make) -> None:
    changes = {"p": 1.0, "q": 1.0, "noise_multiplier": 1e-3, "rounds": 3}
    limits = {index: {"budget": {"epsilon": 1e9, "delta": 1e-5}} for index in range(4)}
    told = {}
    for mode in (Mode.MASKED, Mode.UNTRUSTED):
        fed = federation(mode, sizes=(12, 7, 20, 9), policy=limits, **changes)
        told[mode] = fed.run()
        fed.grid.owners.close()
        for path in fed.folder.glob("*"):
            if path.is_file():
                path.unlink()
        fed.state.rename(fed.folder / f"server-{mode}")
    start = fed.initial()
    lengths = [np.linalg.norm(told[mode] - start) for mode in told]
    apart = np.linalg.norm(told[Mode.MASKED] - told[Mode.UNTRUSTED])
    assert apart < 0.02 * min(lengths)


@pytest.mark.parametrize("colluders", [1, 2])
def test_the_sum_carries_the_noise_of_all_shares(federation: Make, colluders: int) -> None:
    fed = federation(
        Mode.MASKED,
        sizes=FOUR,
        colluders=colluders,
        rounds=2,
        q=1e-9,
        p=1.0,
        update=Update(learning_rate=1.0),
    )
    scale = 1e-9 * sum(FOUR)
    std = 1.5 * np.sqrt(4 / (4 - colluders)) / scale
    for step in moves(fed):
        assert variance_p_value(step, std) > 1e-7
        assert variance_p_value(step, std / np.sqrt(4)) < 1e-7
        assert variance_p_value(step, 1.2 * std) < 1e-7


def test_every_client_is_asked_in_every_round_and_the_notary_is_no_client(federation: Make) -> None:
    fed = federation(Mode.MASKED, sizes=FOUR, rounds=5)
    fed.run()
    assert opened(fed) == stepped(fed) == 5
    assert rounds_sent(fed, "gradient") == {node: [1, 2, 3, 4, 5] for node in fed.nodes}
    assert not fed.grid.sent("invite")
    assert {event.node for event in fed.grid.sent("open")} == {NOTARY_NODE}
    assert [report.available for report in fed.reports] == [4] * 5


def test_dropouts_above_the_threshold_cost_nothing(federation: Make) -> None:
    fed = federation(Mode.MASKED, sizes=FOUR, threshold=3, rounds=6)
    fed.grid.interfere = lambda message, deliver: (
        None
        if kind_of(message) == "gradient"
        and message.metadata.dst_node_id == 1000 + round_of(message) % 4
        else deliver()
    )
    fed.run(timeout=0.1)
    assert opened(fed) == stepped(fed) == 6
    assert {report.answered for report in fed.reports} <= {3, 4}


def test_below_the_threshold_a_round_is_void_charged_and_not_opened(federation: Make) -> None:
    fed = federation(Mode.MASKED, sizes=FOUR, threshold=4, rounds=4)
    fed.grid.interfere = lambda message, deliver: (
        None
        if kind_of(message) == "gradient"
        and round_of(message) == 2
        and message.metadata.dst_node_id == 1000
        else deliver()
    )
    fed.run(timeout=0.1)
    assert opened(fed) == 3
    assert [event.round for event in fed.grid.sent("open")] == [1, 3, 4]
    assert [len(fed.entries(node, "charge")) for node in fed.nodes] == [3, 4, 4, 4]
