"""The ledger when things go wrong: clear errors, no charge, never a fresh ledger in silence."""

import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import time

import pytest

from coinflower.accounting.analyses.certified import Certified
from coinflower.accounting.ledger import stops as ledger_stops
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
        ledger.flip_all("trial", range(1, 51))
    return path


CHARGE_FOREVER = """
import sys
from coinflower.accounting.ledger.ledger import Ledger
ledger = Ledger.open(sys.argv[1])
round_ = int(sys.argv[2])
while True:
    coin = ledger.flip("trial", round_)
    sys.stdout.write(f"{round_} {int(coin)}\\n")
    sys.stdout.flush()
    round_ += 1
"""


def test_killed_at_random_moments_nothing_is_lost_and_nothing_doubled(path):
    generator = random.Random(7)
    told = {}
    following = 51
    for _ in range(8):
        worker = subprocess.Popen(
            [sys.executable, "-c", CHARGE_FOREVER, path, str(following)],
            stdout=subprocess.PIPE,
            text=True,
        )
        worker.stdout.readline_first = worker.stdout.readline()
        time.sleep(generator.uniform(0.0, 0.15))
        os.kill(worker.pid, signal.SIGKILL)
        lines = [worker.stdout.readline_first, *worker.stdout.read().splitlines()]
        worker.wait()
        for line in lines:
            parts = line.split()
            if len(parts) == 2:
                round_, coin = map(int, parts)
                assert told.setdefault(round_, coin) == coin
        following = max(told)  # ask the last round told of once more
    with Ledger.open(path) as ledger:
        charged = [entry for entry in ledger.history() if entry.kind == "charge"]
        recorded = {entry.round: int(entry.coin) for entry in charged}
        assert len(charged) == len(recorded)
        assert told.items() <= recorded.items()
        assert ledger.tallies()[0].charged == len(charged)
        # What was on disk but not yet told is at most one round a kill.
        assert len(recorded) - 50 - len(told) <= 8
        repeated = {round_: int(ledger.flip("trial", round_)) for round_ in told}
        assert repeated == told


def test_a_missing_ledger_is_not_replaced(tmp_path):
    with pytest.raises(LedgerError, match="There is no ledger at"):
        Ledger.open(tmp_path / "gone.db")
    assert not list(tmp_path.iterdir())


def test_an_existing_file_is_never_overwritten(path):
    before = {entry: entry.read_bytes() for entry in path.parent.iterdir()}
    with pytest.raises(LedgerError, match="never overwritten"):
        Ledger.create(path, "ward 7")
    assert {entry: entry.read_bytes() for entry in path.parent.iterdir()} == before


def test_an_empty_file_is_not_a_ledger(tmp_path):
    (tmp_path / "empty.db").touch()
    with pytest.raises(LedgerCorruptError, match="empty file"):
        Ledger.open(tmp_path / "empty.db")


@pytest.mark.parametrize("content", [b"hello" * 1000, b"SQLite format 3\0" + b"\1" * 5000])
def test_garbage_is_not_a_ledger(tmp_path, content):
    (tmp_path / "junk.db").write_bytes(content)
    with pytest.raises(LedgerCorruptError):
        Ledger.open(tmp_path / "junk.db")


def test_another_programs_database_is_not_a_ledger(tmp_path):
    connection = sqlite3.connect(tmp_path / "other.db")
    connection.execute("CREATE TABLE entries (a)")
    connection.commit()
    with pytest.raises(LedgerCorruptError, match="is not a ledger"):
        Ledger.open(tmp_path / "other.db")


@pytest.mark.parametrize("share", [0.2, 0.5, 0.9])
def test_a_truncated_file_is_refused(path, share):
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * share)])
    with pytest.raises(LedgerCorruptError):
        Ledger.open(path)


def test_flipped_bytes_are_found(path):
    content = bytearray(path.read_bytes())
    where = content.rindex(b"charge")
    content[where - 40 : where - 39] = bytes([content[where - 40] ^ 0xFF])
    path.write_bytes(bytes(content))
    with pytest.raises(LedgerError):
        Ledger.open(path)


@pytest.mark.parametrize(
    "edit",
    [
        "UPDATE entries SET coin = 1 - coin WHERE seq = 20",
        "DELETE FROM entries WHERE seq = 20",
        "DELETE FROM entries WHERE seq = 51",
        "UPDATE entries SET terms = replace(terms, '1.5', '9.5') WHERE seq = 1",
        "UPDATE tallies SET charged = 3",
        "UPDATE tallies SET secure = 0",
        "UPDATE tallies SET terms = replace(terms, '1.5', '9.5')",
        "UPDATE about SET value = 'another data set' WHERE key = 'data_set'",
        "DELETE FROM about",
        "INSERT INTO entries SELECT 52, kind, experiment, 77, terms, rounds, coin, secure, at, "
        "hash FROM entries WHERE seq = 51",
    ],
)
def test_every_edit_shows(path, edit):
    outside = sqlite3.connect(path)
    outside.execute("DROP TRIGGER entries_are_never_changed")
    outside.execute("DROP TRIGGER entries_are_never_deleted")
    outside.execute(edit)
    outside.commit()
    outside.close()
    with pytest.raises(LedgerCorruptError, match="cannot be trusted"):
        Ledger.open(path)


@pytest.mark.parametrize(
    "extra",
    [
        "CREATE TRIGGER forgets AFTER INSERT ON entries BEGIN "
        "UPDATE tallies SET charged = charged - 1; END",
        "CREATE TRIGGER forgets BEFORE INSERT ON entries WHEN NEW.kind = 'charge' BEGIN "
        "SELECT RAISE(IGNORE); END",
        "CREATE TRIGGER forgets AFTER INSERT ON about BEGIN DELETE FROM tallies; END",
        "CREATE TABLE more (a)",
        "CREATE VIEW more AS SELECT * FROM entries",
        "CREATE INDEX more ON entries (at)",
        "DROP TRIGGER stopped_is_stopped",
        "DROP TABLE stops",
        "INSERT INTO stops VALUES (x'00', 'long ago')",
        "INSERT INTO stops VALUES ('study', x'00')",
    ],
)
@pytest.mark.parametrize("stops", [True, False])
def test_nothing_may_be_added_to_a_ledgers_tables_and_triggers(path, extra, stops):
    if stops:
        ledger_stops.leave(path, "left")
        Ledger.open(path).close()
    elif "stop" in extra:
        return
    outside = sqlite3.connect(path)
    outside.execute(extra)
    outside.commit()
    outside.close()
    for read_only in (True, False):
        with pytest.raises(LedgerCorruptError, match="cannot be trusted"):
            Ledger.open(path, read_only=read_only)


def test_notes_that_sqlite_makes_on_searching_do_no_harm(path):
    outside = sqlite3.connect(path)
    outside.execute("ANALYZE")
    outside.commit()
    outside.close()
    Ledger.open(path).close()


def test_a_newer_ledger_is_left_alone(path):
    outside = sqlite3.connect(path)
    outside.execute("PRAGMA user_version = 99")
    outside.close()
    with pytest.raises(LedgerError, match="newer Coinflower"):
        Ledger.open(path)


def test_another_data_sets_ledger_is_refused(path):
    with pytest.raises(LedgerError, match="belongs to data set 'ward 7', not 'ward 8'"):
        Ledger.open(path, data_set="ward 8")


def test_a_full_disk_charges_nothing(path):
    with Ledger.open(path) as ledger:
        pages = ledger._connection.execute("PRAGMA page_count").fetchone()[0]
        ledger._connection.execute(f"PRAGMA max_page_count = {pages}")
        before = ledger.spent(1e-5)
        with pytest.raises(LedgerError, match="disk is full"):
            ledger.flip_all("trial", range(51, 5000))
        assert ledger.spent(1e-5) == before
        ledger._connection.execute("PRAGMA max_page_count = 1000000")
        ledger.flip("trial", 51)
        assert ledger.verify().entries == 52


def test_an_answer_that_cannot_be_noted_does_not_say_that_nothing_was_charged(path):
    with Ledger.open(path) as ledger:
        ledger._connection.execute("PRAGMA query_only = ON")
        with pytest.raises(LedgerError, match="The round stays charged and is not answered"):
            ledger.claim_answer("trial", 1)
        with pytest.raises(LedgerError, match="read-only") as raised:
            ledger.release("trial")
    assert str(raised.value).endswith("No round was given back.")


def test_looking_that_fails_says_nothing_of_charges(path):
    path.write_bytes(b"SQLite format 3\0" + b"\1" * 5000)
    with pytest.raises(LedgerCorruptError) as raised:
        Ledger.open(path, read_only=True)
    assert "charged" not in str(raised.value)


def test_no_damaged_ledger_is_to_be_replaced_by_an_older_one(path):
    path.write_bytes(path.read_bytes()[:9000])
    with pytest.raises(LedgerCorruptError, match="Keep the file") as raised:
        Ledger.open(path)
    assert "count the budget as spent (docs/data-owners.md)" in str(raised.value)


@pytest.mark.parametrize("read_only", [True, False])
def test_a_write_ahead_log_that_another_program_began_is_refused(path, read_only):
    outside = sqlite3.connect(path)
    outside.execute("PRAGMA journal_mode = WAL")
    outside.close()
    with pytest.raises(LedgerCorruptError, match="file alone may miss entries"):
        Ledger.open(path, read_only=read_only)
    outside = sqlite3.connect(path)
    outside.execute("PRAGMA journal_mode = DELETE")
    outside.close()
    assert Ledger.open(path, read_only=read_only).verify().entries == 51


def test_a_file_that_may_not_grow_charges_nothing(path):
    code = (
        "import resource, signal, sys\nfrom coinflower.accounting.ledger.ledger import Ledger\n"
        "from coinflower.accounting.ledger.errors import LedgerError\n"
        "ledger = Ledger.open(sys.argv[1])\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192))\n"
        "try:\n    ledger.flip_all('trial', range(51, 5000))\n"
        "except LedgerError as error:\n    print('refused', error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, path], check=True, capture_output=True, text=True
    )
    assert "Nothing was charged" in done.stdout
    with Ledger.open(path) as ledger:
        assert ledger.tallies()[0].charged == 50


@pytest.mark.skipif(shutil.which("setpriv") is None, reason="needs setpriv to drop root's rights")
def test_a_read_only_ledger_can_be_shown_but_not_charged(path):
    path.chmod(0o444)
    path.parent.chmod(0o555)
    for parent in path.parents[1:3]:
        parent.chmod(0o755)
    code = (
        "import sys\nfrom coinflower.accounting.ledger.ledger import Ledger\n"
        "from coinflower.accounting.ledger.errors import LedgerError\n"
        "shown = Ledger.open(sys.argv[1], read_only=True)\nprint(shown.tallies()[0].charged)\n"
        "try:\n    Ledger.open(sys.argv[1]).flip('trial', 51)\n"
        "except LedgerError as error:\n    print('refused', error)\n"
    )
    command = [sys.executable, "-c", code, str(path)]
    if os.geteuid() == 0:
        drop = ["--bounding-set=-all", "--inh-caps=-all", "--ambient-caps=-all"]
        command = ["setpriv", *drop, "--reuid=0", "--regid=0", "--clear-groups", *command]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    path.parent.chmod(0o755)
    assert done.stdout.startswith("50\nrefused"), done.stdout + done.stderr
    assert "read-only" in done.stdout or "permissions" in done.stdout


def test_a_layout_that_is_no_text_is_damage(tmp_path):
    path = tmp_path / "ledger.db"
    Ledger.create(path, "ward 7").close()
    content = path.read_bytes()
    path.write_bytes(content.replace(b"CREATE TRIGGER entries", b"CREATE TRIGGER \xd4ntries", 1))
    assert path.read_bytes() != content
    with pytest.raises(LedgerCorruptError, match="is damaged"):
        Ledger.open(path)


CLOSE_IN_USE = """
import sys, threading
from coinflower.accounting.ledger.errors import LedgerCorruptError, LedgerError
from coinflower.accounting.ledger.ledger import Ledger

said = []


def use(ledger, begun):
    try:
        while True:
            ledger.history()
            ledger.verify()
            ledger.tallies()
            ledger.caveat
            begun.set()
    except LedgerError as error:
        said.append(error)


for _ in range(40):
    ledger, begun = Ledger.open(sys.argv[1]), threading.Event()
    user = threading.Thread(target=use, args=(ledger, begun))
    user.start()
    begun.wait()
    ledger.close()
    user.join()
assert len(said) == 40
assert not any(isinstance(error, LedgerCorruptError) for error in said), said
assert {"this program has closed it, as it stops" in str(error) for error in said} == {True}
"""


def test_a_ledger_that_is_closed_in_use_says_so_and_crashes_nothing(path):
    done = subprocess.run([sys.executable, "-c", CLOSE_IN_USE, path], check=False)
    assert done.returncode == 0
