"""One ledger and several processes: a fork is refused, a restart flips new coins."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from scipy import stats

from coinflower.accounting.analyses.certified import Certified
from coinflower.accounting.ledger.entries import Budget
from coinflower.accounting.ledger.errors import LedgerError
from coinflower.accounting.ledger.ledger import Ledger
from coinflower.accounting.mechanism import Round

TERMS = Certified(Round(p=0.5, q=0.1, d=20, noise_multiplier=1.5))
ROUNDS = 400


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "ledger.db"
    with Ledger.create(path, "ward 7") as ledger:
        ledger.reserve("trial", TERMS, ROUNDS, Budget(epsilon=1e6, delta=1e-5))
    return path


def exit_code_of_child(ledger: Ledger) -> int:
    child = os.fork()
    if child == 0:
        try:
            ledger.flip("trial", 1)
        except LedgerError as error:
            os._exit(7 if "before a fork" in str(error) else 8)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_ledger_that_was_opened_before_a_fork_is_refused_after_it(path: Path) -> None:
    with Ledger.open(path) as ledger:
        assert exit_code_of_child(ledger) == 7
        assert ledger.tallies()[0].charged == 0
        ledger.flip("trial", 1)
        assert ledger.verify().entries == 2


CHARGE = """
import sys
from coinflower.accounting.ledger.ledger import Ledger
with Ledger.open(sys.argv[1]) as ledger:
    coins = ledger.flip_all("trial", range(1, int(sys.argv[2]) + 1))
print("".join("01"[coin] for coin in coins))
"""


def test_two_starts_from_the_same_file_flip_independent_coins(path: Path, tmp_path: Path) -> None:
    """Coins agree in half of the rounds; a false alarm once in 10⁶."""
    falls = []
    for name in ("one.db", "two.db"):
        shutil.copy(path, tmp_path / name)
        done = subprocess.run(
            [sys.executable, "-c", CHARGE, str(tmp_path / name), str(ROUNDS)],
            capture_output=True,
            text=True,
            check=True,
        )
        falls.append(done.stdout.strip())
    alike = sum(a == b for a, b in zip(*falls, strict=True))
    assert stats.binomtest(alike, ROUNDS).pvalue >= 1e-6
    assert stats.binomtest(ROUNDS, ROUNDS).pvalue < 1e-6
