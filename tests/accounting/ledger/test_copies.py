"""A copy of the ledger's file alone holds every charge whose coin had left, or is refused."""

import itertools
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest

from coinflower.accounting.analyses.certified import Certified
from coinflower.accounting.ledger.entries import Budget
from coinflower.accounting.ledger.errors import LedgerError
from coinflower.accounting.ledger.ledger import Ledger
from coinflower.accounting.mechanism import Round
from tests.support.waiting import PATIENCE

TERMS = Certified(Round(p=0.5, q=0.1, d=20, noise_multiplier=1.5))
BUDGET = Budget(epsilon=1e6, delta=1e-5)
PAGE = 4096

CHARGE_FOREVER = """
import sys
from coinflower.accounting.ledger.ledger import Ledger
ledger = Ledger.open(sys.argv[1])
round_ = 1
while True:
    ledger.flip("trial", round_)
    print(round_, flush=True)
    if round_ % 3 == 0:
        ledger.claim_answer("trial", round_)
    round_ += 1
"""


@pytest.fixture
def tmp_path():
    """A folder on a disk: copies and kills must fall into writes, for which memory is too quick."""
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "ledger.db"
    with Ledger.create(path, "ward 7") as ledger:
        ledger.reserve("trial", TERMS, 100_000, BUDGET)
    return path


def charged_in(content, folder):
    """Return how many charges a copy shows, None if it is refused."""
    copy = folder / "copy.db"
    copy.unlink(missing_ok=True)
    copy.write_bytes(content)
    try:
        with Ledger.open(copy, read_only=True) as ledger:
            return sum(tally.charged for tally in ledger.tallies())
    except LedgerError:
        return None


class Worker:
    """A process that charges round after round, and what it has told of."""

    def __init__(self, path):
        self.told = 0
        self._process = subprocess.Popen(
            [sys.executable, "-c", CHARGE_FOREVER, path], stdout=subprocess.PIPE, text=True
        )
        self._reached = threading.Condition()
        self._listener = threading.Thread(target=self._listen)
        self._listener.start()

    def _listen(self):
        for line in self._process.stdout:
            with self._reached:
                self.told = int(line)
                self._reached.notify_all()

    def await_round(self, round_):
        with self._reached:
            assert self._reached.wait_for(lambda: self.told >= round_, PATIENCE)

    def kill(self):
        os.kill(self._process.pid, signal.SIGKILL)
        self._listener.join()
        self._process.wait()


@pytest.fixture
def worker(path):
    worker = Worker(path)
    yield worker
    worker.kill()


def read_slowly(path, generator):
    """Read page by page with pauses, so that several commits fall into one copy."""
    content = bytearray()
    with path.open("rb", buffering=0) as file:
        while block := file.read(PAGE):
            content += block
            threading.Event().wait(generator.choice([0, 0, 0.002]))
    return bytes(content)


def test_copies_of_a_running_ledger_hold_what_left_before_or_are_refused(path, worker, tmp_path):
    generator = random.Random(3)
    shown = 0
    for turn in range(120):
        worker.await_round(3 * turn + 1)
        told = worker.told
        content = read_slowly(path, generator) if turn % 2 else path.read_bytes()
        charged = charged_in(content, tmp_path)
        assert charged is None or charged >= told
        shown += charged is not None
    assert shown > 0, "a copy that is whole must not be refused"


def test_killed_and_copied_without_its_journal_it_shows_every_round_or_is_refused(path, tmp_path):
    for turn in range(6):
        worker = Worker(path)
        worker.await_round(10 * (turn + 1))
        worker.kill()
        charged = charged_in(path.read_bytes(), tmp_path)
        assert charged is None or charged >= worker.told
    with Ledger.open(path) as ledger:  # with the journal it goes on
        assert ledger.tallies()[0].charged >= worker.told


def states_of(path, rounds):
    """Return the file after every charge."""
    states = []
    with Ledger.open(path) as ledger:
        for round_ in range(1, rounds + 1):
            ledger.flip("trial", round_)
            # Not read here: closing the file would give up SQLite's locks on it.
            subprocess.run(["cp", path, path.with_name("state")], check=True)
            states.append(path.with_name("state").read_bytes())
    return states


def pages_of(content):
    return [content[start : start + PAGE] for start in range(0, len(content), PAGE)]


def test_every_mixture_of_pages_before_and_after_a_charge_is_whole_or_refused(path, tmp_path):
    """Whichever writes of a commit a copy has caught, in whatever order they were made."""
    generator = random.Random(4)
    states = states_of(path, 60)
    refused = 0
    for told, (before, after) in enumerate(itertools.pairwise(states), start=1):
        old, new = pages_of(before), pages_of(after)
        old += [None] * (len(new) - len(old))
        changed = [page for page in range(len(new)) if old[page] != new[page]]
        assert len(changed) >= 3
        for _ in range(8):
            caught = {page for page in changed if generator.random() < 0.5}
            mixed = [new[page] if page in caught else old[page] for page in range(len(new))]
            # A file grows from its end, and a page that was not written yet reads as zeros.
            while mixed[-1] is None:
                mixed.pop()
            content = b"".join(page or bytes(PAGE) for page in mixed)
            charged = charged_in(content, tmp_path)
            assert charged is None or charged >= told
            refused += charged is None
    assert refused > 100


def test_every_mixture_of_several_commits_is_whole_or_refused(path, tmp_path):
    """As a slow copy sees it: each page no older than when the copy began."""
    generator = random.Random(5)
    states = [pages_of(state) for state in states_of(path, 80)]
    for _ in range(300):
        first = generator.randrange(len(states) - 1)
        last = min(len(states) - 1, first + generator.randint(1, 12))
        times = sorted(generator.randint(first, last) for _ in states[last])
        content = b"".join(
            states[time][page] for page, time in enumerate(times) if page < len(states[time])
        )
        charged = charged_in(content, tmp_path)
        assert charged is None or charged >= first + 1


def test_a_ledger_that_was_moved_away_leaves_no_trap_for_a_new_one(path):
    while not (journal := path.with_name("ledger.db-journal")).exists() or not hot(journal):
        worker = Worker(path)
        worker.await_round(2)
        worker.kill()
    shutil.move(path, path.with_name("moved.db"))
    with pytest.raises(LedgerError, match="belongs to a ledger that lay here"):
        Ledger.create(path, "ward 7")


def hot(journal):
    return journal.read_bytes()[:1] not in (b"", b"\0")
