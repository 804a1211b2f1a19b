"""A second place that knows the ledger's last entry: a ledger that was set back is refused."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time

import pytest

from coinflower.accounting.analyses.certified import Certified
from coinflower.accounting.ledger.entries import Budget
from coinflower.accounting.ledger.errors import LedgerError
from coinflower.accounting.ledger.ledger import Ledger
from coinflower.accounting.mechanism import Round

TERMS = Certified(Round(p=0.5, q=0.1, d=20, noise_multiplier=1.5))
BUDGET = Budget(epsilon=1e6, delta=1e-5)


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "disk" / "ledger.db"
    path.parent.mkdir()
    with Ledger.create(path, "ward 7") as ledger:
        ledger.reserve("trial", TERMS, 100_000, BUDGET)
    return path


@pytest.fixture
def witness(tmp_path):
    (tmp_path / "other disk").mkdir()
    return tmp_path / "other disk" / "ward7.witness"


def seen_by(witness):
    return json.loads(witness.read_text())["entries"]


def test_a_restored_copy_is_refused_and_the_newer_one_goes_on(path, witness):
    with Ledger.open(path, witness=witness) as ledger:
        ledger.flip("trial", 1)
        ledger.claim_answer("trial", 1)
    shutil.copytree(path.parent, path.parent.with_name("snapshot"))
    with Ledger.open(path, witness=witness) as ledger:
        ledger.flip("trial", 2)
    path.parent.rename(path.parent.with_name("newer"))
    path.parent.with_name("snapshot").rename(path.parent)
    for _ in range(2):
        with pytest.raises(LedgerError, match=r"was set back.* Put the newer ledger back"):
            Ledger.open(path, witness=witness)
    with pytest.raises(LedgerError, match="was set back"):
        Ledger.open(path, read_only=True).require_witnessed(witness)
    with Ledger.open(path) as ledger, pytest.raises(LedgerError, match="was set back"):
        ledger.bear_witness(witness)
    path.parent.rename(path.parent.with_name("older"))
    path.parent.with_name("newer").rename(path.parent)
    with Ledger.open(path, witness=witness) as ledger:
        ledger.flip("trial", 3)


def test_a_ledger_that_went_another_way_is_refused_though_it_is_longer(path, witness):
    with Ledger.open(path, witness=witness) as ledger:
        ledger.flip("trial", 1)
    shutil.copy(path, path.with_name("copy.db"))
    with Ledger.open(path, witness=witness) as ledger:
        ledger.flip("trial", 2)
    with Ledger.open(path.with_name("copy.db")) as ledger:
        ledger.flip_all("trial", range(2, 50))
    with pytest.raises(LedgerError, match="was set back"):
        Ledger.open(path.with_name("copy.db"), witness=witness)


def test_a_fresh_ledger_is_not_that_of_the_witness(path, witness):
    Ledger.open(path, witness=witness).close()
    path.unlink()
    Ledger.create(path, "ward 7").close()
    with pytest.raises(LedgerError, match="is not the one that its witness"):
        Ledger.open(path, witness=witness)


def test_every_entry_is_seen_before_the_call_returns(path, witness):
    with Ledger.open(path, witness=witness) as ledger:
        for action in (
            lambda: ledger.flip("trial", 1),
            lambda: ledger.claim_answer("trial", 1),
            lambda: ledger.flip_all("trial", range(1, 30)),
            lambda: ledger.release("trial"),
        ):
            action()
            assert seen_by(witness) == ledger.verify().entries


def test_a_witness_that_cannot_be_written_lets_no_coin_out_and_none_is_lost(path, witness):
    with Ledger.open(path, witness=witness) as ledger:
        shutil.rmtree(witness.parent)
        for _ in range(2):
            with pytest.raises(LedgerError, match="stays charged; nothing leaves"):
                ledger.flip("trial", 1)
        assert ledger.tallies()[0].charged == 1
        witness.parent.mkdir()
        ledger.flip("trial", 1)  # recorded before, seen only now
        assert seen_by(witness) == ledger.verify().entries == 2


def test_a_witness_that_is_gone_is_missed_until_a_new_one_is_wanted(path, witness):
    Ledger.open(path, witness=witness).close()
    witness.unlink()
    with pytest.raises(LedgerError, match=r'make a new one with "coinflower ledger witness'):
        Ledger.open(path, witness=witness)
    with Ledger.open(path) as ledger:
        ledger.bear_witness(witness)
    Ledger.open(path, witness=witness).close()


@pytest.mark.parametrize(
    "content", [b"", b"{}", b"[1]", b"\xff", b'{"ledger": "a", "entries": "1", "head": "b"}']
)
def test_a_damaged_witness_is_refused(path, witness, content):
    witness.write_bytes(content)
    with pytest.raises(LedgerError, match="is damaged"):
        Ledger.open(path, witness=witness)


def test_the_ledger_is_no_witness_of_its_own(path):
    before = path.read_bytes()
    with pytest.raises(LedgerError, match="must not be the ledger itself"):
        Ledger.open(path, witness=path)
    assert path.read_bytes() == before


CHARGE_FOREVER = """
import sys
from pathlib import Path
from coinflower.accounting.ledger.ledger import Ledger
ledger = Ledger.open(sys.argv[1], witness=Path(sys.argv[2]))
round_ = int(sys.argv[3])
while True:
    ledger.flip("trial", round_)
    print(round_, flush=True)
    round_ += 1
"""


def test_killed_at_random_moments_the_witness_knows_all_that_left_and_no_more(path, witness):
    generator = random.Random(11)
    told = 0
    for _ in range(8):
        worker = subprocess.Popen(
            [sys.executable, "-c", CHARGE_FOREVER, path, witness, str(told + 1)],
            stdout=subprocess.PIPE,
            text=True,
        )
        first = worker.stdout.readline()
        time.sleep(generator.uniform(0.0, 0.1))
        os.kill(worker.pid, signal.SIGKILL)
        lines = [first, *worker.stdout.read().splitlines(keepends=True)]
        worker.wait()
        told = max(int(line) for line in lines if line.endswith("\n"))
        assert seen_by(witness) >= told + 1  # and the reservation
        Ledger.open(path, witness=witness).close()


def test_two_processes_do_not_move_the_witness_back(path, witness):
    workers = [
        subprocess.Popen(
            [
                sys.executable,
                "-c",
                CHARGE_FOREVER.replace("while True", "while round_ <= 150"),
                path,
                witness,
                "1",
            ],
            stdout=subprocess.DEVNULL,
        )
        for _ in range(2)
    ]
    before = 0
    while any(worker.poll() is None for worker in workers):
        now = seen_by(witness) if witness.exists() else 0
        assert now >= before
        before = now
    assert [worker.returncode for worker in workers] == [0, 0]
    assert seen_by(witness) == 151
