"""The ledger: charges, coins, budgets."""

import json
import sqlite3
import subprocess
import sys

import pytest
from scipy import stats

from coinflower.accounting.analyses.baselines import WeakClientSampling
from coinflower.accounting.analyses.certified import Certified
from coinflower.accounting.analyses.names import SCHEMES
from coinflower.accounting.composition.compose import epsilon_after
from coinflower.accounting.ledger.entries import Budget, to_csv, to_json
from coinflower.accounting.ledger.errors import LedgerCorruptError, LedgerError
from coinflower.accounting.ledger.ledger import BudgetExceededError, Ledger
from coinflower.accounting.mechanism import Round
from tests.support.waiting import PATIENCE

TERMS = Certified(Round(p=0.3, q=0.1, d=20, noise_multiplier=1.5))
BUDGET = Budget(epsilon=5.0, delta=1e-5)


@pytest.fixture
def ledger(tmp_path):
    with Ledger.create(tmp_path / "ledger.db", "ward 7") as opened:
        yield opened


def test_a_charge_survives_closing(tmp_path):
    path = tmp_path / "ledger.db"
    with Ledger.create(path, "ward 7") as ledger:
        ledger.reserve("trial", TERMS, 10, BUDGET)
        coins = ledger.flip_all("trial", range(1, 6))
        spent = ledger.spent(1e-5)
    with Ledger.open(path, data_set="ward 7") as ledger:
        assert ledger.flip_all("trial", range(1, 6)) == coins
        assert ledger.spent(1e-5) == spent == epsilon_after([(TERMS, 5)], 1e-5)


def test_charging_a_round_again_returns_its_coin_and_costs_nothing(ledger):
    ledger.reserve("trial", TERMS, 50, BUDGET)
    first = [ledger.flip("trial", round_) for round_ in range(1, 41)]
    before = ledger.verify()
    assert [ledger.flip("trial", round_) for round_ in range(1, 41)] == first
    assert ledger.verify() == before


def test_heads_and_tails_cost_the_same(ledger):
    ledger.reserve("trial", TERMS, 30, BUDGET)
    coins = ledger.flip_all("trial", range(1, 31))
    assert {True, False} == set(coins)
    assert ledger.spent(1e-5) == epsilon_after([(TERMS, 30)], 1e-5)
    (tally,) = ledger.tallies()
    assert (tally.charged, tally.took_part) == (30, sum(coins))


def test_all_experiments_on_the_data_set_add_up(ledger):
    other = WeakClientSampling(Round(p=0.1, q=0.05, d=20, noise_multiplier=2.0))
    ledger.reserve("one", TERMS, 5, BUDGET)
    ledger.reserve("two", other, 7, BUDGET)
    ledger.flip_all("one", range(1, 6))
    ledger.flip_all("two", range(1, 8))
    assert ledger.spent(1e-5) == pytest.approx(epsilon_after([(TERMS, 5), (other, 7)], 1e-5))


# False alarms: at most 1e-6 for the right p; p off by 10 % is missed with less than 1e-6.
def test_coins_fall_with_probability_p_and_not_a_tenth_off(tmp_path):
    flips = 40_000
    with Ledger.create(tmp_path / "many.db", "x") as ledger:
        ledger.reserve("trial", TERMS, flips, Budget(epsilon=1000.0, delta=1e-5))
        heads = sum(ledger.flip_all("trial", range(1, flips + 1)))
    assert stats.binomtest(heads, flips, 0.3).pvalue > 1e-6
    assert stats.binomtest(heads, flips, 0.33).pvalue < 1e-6
    assert stats.binomtest(heads, flips, 0.27).pvalue < 1e-6


def test_reserved_rounds_count_against_the_budget_before_they_are_charged(ledger):
    rounds = 100
    tight = Budget(epsilon=epsilon_after([(TERMS, rounds)], 1e-5), delta=1e-5)
    ledger.reserve("first", TERMS, rounds, tight)
    assert ledger.spent(1e-5) == 0
    assert ledger.reserved_epsilon(1e-5) == pytest.approx(tight.epsilon)
    with pytest.raises(BudgetExceededError, match="is spent or reserved"):
        ledger.reserve("second", TERMS, 1, tight)
    ledger.release("first")
    ledger.reserve("second", TERMS, 1, tight)


def test_would_exceed_knows_what_is_spent(ledger):
    limit = epsilon_after([(TERMS, 20)], 1e-5)
    assert not ledger.would_exceed(TERMS, 20, limit, 1e-5)
    ledger.reserve("trial", TERMS, 1, BUDGET)
    ledger.flip("trial", 1)
    assert ledger.would_exceed(TERMS, 20, limit, 1e-5)
    assert not ledger.would_exceed(TERMS, 19, limit, 1e-5)


def test_a_budget_of_zero_allows_nothing(ledger):
    harmless = Certified(Round(p=1e-4, q=1e-4, d=1, noise_multiplier=1000.0))
    assert harmless.epsilon(0.5) == 0
    with pytest.raises(BudgetExceededError, match="nothing may be spent"):
        ledger.reserve("trial", harmless, 1, Budget(epsilon=0.0, delta=0.5))


def test_without_a_reservation_nothing_is_charged(ledger):
    with pytest.raises(BudgetExceededError, match="reserved no rounds"):
        ledger.flip("trial", 1)
    ledger.reserve("trial", TERMS, 2, BUDGET)
    ledger.flip_all("trial", [1, 2])
    with pytest.raises(BudgetExceededError, match="1 more are refused"):
        ledger.flip("trial", 3)
    assert ledger.verify().entries == 3


def test_a_block_is_charged_whole_or_not_at_all(ledger):
    ledger.reserve("trial", TERMS, 3, BUDGET)
    with pytest.raises(BudgetExceededError):
        ledger.flip_all("trial", [1, 2, 3, 4])
    assert ledger.spent(1e-5) == 0


@pytest.mark.parametrize("name", [name for name, s in SCHEMES.items() if not s.is_chargeable])
def test_what_does_not_bound_a_clients_loss_is_refused(ledger, name):
    terms = SCHEMES[name](Round(p=0.1, q=0.1, d=5, noise_multiplier=1.0))
    with pytest.raises(LedgerError, match="not an upper bound"):
        ledger.reserve("trial", terms, 1, BUDGET)


def test_an_experiments_terms_never_change(ledger):
    ledger.reserve("trial", TERMS, 5, BUDGET)
    ledger.reserve("trial", TERMS, 5, BUDGET)
    ledger.reserve("trial", TERMS, 8, BUDGET)
    weaker = Certified(Round(p=0.3, q=0.1, d=20, noise_multiplier=1.0))
    with pytest.raises(LedgerError, match="with other terms"):
        ledger.reserve("trial", weaker, 5, BUDGET)
    assert ledger.tallies()[0].reserved_rounds == 8


def test_a_round_is_answered_at_most_once_and_never_uncharged(ledger):
    ledger.reserve("trial", TERMS, 5, BUDGET)
    with pytest.raises(LedgerError, match="never charged"):
        ledger.claim_answer("trial", 1)
    ledger.flip("trial", 1)
    assert ledger.claim_answer("trial", 1)
    assert not ledger.claim_answer("trial", 1)


def test_entries_can_be_neither_changed_nor_deleted(ledger):
    ledger.reserve("trial", TERMS, 5, BUDGET)
    outside = sqlite3.connect(ledger.path)
    for statement in ("UPDATE entries SET rounds = 1", "DELETE FROM entries"):
        with pytest.raises(sqlite3.IntegrityError, match="never"):
            outside.execute(statement)


def test_exports_hold_every_entry(ledger):
    ledger.reserve("trial", TERMS, 5, BUDGET)
    ledger.flip_all("trial", [1, 2, 3])
    exported = json.loads(to_json(ledger.data_set, ledger.history()))
    assert exported["data_set"] == "ward 7"
    assert [entry["kind"] for entry in exported["entries"]] == ["commit"] + ["charge"] * 3
    rows = to_csv(ledger.history()).splitlines()
    assert rows[0].startswith("seq,kind,experiment,round")
    assert len(rows) == 5


class Seeded:
    insecure = True

    def coin(self, _p):
        return True


def test_one_seeded_coin_makes_the_whole_experiment_insecure(ledger):
    ledger.reserve("trial", TERMS, 3, BUDGET)
    ledger.flip("trial", 1)
    assert ledger.tallies()[0].secure
    with Ledger.open(ledger.path, coins=Seeded()) as seeded:
        seeded.flip("trial", 1)
        assert seeded.tallies()[0].secure
        seeded.flip("trial", 2)
    assert not ledger.tallies()[0].secure
    ledger.verify()


def test_one_seeded_answer_makes_the_whole_experiment_insecure(ledger):
    ledger.reserve("trial", TERMS, 3, BUDGET)
    ledger.flip("trial", 1)
    with Ledger.open(ledger.path, coins=Seeded()) as seeded:
        assert seeded.claim_answer("trial", 1)
        assert not seeded.tallies()[0].secure
    assert not ledger.tallies()[0].secure
    ledger.verify()


def test_a_ledger_whose_sums_leave_out_seeded_answers_is_in_order_and_shown_as_insecure(ledger):
    ledger.reserve("trial", TERMS, 3, BUDGET)
    ledger.flip("trial", 1)
    with Ledger.open(ledger.path, coins=Seeded()) as seeded:
        seeded.claim_answer("trial", 1)
    outside = sqlite3.connect(ledger.path)
    outside.execute("UPDATE tallies SET secure = 1")
    outside.commit()
    outside.close()
    with Ledger.open(ledger.path) as reopened:
        assert not reopened.tallies()[0].secure


def test_a_release_takes_no_randomness_and_leaves_an_experiment_secure(ledger):
    ledger.reserve("trial", TERMS, 3, BUDGET)
    with Ledger.open(ledger.path, coins=Seeded()) as seeded:
        seeded.release("trial")
    assert ledger.tallies()[0].secure
    ledger.verify()


def test_seeded_coins_are_stamped(tmp_path):
    with Ledger.create(tmp_path / "seeded.db", "x", coins=Seeded()) as ledger:
        ledger.reserve("trial", TERMS, 2, BUDGET)
        ledger.flip("trial", 1)
        assert not ledger.tallies()[0].secure
        assert not any(entry.secure for entry in ledger.history())
    with Ledger.open(tmp_path / "seeded.db") as reopened:
        assert not reopened.tallies()[0].secure


def test_two_processes_share_one_ledger_without_losing_or_doubling(tmp_path):
    path = tmp_path / "shared.db"
    Ledger.create(path, "x").close()
    with Ledger.open(path) as ledger:
        ledger.reserve("trial", TERMS, 300, BUDGET)
    code = (
        "import sys\nfrom coinflower.accounting.ledger.ledger import Ledger\n"
        "ledger = Ledger.open(sys.argv[1])\n"
        "print(*(int(ledger.flip('trial', r)) for r in range(1, 301)))\n"
    )
    workers = [
        subprocess.Popen([sys.executable, "-c", code, path], stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    outputs = [worker.communicate(timeout=PATIENCE)[0] for worker in workers]
    assert [worker.returncode for worker in workers] == [0, 0, 0]
    assert outputs[0] == outputs[1] == outputs[2]
    with Ledger.open(path) as ledger:
        assert ledger.verify().entries == 301
        assert ledger.tallies()[0].charged == 300


AGREED = '{"clip_norm":1.0,"mode":"covered"}'


def test_a_ledger_keeps_what_was_agreed_to_and_seals_it(tmp_path):
    path = tmp_path / "ledger.db"
    with Ledger.create(path, "ward 7") as ledger:
        ledger.reserve("heart", TERMS, 3, BUDGET, agreed=AGREED)
        ledger.flip_all("heart", [1, 2])
        ledger.release("heart")
        ledger.reserve("heart", TERMS, 4, BUDGET)  # says nothing new
        ledger.verify()
        (tally,) = ledger.tallies()
        assert (tally.agreed, tally.terms, tally.reserved_rounds) == (AGREED, TERMS, 4)
        kept = {entry.kind: "covered" in entry.terms for entry in ledger.history()}
        assert kept == {"commit": True, "charge": False, "release": False}
        with pytest.raises(LedgerError, match="other terms"):
            ledger.reserve("heart", TERMS, 5, BUDGET, agreed='{"mode":"trusted"}')
    with sqlite3.connect(path) as outside:
        outside.execute("UPDATE tallies SET terms = replace(terms, 'covered', 'trusted')")
    outside.close()
    with pytest.raises(LedgerCorruptError, match="sums do not agree"):
        Ledger.open(path)


def test_an_entry_that_names_no_mode_is_followed_by_one_that_does(tmp_path):
    with Ledger.create(tmp_path / "ledger.db", "ward 7") as ledger:
        ledger.reserve("heart", TERMS, 1, BUDGET)
        assert ledger.tallies()[0].agreed == ""
        ledger.reserve("heart", TERMS, 2, BUDGET, agreed=AGREED)
        assert ledger.tallies()[0].agreed == AGREED
        spent = ledger.reserved_epsilon(BUDGET.delta)
    with Ledger.open(tmp_path / "ledger.db") as ledger:
        assert ledger.tallies()[0].agreed == AGREED
        assert (
            ledger.reserved_epsilon(BUDGET.delta)
            == spent
            == epsilon_after([(TERMS, 2)], BUDGET.delta)
        )
