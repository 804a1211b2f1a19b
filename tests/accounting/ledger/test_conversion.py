"""Ledgers of format 1, as that version left them: closed, or killed with their log beside them."""

import shutil
import sqlite3
from pathlib import Path

import pytest

from coinflower.accounting.analyses.certified import Certified
from coinflower.accounting.ledger import stops as ledger_stops
from coinflower.accounting.ledger.entries import Budget
from coinflower.accounting.ledger.errors import LedgerError
from coinflower.accounting.ledger.ledger import Ledger
from coinflower.accounting.mechanism import Round

TERMS = Certified(Round(p=0.5, q=0.1, d=20, noise_multiplier=1.5))
MADE = Path(__file__).parent / "format-1"


@pytest.fixture(params=["closed.db", "killed.db"])
def path(request, tmp_path):
    """A reservation, ten charges, an answer and an experiment that was left."""
    for part in MADE.glob(f"{request.param}*"):
        shutil.copy(part, tmp_path / part.name)
    return tmp_path / request.param


def coins_of(ledger):
    return {entry.round: entry.coin for entry in ledger.history() if entry.kind == "charge"}


def naked(path):
    """Return a copy of the file alone."""
    return Path(shutil.copy(path, path.with_name("naked.db")))


def test_an_older_ledger_keeps_all_it_has_and_takes_more(path):
    with Ledger.open(path, read_only=True) as looked_at:
        before, spent = list(looked_at.history()), looked_at.spent(1e-5)
        assert looked_at.verify().entries == 12
    with Ledger.open(path) as ledger:
        assert list(ledger.history()) == before
        assert ledger.spent(1e-5) == spent > 0
        assert ledger.flip_all("trial", range(1, 11)) == list(coins_of(ledger).values())
        assert not ledger.claim_answer("trial", 1)
        ledger.flip("trial", 11)
        with pytest.raises(LedgerError, match="stopped"):
            ledger.reserve("left", TERMS, 1, Budget(epsilon=1e6, delta=1e-5))
        copy = naked(path)
    with Ledger.open(copy, read_only=True) as alone:
        assert alone.verify().entries == 13
    assert not list(path.parent.glob("*-wal"))


def test_an_older_program_refuses_what_was_converted(path):
    Ledger.open(path).close()
    outside = sqlite3.connect(path)
    assert outside.execute("PRAGMA user_version").fetchone() == (2,)
    assert outside.execute("PRAGMA journal_mode").fetchone() == ("delete",)
    outside.close()


def test_looking_converts_nothing(path):
    before = path.read_bytes()
    for _ in range(2):
        Ledger.open(path, read_only=True).close()
    ledger_stops.read_stops(path)
    outside = sqlite3.connect(path)
    assert outside.execute("PRAGMA user_version").fetchone() == (1,)
    outside.close()
    if path.name == "closed.db":
        assert path.read_bytes() == before


def test_one_that_is_in_use_is_not_converted_under_the_other(path):
    other = sqlite3.connect(path)
    other.execute("BEGIN")
    other.execute("SELECT * FROM entries").fetchone()
    with pytest.raises(LedgerError, match="stop all clients of it"):
        Ledger.open(path)
    other.close()
    Ledger.open(path).close()


def test_a_conversion_that_was_cut_short_goes_on(path):
    outside = sqlite3.connect(path)
    outside.execute("PRAGMA journal_mode = DELETE")
    outside.close()
    with Ledger.open(path) as ledger:
        assert ledger.verify().entries == 12


def test_the_owner_is_told_what_a_copy_of_the_older_kind_may_lack(path, caplog):
    Ledger.open(path).close()
    assert "converted with its 12 entries" in caplog.text
    assert "If the file was copied while a client ran, it may miss some" in caplog.text


def test_a_stop_can_be_made_before_a_conversion(path):
    ledger_stops.pause(path)
    with Ledger.open(path) as ledger, pytest.raises(LedgerError, match="stopped"):
        ledger.flip("trial", 11)
