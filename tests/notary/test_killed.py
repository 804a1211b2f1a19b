"""A notary that is killed at any moment tells the masks of a round at most once."""

from __future__ import annotations

import multiprocessing
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from coinflower.notary import record as notary_record
from coinflower.notary.record import Record
from coinflower.protocol.objections import Objection
from tests.support.notaries import make_notary
from tests.support.tickets import LENGTH, OWNERS, TERMS, objection, tickets_for


def _die(*_: Any, **__: Any) -> Any:
    os.kill(os.getpid(), signal.SIGKILL)


def _note_and_die(record: Record, **opening: Any) -> None:
    _NOTE(record, **opening)
    _die()


_NOTE = Record.note_opening
MOMENTS = {
    "before it writes anything": (Record, "note_opening", _die),
    "before what it wrote is durable": (notary_record, "_identity", _die),
    "before its answer leaves": (Record, "note_opening", _note_and_die),
}


def _open_and_die(folder: Path, moment: str, tickets: bytes) -> None:
    notary = make_notary(folder, OWNERS)
    setattr(*MOMENTS[moment])
    notary.open(TERMS, 1, LENGTH, tickets)


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_notary_that_was_killed_opens_what_it_did_not_write_down_and_nothing_else(
    tmp_path: Path, moment: str
) -> None:
    make_notary(tmp_path, OWNERS)
    tickets, _ = tickets_for(1)
    killed = multiprocessing.get_context("fork").Process(
        target=_open_and_die, args=(tmp_path, moment, tickets)
    )
    killed.start()
    killed.join()
    assert killed.exitcode == -signal.SIGKILL
    again = make_notary(tmp_path, OWNERS)
    if moment == "before its answer leaves":
        for asked in (tickets, tickets_for(1, OWNERS[:3])[0]):
            assert objection(again, 1, asked).objection is Objection.ROUND
    else:
        again.open(TERMS, 1, LENGTH, tickets)
    assert objection(again, 1, tickets).objection is Objection.ROUND
    again.open(TERMS, 2, LENGTH, tickets_for(2)[0])
