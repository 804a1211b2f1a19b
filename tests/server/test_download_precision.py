"""The model in half precision on its way to clients; the server keeps all of it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from flwr.app import ConfigRecord, Message

from coinflower.protocol import messages
from coinflower.protocol.modes import Mode
from tests.support.memory_grid import Federation, kind_of

Make = Callable[..., Federation]


def watched(fed: Federation) -> list[ConfigRecord]:
    """Return the questions with a model that a federation will have asked."""
    asked: list[ConfigRecord] = []

    def note(message: Message) -> None:
        if kind_of(message) == "gradient":
            asked.append(message.content.config_records[messages.ASK])

    fed.grid.before_push = note
    return asked


def test_clients_get_half_the_bytes_and_the_server_keeps_them_all(federation: Make) -> None:
    fed = federation(Mode.LOCAL_ONLY, rounds=2)
    asked = watched(fed)
    weights = fed.run(download_precision="half")
    assert len(asked) == 2 * len(fed.nodes)
    for ask in asked:
        assert messages.WEIGHTS not in ask
        assert len(ask[messages.HALF_WEIGHTS]) == 2 * len(weights)  # type: ignore[arg-type]
    assert [report.answered for report in fed.reports] == [len(fed.nodes)] * 2
    # It stepped from what it has, not from what it told.
    assert not np.array_equal(weights, weights.astype(np.float16).astype(np.float32))


def test_the_first_round_asks_about_the_model_as_it_is_rounded(federation: Make) -> None:
    fed = federation(Mode.LOCAL_ONLY, rounds=1)
    asked = watched(fed)
    fed.run(download_precision="half")
    told = asked[0][messages.HALF_WEIGHTS]
    assert told == fed.initial().astype("<f2").tobytes()


def test_a_model_that_outgrows_half_precision_stops_the_run_with_a_sentence(
    federation: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    fed = federation(rounds=2)
    asked = watched(fed)
    large = fed.initial() * np.float32(1e6)
    monkeypatch.setattr(Federation, "initial", lambda _: large)
    with pytest.raises(ValueError, match="half precision ends at 65504"):
        fed.run(download_precision="half")
    assert not asked
