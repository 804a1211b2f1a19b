"""A server in mode masked that crashes, and goes on: no round is asked or opened twice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from flwr.app import Message

from coinflower.protocol.modes import Mode
from coinflower.server.checkpoint import CheckpointFolder
from tests.support.masked_rounds import FOUR, opened
from tests.support.memory_grid import Deliver, kind_of, round_of, rounds_sent

Make = Callable[..., Any]
CRASH = 3


class CrashError(Exception):
    """The server's process ends here."""


@pytest.mark.parametrize(
    "moment",
    [
        "before the notary is asked",
        "after the notary has opened",
        "before the new model is on disk",
        "after it",
    ],
)
def test_a_server_that_crashed_asks_for_no_round_twice_and_opens_none_twice(
    federation: Make, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    fed = federation(Mode.MASKED, sizes=FOUR, rounds=6)
    save = CheckpointFolder.save

    def interfere(message: Message, deliver: Deliver) -> Message:
        if (kind_of(message), round_of(message)) != ("open", CRASH):
            return deliver()
        if moment == "after the notary has opened":
            deliver()
        if moment in ("before the notary is asked", "after the notary has opened"):
            raise CrashError
        return deliver()

    def crash_or_save(folder: Any, checkpoint: Any) -> None:
        if moment == "before the new model is on disk" and checkpoint.round == CRASH:
            raise CrashError
        save(folder, checkpoint)
        if moment == "after it" and checkpoint.round == CRASH:
            raise CrashError

    fed.grid.interfere = interfere
    with monkeypatch.context() as patch:
        patch.setattr(CheckpointFolder, "save", crash_or_save)
        with pytest.raises(CrashError):
            fed.run()
    fed.grid.interfere = lambda _, deliver: deliver()
    fed.grid.owners.close()
    fed.run()
    asked = [event.round for event in fed.grid.sent("open")]
    assert asked == [1, 2, 3, 4, 5, 6]
    assert opened(fed) == (5 if moment == "before the notary is asked" else 6)
    assert rounds_sent(fed, "gradient") == {node: [1, 2, 3, 4, 5, 6] for node in fed.nodes}
    assert all(len(fed.entries(node, "charge")) == 6 for node in fed.nodes)
    assert [report.round for report in fed.reports] == [1, 2, 4, 5, 6]
