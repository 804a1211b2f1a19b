"""Backups: whole copies that know what they are and cannot be charged."""

import os
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from coinflower.accounting.analyses.certified import Certified
from coinflower.accounting.ledger.backup import adopt, back_up
from coinflower.accounting.ledger.entries import Budget
from coinflower.accounting.ledger.errors import LedgerCorruptError, LedgerError
from coinflower.accounting.ledger.ledger import Ledger
from coinflower.accounting.mechanism import Round

TERMS = Certified(Round(p=0.5, q=0.1, d=20, noise_multiplier=1.5))
BUDGET = Budget(epsilon=1e6, delta=1e-5)


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "ledger.db"
    with Ledger.create(path, "ward 7") as ledger:
        ledger.reserve("trial", TERMS, 100_000, BUDGET)
        ledger.flip_all("trial", range(1, 11))
    return path


@pytest.fixture
def copy(path, tmp_path):
    back_up(path, tmp_path / "backup.db")
    return tmp_path / "backup.db"


def test_a_backup_holds_everything_and_says_what_it_is(path, copy):
    with (
        Ledger.open(path, read_only=True) as ledger,
        Ledger.open(copy, read_only=True) as backup,
    ):
        assert list(backup.history()) == list(ledger.history())
        assert backup.verify() == ledger.verify()
        assert backup.caveat.startswith("This is a backup, made at 20")
        assert (ledger.caveat, ledger.backup_made) == ("", None)
    assert copy.stat().st_mode & 0o777 == 0o600
    assert sorted(found.name for found in copy.parent.glob("*backup*")) == ["backup.db"]


def test_a_backup_takes_no_charge_until_it_is_adopted(copy):
    before = copy.read_bytes()
    for _ in range(2):
        with pytest.raises(LedgerError, match=r"is a backup, made at .* and takes no charge"):
            Ledger.open(copy)
    assert copy.read_bytes() == before
    assert adopt(copy).startswith("20")
    with Ledger.open(copy) as ledger:
        ledger.flip("trial", 11)
        assert ledger.caveat == ""
    with pytest.raises(LedgerError, match="is a ledger already"):
        adopt(copy)


def test_a_backup_of_a_backup_is_of_the_first_ones_time(copy, tmp_path):
    back_up(copy, tmp_path / "second.db")
    with (
        Ledger.open(copy, read_only=True) as one,
        Ledger.open(tmp_path / "second.db", read_only=True) as two,
    ):
        assert one.backup_made == two.backup_made is not None


def test_a_backup_overwrites_nothing(path, copy):
    before = copy.read_bytes(), path.read_bytes()
    for target in (copy, path):
        with pytest.raises(LedgerError, match="overwrites nothing"):
            back_up(path, target)
    assert (copy.read_bytes(), path.read_bytes()) == before


def test_a_folder_that_is_not_there_is_named(path, tmp_path):
    with pytest.raises(LedgerError, match="could not be made"):
        back_up(path, tmp_path / "nowhere" / "backup.db")


def test_a_damaged_ledger_is_not_backed_up(path, tmp_path):
    outside = sqlite3.connect(path)
    outside.execute("UPDATE tallies SET charged = 3")
    outside.commit()
    outside.close()
    with pytest.raises(LedgerCorruptError):
        back_up(path, tmp_path / "backup.db")
    assert os.listdir(tmp_path) == ["ledger.db"]


def test_an_older_ledger_is_backed_up_with_its_log(tmp_path):
    made = Path(__file__).parent / "format-1"
    for part in made.glob("killed.db*"):
        shutil.copy(part, tmp_path / part.name)
    back_up(tmp_path / "killed.db", tmp_path / "backup.db")
    with Ledger.open(tmp_path / "backup.db", read_only=True) as backup:
        assert backup.verify().entries == 12
        assert "backup" in backup.caveat
    with Ledger.open(tmp_path / "killed.db", read_only=True) as ledger:
        assert "older format" in ledger.caveat


CHARGE = """
import sys
from coinflower.accounting.ledger.ledger import Ledger
with Ledger.open(sys.argv[1]) as ledger:
    for round_ in range(11, 400):
        ledger.flip("trial", round_)
        print(round_, flush=True)
"""


def test_backups_of_a_ledger_in_use_are_whole(path, tmp_path):
    worker = subprocess.Popen(
        [sys.executable, "-c", CHARGE, path], stdout=subprocess.PIPE, text=True
    )
    for number, line in enumerate(worker.stdout):
        if number % 20 == 0:
            target = tmp_path / f"backup-{number}.db"
            back_up(path, target)
            with Ledger.open(target, read_only=True) as backup:
                assert backup.tallies()[0].charged >= int(line)
    assert worker.wait() == 0
