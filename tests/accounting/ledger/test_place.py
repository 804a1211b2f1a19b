"""One ledger, one file, one name: anything else is refused before a coin is flipped."""

import os
import shutil
import subprocess
import sys

import pytest

from coinflower.accounting.analyses.certified import Certified
from coinflower.accounting.ledger import file as ledger_file
from coinflower.accounting.ledger.entries import Budget
from coinflower.accounting.ledger.errors import LedgerError
from coinflower.accounting.ledger.ledger import Ledger
from coinflower.accounting.mechanism import Round
from tests.support.waiting import PATIENCE

TERMS = Certified(Round(p=0.5, q=0.1, d=20, noise_multiplier=1.5))
BUDGET = Budget(epsilon=1e6, delta=1e-5)


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "place" / "ledger.db"
    path.parent.mkdir()
    with Ledger.create(path, "ward 7") as ledger:
        ledger.reserve("trial", TERMS, 1000, BUDGET)
        ledger.flip("trial", 1)
    return path


def charged(path):
    with Ledger.open(path, read_only=True) as ledger:
        return ledger.tallies()[0].charged


@pytest.mark.parametrize("name", ["ledger.db", "other.db"])
def test_a_file_with_two_names_is_refused_under_either(path, name):
    os.link(path, path.with_name("other.db"))
    with pytest.raises(LedgerError, match=r"has 2 names \(hard links\).* delete the others"):
        Ledger.open(path.with_name(name))
    path.with_name("other.db").unlink()
    Ledger.open(path).close()


def link(path):
    os.link(path, path.with_name("other.db"))


def rename(path):
    path.rename(path.with_name("moved.db"))


def replace(path):
    shutil.copy(path, path.with_name("copy.db"))
    path.with_name("copy.db").replace(path)


def move_the_folder(path):
    path.parent.rename(path.parent.with_name("elsewhere"))


@pytest.mark.parametrize("change", [link, rename, replace, move_the_folder, os.unlink])
def test_a_file_that_changes_under_a_running_client_takes_nothing_more(path, change):
    with Ledger.open(path) as ledger:
        ledger.flip("trial", 2)
        change(path)
        for action in (
            lambda: ledger.flip("trial", 3),
            lambda: ledger.flip("trial", 1),
            lambda: ledger.claim_answer("trial", 1),
            lambda: ledger.reserve("trial", TERMS, 1001, BUDGET),
        ):
            with pytest.raises(LedgerError, match=r"was moved, deleted or replaced|has 2 names"):
                action()
    wherever = [found for found in path.parents[1].rglob("*.db") if found.stat().st_size]
    assert {charged(found) for found in wherever} <= {2}


@pytest.mark.parametrize("change", [rename, replace, os.unlink])
def test_a_file_that_changes_while_it_is_opened_is_not_taken_for_another(path, change, monkeypatch):
    plain = ledger_file.connect

    def connect(opened, *, read_only):
        connection = plain(opened, read_only=read_only)
        if not read_only:
            change(path)
        return connection

    monkeypatch.setattr(ledger_file, "connect", connect)
    with pytest.raises(LedgerError):  # noqa: SIM117
        with Ledger.open(path) as ledger:
            ledger.flip("trial", 2)


@pytest.mark.parametrize(
    ("change", "sentence"), [(rename, "was moved"), (link, "stays charged; nothing leaves")]
)
def test_a_file_that_changes_while_it_is_written_lets_no_coin_out(path, change, sentence):
    with Ledger.open(path) as ledger:
        flip = ledger._coins.coin

        def change_and_flip(p):
            change(path)
            return flip(p)

        ledger._coins.coin = change_and_flip
        with pytest.raises(LedgerError, match=sentence):
            ledger.flip("trial", 2)


CHARGE = """
import sys
from coinflower.accounting.ledger.ledger import Ledger
with Ledger.open(sys.argv[1]) as ledger:
    for round_ in range(2, 202):
        print(int(ledger.flip("trial", round_)), int(ledger.claim_answer("trial", round_)))
"""


def test_a_symbolic_link_and_the_file_are_one_ledger(path, tmp_path):
    folder = tmp_path / "linked"
    folder.mkdir()
    names = [path, folder / "one.db", folder / "two.db"]
    for name in names[1:]:
        name.symlink_to(path)
    workers = [
        subprocess.Popen([sys.executable, "-c", CHARGE, name], stdout=subprocess.PIPE, text=True)
        for name in names
    ]
    told = [worker.communicate(timeout=PATIENCE)[0].split() for worker in workers]
    assert [worker.returncode for worker in workers] == [0, 0, 0]
    coins = [one[0::2] for one in told]
    assert coins[0] == coins[1] == coins[2]
    answers = [sum(map(int, one)) for one in zip(*(one[1::2] for one in told), strict=True)]
    assert answers == [1] * 200
    assert charged(path) == 201
    assert [entry.name for entry in folder.iterdir() if not entry.is_symlink()] == []


def test_a_link_that_is_turned_to_another_ledger_is_refused(path):
    link = path.with_name("link.db")
    link.symlink_to(path)
    with Ledger.create(path.with_name("second.db"), "ward 7"), Ledger.open(link) as ledger:
        link.unlink()
        link.symlink_to(path.with_name("second.db"))
        with pytest.raises(LedgerError, match="replaced"):
            ledger.flip("trial", 2)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount")
def test_a_file_that_is_mounted_by_itself_is_refused(path, tmp_path):
    place = tmp_path / "a mount"
    place.mkdir()
    point = place / "ledger.db"
    point.touch()
    done = subprocess.run(
        ["mount", "--bind", path, point], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        pytest.skip(f"cannot mount: {done.stderr.strip()}")
    try:
        with pytest.raises(LedgerError, match=r"mounted as a single file.* mount its folder"):
            Ledger.open(point)
        assert charged(point) == 1  # looking is allowed
    finally:
        subprocess.run(["umount", point], check=True)


OVERWRITE = "import sys\nopen(sys.argv[2], 'r+b').write(open(sys.argv[1], 'rb').read())"


def test_an_older_copy_that_is_written_over_the_file_of_a_running_client_is_refused(path):
    older = shutil.copy(path, path.with_name("older"))
    with Ledger.open(path) as ledger:
        ledger.flip("trial", 2)
        ledger.claim_answer("trial", 2)
        # By another process: closing the file in this one would give up SQLite's locks.
        subprocess.run([sys.executable, "-c", OVERWRITE, older, path], check=True)
        for action in (
            lambda: ledger.flip("trial", 2),
            lambda: ledger.claim_answer("trial", 1),
            lambda: ledger.flip("trial", 3),
        ):
            with pytest.raises(LedgerError, match="was set back"):
                action()
    with Ledger.open(path) as again, pytest.raises(LedgerError, match="stopped"):
        again.flip("trial", 2)
    assert charged(path) == 1
