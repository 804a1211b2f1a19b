"""A notary's record is made once, is never replaced in silence, and outlives crashes."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
from pathlib import Path
from typing import Any

import pytest

from coinflower.accounting.ledger.echo import NO_TOKEN
from coinflower.notary.record import Record
from coinflower.protocol.objections import Objection, ObjectionError

NOTARY = "a" * 64


@pytest.fixture
def path(tmp_path: Path) -> Path:
    Record.create(tmp_path / "record.db", NOTARY)
    return tmp_path / "record.db"


def note(record: Record, round_: int, terms: str = "t") -> None:
    record.note_opening(
        terms=terms,
        experiment="trial",
        round_=round_,
        seeds=[os.urandom(32), os.urandom(32)],
        tokens={b"o": b"ledger" + bytes(10) + b"token"},
    )


def test_a_record_is_for_its_owner_only_and_never_overwritten(path: Path) -> None:
    assert path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(ValueError, match="never overwritten"):
        Record.create(path, NOTARY)
    assert list(path.parent.iterdir()) == [path]


def test_what_is_written_outlives_a_power_cut(path: Path) -> None:
    record = Record.open(path, NOTARY)
    (synchronous,) = record._connection.execute("PRAGMA synchronous").fetchone()
    (journal,) = record._connection.execute("PRAGMA journal_mode").fetchone()
    assert (synchronous, journal) == (3, "delete")  # EXTRA: file, journal and folder are synced


def test_a_lost_record_is_not_made_anew(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="rounds might be opened twice"):
        Record.open(tmp_path / "record.db", NOTARY)


def test_the_record_of_another_notary_is_refused(path: Path) -> None:
    with pytest.raises(ValueError, match="belongs to a notary with another key"):
        Record.open(path, "b" * 64)


@pytest.mark.parametrize("content", [b"", b"not a database at all, but long enough", bytes(4096)])
def test_a_damaged_record_is_refused_and_kept(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(ValueError, match="cannot be used"):
        Record.open(path, NOTARY)
    assert path.read_bytes() == content


@pytest.mark.parametrize("mark", ["application_id = 7", "user_version = 2"])
def test_a_sound_file_that_is_no_record_of_this_version_is_refused(path: Path, mark: str) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute(f"PRAGMA {mark}")
    with pytest.raises(ValueError, match="not a record of this version"):
        Record.open(path, NOTARY)


def test_a_record_whose_tables_are_others_is_refused(path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("ALTER TABLE openings RENAME COLUMN owners TO owner_")
    with pytest.raises(ValueError, match="cannot be used"):
        Record.open(path, NOTARY)


def test_a_clock_that_is_set_back_changes_nothing_about_what_was_opened(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = Record.open(path, NOTARY)
    note(record, 2)
    monkeypatch.setattr("coinflower.notary.record._now", lambda: "1970-01-01T00:00:00.000+00:00")
    for round_ in (1, 2):
        with pytest.raises(ObjectionError) as caught:
            note(record, round_)
        assert caught.value.objection is Objection.ROUND
    note(record, 3)
    (found,) = record.opened()
    assert (found.rounds, found.last_round) == (2, 3)


def test_another_file_in_its_place_is_noticed_before_anything_is_opened(path: Path) -> None:
    record = Record.open(path, NOTARY)
    note(record, 1)
    path.rename(path.with_name("away.db"))
    with pytest.raises(ObjectionError) as caught:
        note(record, 2)
    assert caught.value.objection is Objection.RECORD
    Record.create(path, NOTARY)
    with pytest.raises(ObjectionError):
        note(record, 2)


def test_a_round_that_fails_half_way_leaves_no_trace(path: Path) -> None:
    record = Record.open(path, NOTARY)
    tokens: dict[bytes, Any] = {b"o": None}
    with pytest.raises(TypeError):
        record.note_opening(terms="t", experiment="trial", round_=1, seeds=[b"s"], tokens=tokens)
    assert record.opened() == []
    note(record, 1)


def test_of_many_that_ask_at_once_one_opens_the_round(path: Path) -> None:
    opened: list[int] = []
    objections: list[Objection] = []

    def ask(index: int) -> None:
        try:
            note(Record.open(path, NOTARY), 1)
            opened.append(index)
        except ObjectionError as error:
            objections.append(error.objection)

    threads = [threading.Thread(target=ask, args=(index,)) for index in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(opened) == 1
    assert objections == [Objection.ROUND] * 7


def test_it_adds_up_what_was_opened(path: Path) -> None:
    record = Record.open(path, NOTARY)
    for round_ in (1, 2, 5):
        note(record, round_)
    note(record, 3, terms="u")
    first, second = Record.open(path, NOTARY, read_only=True).opened()
    assert (first.terms, first.rounds, first.last_round, first.fewest_owners) == ("t", 3, 5, 2)
    assert (second.terms, second.rounds, second.last_round) == ("u", 1, 3)
    assert record.witnesses() == 1
    assert record.token(b"o", b"none of it") == NO_TOKEN


def test_who_only_looks_changes_nothing(path: Path) -> None:
    record = Record.open(path, NOTARY, read_only=True)
    with pytest.raises(ObjectionError):
        note(record, 1)
    with sqlite3.connect(path) as connection:
        assert connection.execute("SELECT count(*) FROM openings").fetchone() == (0,)


def test_an_older_copy_that_is_written_over_it_is_noticed_while_it_runs(path: Path) -> None:
    record = Record.open(path, NOTARY)
    note(record, 1)
    older = path.read_bytes()
    note(record, 2)
    path.write_bytes(older)
    for round_ in (2, 3):
        with pytest.raises(ObjectionError) as caught:
            note(record, round_)
        assert caught.value.objection is Objection.RECORD


@pytest.mark.parametrize("page", range(5))
def test_damage_while_it_runs_opens_no_round_again(path: Path, page: int) -> None:
    record = Record.open(path, NOTARY)
    note(record, 1)
    content = bytearray(path.read_bytes())
    content[page * 4096 : (page + 1) * 4096] = b"\xff" * 4096
    path.write_bytes(content)
    with pytest.raises(ObjectionError):
        note(record, 1)
    record.close()
    with pytest.raises(ValueError, match="cannot be used"):
        Record.open(path, NOTARY)
