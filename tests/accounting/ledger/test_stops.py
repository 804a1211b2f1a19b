"""What the owner stopped is stopped in the file itself, for everybody who uses it."""

import sqlite3
import threading

import pytest

from coinflower.accounting.analyses.certified import Certified
from coinflower.accounting.ledger import file as ledger_file
from coinflower.accounting.ledger import stops as ledger_stops
from coinflower.accounting.ledger.entries import Budget
from coinflower.accounting.ledger.errors import LedgerError
from coinflower.accounting.ledger.ledger import Ledger
from coinflower.accounting.mechanism import Round
from tests.support.waiting import PATIENCE

TERMS = Certified(Round(p=0.5, q=0.1, d=20, noise_multiplier=1.5))
BUDGET = Budget(epsilon=50.0, delta=1e-5)


@pytest.fixture
def ledger(tmp_path):
    with Ledger.create(tmp_path / "ward7.db", "ward 7") as ledger:
        ledger.reserve("trial", TERMS, 10, BUDGET)
        ledger.flip_all("trial", [1, 2])
        yield ledger


def test_nothing_is_stopped_at_first_and_looking_leaves_the_file_as_it_is(ledger):
    ledger.close()
    before = ledger.path.read_bytes()
    stops = ledger_stops.read_stops(ledger.path)
    assert (stops.paused_since, stops.left) == (None, {})
    assert ledger.path.read_bytes() == before


@pytest.mark.parametrize(
    "action",
    [
        lambda ledger: ledger.flip("trial", 3),
        lambda ledger: ledger.claim_answer("trial", 1),
        lambda ledger: ledger.reserve("trial", TERMS, 11, BUDGET),
        lambda ledger: ledger.reserve("another", TERMS, 1, BUDGET),
    ],
    ids=["flip", "answer", "reserve more", "reserve anew"],
)
def test_a_paused_ledger_that_is_open_elsewhere_takes_nothing(ledger, action):
    ledger_stops.pause(ledger.path)
    before = ledger.verify()
    with pytest.raises(LedgerError, match="its owner has stopped this experiment"):
        action(ledger)
    assert ledger.verify() == before
    ledger_stops.resume(ledger.path)
    action(ledger)
    assert ledger.verify().entries == before.entries + 1


def test_a_pause_keeps_when_it_began(ledger):
    ledger_stops.pause(ledger.path)
    since = ledger_stops.read_stops(ledger.path).paused_since
    ledger_stops.pause(ledger.path)
    assert ledger_stops.read_stops(ledger.path).paused_since == since is not None


def test_an_experiment_that_was_left_stays_left_and_others_go_on(ledger):
    ledger.reserve("another", TERMS, 5, BUDGET)
    ledger_stops.leave(ledger.path, "trial")
    ledger_stops.pause(ledger.path)
    ledger_stops.resume(ledger.path)
    with pytest.raises(LedgerError, match="stopped"):
        ledger.flip("trial", 3)
    ledger.flip("another", 1)
    ledger.release("trial")
    with pytest.raises(LedgerError, match="stopped"):
        ledger.reserve("trial", TERMS, 10, BUDGET)
    assert {tally.experiment: tally.reserved_rounds for tally in ledger.tallies()} == {
        "another": 5,
        "trial": 2,
    }
    assert list(ledger_stops.read_stops(ledger.path).left) == ["trial"]


@pytest.mark.parametrize("left", ["study", "study#aa"])
def test_an_experiment_is_left_under_all_its_terms_and_no_longer_name_goes_with_it(ledger, left):
    ledger.reserve("study#aa", TERMS, 2, BUDGET)
    ledger_stops.leave(ledger.path, left)
    assert list(ledger_stops.read_stops(ledger.path).left) == ["study"]
    for experiment in ("study", "study#aa", "study#bb"):
        with pytest.raises(LedgerError, match="stopped"):
            ledger.reserve(experiment, TERMS, 5, BUDGET)
    for experiment in ("study-2#aa", "stud#aa", "trial"):
        ledger.reserve(experiment, TERMS, 11, BUDGET)


def test_a_stop_under_the_whole_key_holds_for_the_name(ledger):
    ledger_stops.pause(ledger.path)
    ledger_stops.resume(ledger.path)
    outside = sqlite3.connect(ledger.path)
    outside.execute("INSERT INTO stops VALUES ('study#aa', 'long ago')")
    outside.commit()
    outside.close()
    assert ledger_stops.read_stops(ledger.path).left == {"study": "long ago"}
    with pytest.raises(LedgerError, match="stopped"):
        ledger.reserve("study#bb", TERMS, 5, BUDGET)


def test_stops_touch_neither_the_chain_nor_the_format(ledger):
    before = ledger.verify()
    ledger_stops.pause(ledger.path)
    ledger_stops.leave(ledger.path, "trial")
    assert ledger.verify() == before
    outside = sqlite3.connect(ledger.path)
    assert outside.execute("PRAGMA user_version").fetchone() == (ledger_file.FORMAT,)
    outside.close()


def test_no_experiment_without_a_name_is_left(ledger):
    for nameless in ("", "#aa"):
        with pytest.raises(LedgerError, match="needs a name"):
            ledger_stops.leave(ledger.path, nameless)
    assert ledger_stops.read_stops(ledger.path).paused_since is None


def test_a_lost_table_of_stops_lets_nothing_through(ledger):
    ledger_stops.pause(ledger.path)
    outside = sqlite3.connect(ledger.path)
    outside.execute("DROP TABLE stops")
    outside.close()
    with pytest.raises(LedgerError, match="stops"):
        ledger.flip("trial", 3)


def test_once_a_pause_is_made_no_coin_falls_after_it(ledger):
    rounds = 100_000  # more than can be played while the pause waits for its turn
    ledger.reserve("trial", TERMS, rounds, Budget(epsilon=10_000.0, delta=1e-5))
    begun, refusals = threading.Event(), []

    def play():
        for round_ in range(3, rounds):
            try:
                ledger.flip("trial", round_)
            except LedgerError as error:
                refusals.append(str(error))
                return
            begun.set()

    player = threading.Thread(target=play)
    player.start()
    assert begun.wait(PATIENCE)
    ledger_stops.pause(ledger.path)
    with Ledger.open(ledger.path, read_only=True) as other:
        charged = other.tallies()[0].charged
    player.join(PATIENCE)
    assert len(refusals) == 1
    assert ledger.tallies()[0].charged == charged < rounds - 1
