"""Prices of a ledger with many experiments: upper bounds, hardly above the truth, and cheap."""

from __future__ import annotations

import math
import multiprocessing
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coinflower.accounting import patience
from coinflower.accounting.analyses.analysis import Analysis
from coinflower.accounting.analyses.baselines import OnlyLocalSampling, WeakClientSampling
from coinflower.accounting.analyses.certified import Certified
from coinflower.accounting.composition import compose as composition
from coinflower.accounting.composition.compose import delta_after, epsilon_after, fold
from coinflower.accounting.ledger import prices as ledger_prices
from coinflower.accounting.ledger import stops as ledger_stops
from coinflower.accounting.ledger.entries import Budget, Tally
from coinflower.accounting.ledger.errors import LedgerError
from coinflower.accounting.ledger.ledger import BudgetExceededError, Ledger
from coinflower.accounting.ledger.prices import FEW, Prices
from coinflower.accounting.mechanism import Direction, Round

DELTA = 1e-5
PLENTY = Budget(epsilon=1e6, delta=DELTA)
SPAWN = multiprocessing.get_context("spawn")


def terms(index: int) -> Analysis:
    kind = (Certified, WeakClientSampling, OnlyLocalSampling)[index % 3]
    return kind(
        Round(
            p=0.1 + 0.001 * index, q=0.05 + 1e-4 * index, d=30, noise_multiplier=2.0 + 0.01 * index
        )
    )


def tally(index: int, *, charged: int = 5, reserved_rounds: int = 5) -> Tally:
    return Tally(
        experiment=f"trial-{index:05}",
        terms=terms(index),
        reserved_rounds=reserved_rounds,
        charged=charged,
        took_part=0,
        secure=True,
    )


@pytest.fixture
def work(monkeypatch):
    """How many different curves were sampled on a lattice."""
    counted: list[object] = []
    plain = composition.round_losses

    def counting(curve, *args, **options):
        counted.append(curve)
        return plain(curve, *args, **options)

    monkeypatch.setattr(composition, "round_losses", counting)
    return counted


@settings(deadline=None, max_examples=8)
@given(
    rounds=st.lists(
        st.tuples(st.integers(0, 200).map(terms), st.integers(1, 200)), min_size=2, max_size=9
    ),
    delta=st.sampled_from([1e-3, 1e-5, 1e-9]),
)
def test_folded_rounds_are_an_upper_bound_hardly_above_the_exact_one(rounds, delta):
    past = None
    for one in rounds:  # the worst case: folded one by one
        past = fold([one], delta, past=past)
    fine = composition.lattice_step(rounds, delta) / 32
    exact = epsilon_after(rounds, delta, step=fine)
    folded = epsilon_after([], delta, past=past)
    assert exact * (1 - 1e-3) - 1e-6 <= folded <= exact * 1.01 + 1e-6


def test_the_fold_of_gaussian_rounds_is_never_below_their_exact_curve():
    """T rounds of the Gaussian mechanism are one with noise σ/√T, whose δ is known."""
    sigma, folds = 8.0, 12
    past = None
    for index in range(folds):  # told apart by p and d, which do not matter to it
        one = OnlyLocalSampling(Round(p=1.0, q=1.0, d=index, noise_multiplier=sigma))
        past = fold([(one, 4)], 1e-9, past=past)
    together = OnlyLocalSampling(
        Round(p=1.0, q=1.0, d=0, noise_multiplier=sigma / math.sqrt(4 * folds))
    )
    for direction in Direction:
        true = together.delta(past.epsilon, direction)
        assert (past.delta(past.epsilon, direction) >= true * (1 - 1e-6)).all()
    for delta in (1e-3, 1e-5, 1e-8):
        exact = together.epsilon(delta)
        assert exact <= epsilon_after([], delta, past=past) <= exact * 1.005


def test_few_experiments_are_priced_exactly(tmp_path):
    tallies = [tally(index) for index in range(FEW)]
    prices = Prices(tmp_path / "prices", "salt", writable=True)
    rounds = [(each.terms, 5) for each in tallies]
    assert prices.reserved_epsilon(tallies, DELTA) == epsilon_after(rounds, DELTA)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("delta", [DELTA, 3e-7])
def test_many_experiments_cost_at_most_a_hundredth_more_than_they_do(tmp_path, delta):
    tallies = [tally(index) for index in range(60)]
    prices = Prices(tmp_path / "prices", "salt", writable=True)
    exact = epsilon_after([(each.terms, 5) for each in tallies], delta)
    for found in (prices.reserved_epsilon(tallies, delta), prices.spent(tallies, delta)):
        assert exact * (1 - 2e-3) <= found <= exact * 1.01


def test_the_total_variation_of_many_experiments_is_an_upper_bound_hardly_above_the_exact_one():
    tallies = [tally(index, charged=index % 5 + 1) for index in range(30)]
    exact = delta_after([(each.terms, each.charged) for each in tallies], 0.0)
    found = Prices().total_variation(tallies, DELTA)
    assert exact * (1 - 2e-3) <= found <= exact * 1.01


def test_pricing_one_more_does_not_grow_with_what_was_before(tmp_path, work):
    prices = Prices(tmp_path / "prices", "salt", writable=True)
    done: list[int] = []
    for count in range(1, 61):
        tallies = [tally(index) for index in range(count)]
        work.clear()
        prices.reserved_epsilon(tallies, DELTA, more=[(terms(500 + count), 3)])
        done.append(len(work))
    # A fold of some and what was before it, then what is left, what was before and the new one;
    # each once a lattice, of which two may be tried.
    assert max(done) <= 1 + FEW + 2 * (FEW + 2)
    assert sum(done[-20:]) <= 2 * sum(done[10:30])


def test_a_restart_does_not_price_the_past_again(tmp_path, work):
    tallies = [tally(index) for index in range(40)]
    first = Prices(tmp_path / "prices", "salt", writable=True).reserved_epsilon(tallies, DELTA)
    work.clear()
    again = Prices(tmp_path / "prices", "salt", writable=True)
    assert again.reserved_epsilon(tallies, DELTA) == first
    assert len(work) <= 2 * (FEW + 1)


def test_what_never_is_played_is_not_priced_again_and_again_either(tmp_path, work):
    prices = Prices(tmp_path / "prices", "salt", writable=True)
    open_ = [tally(index, charged=0) for index in range(40)]
    prices.reserved_epsilon(open_, DELTA)
    work.clear()
    prices.reserved_epsilon([*open_, tally(41, charged=0)], DELTA)
    assert len(work) <= 1 + FEW + 2 * (FEW + 2)


def test_released_rounds_are_not_charged_by_what_was_kept(tmp_path):
    prices = Prices(tmp_path / "prices", "salt", writable=True)
    tallies = [tally(index, charged=1, reserved_rounds=50) for index in range(12)]
    before = prices.reserved_epsilon(tallies, DELTA)
    released = [tally(index, charged=1, reserved_rounds=1) for index in range(12)]
    exact = epsilon_after([(each.terms, 1) for each in released], DELTA)
    assert prices.reserved_epsilon(released, DELTA) <= exact * 1.01 < before


@pytest.mark.parametrize(
    "forge",
    [
        lambda content: content[:-1],
        lambda content: content[:40] + bytes([content[40] ^ 1]) + content[41:],
        lambda content: bytes(32) + content[32:],
        lambda _content: b"",
        lambda _content: b"junk" * 100,
    ],
)
def test_a_file_that_was_not_written_here_is_not_believed(tmp_path, work, forge):
    path = tmp_path / "prices"
    tallies = [tally(index) for index in range(9)]
    true = Prices(path, "salt", writable=True).reserved_epsilon(tallies, DELTA)
    path.write_bytes(forge(path.read_bytes()))
    work.clear()
    assert Prices(path, "salt", writable=True).reserved_epsilon(tallies, DELTA) == true
    assert len(work) > 2 * (FEW + 1)  # it was all done again


def test_prices_of_another_ledger_or_of_other_code_are_not_believed(tmp_path, work, monkeypatch):
    path = tmp_path / "prices"
    tallies = [tally(index) for index in range(9)]
    Prices(path, "salt", writable=True).reserved_epsilon(tallies, DELTA)
    for salt, code in (("pepper", None), ("salt", "other")):
        if code:
            monkeypatch.setattr(ledger_prices, "_code", lambda: "other")
        work.clear()
        Prices(path, salt, writable=False).reserved_epsilon(tallies, DELTA)
        assert len(work) > 2 * (FEW + 1)


@pytest.mark.parametrize("kept", [9, 40])
def test_an_older_or_a_newer_file_beside_a_ledger_does_not_lower_its_price(tmp_path, kept):
    path = tmp_path / "prices"
    tallies = [tally(index) for index in range(20)]
    Prices(path, "salt", writable=True).reserved_epsilon(
        [tally(index) for index in range(kept)], DELTA
    )
    exact = epsilon_after([(each.terms, 5) for each in tallies], DELTA)
    for found in (Prices.reserved_epsilon, Prices.spent):
        price = found(Prices(path, "salt", writable=False), tallies, DELTA)
        assert exact * (1 - 2e-3) <= price <= exact * 1.01


@pytest.mark.parametrize(
    "module",
    ["composition/losses.py", "composition/compose.py", "analyses/certified.py", "coin.py"],
)
def test_a_mended_bound_is_other_code(tmp_path, module):
    """Whatever a price is computed with: an ε that was too small must not outlive its mending."""
    copy = tmp_path / "accounting"
    shutil.copytree(ledger_prices._ACCOUNTING, copy)
    assert ledger_prices._code(copy) == ledger_prices._code()
    ledger_prices._code.cache_clear()
    (copy / module).write_text((copy / module).read_text() + "# mended\n")
    assert ledger_prices._code(copy) != ledger_prices._code()


def test_only_its_owner_reads_the_file_and_a_reader_writes_none(tmp_path):
    tallies = [tally(index) for index in range(9)]
    Prices(tmp_path / "read", "salt", writable=False).reserved_epsilon(tallies, DELTA)
    Prices(tmp_path / "written", "salt", writable=True).reserved_epsilon(tallies, DELTA)
    assert [path.name for path in tmp_path.iterdir()] == ["written"]
    assert (tmp_path / "written").stat().st_mode & 0o777 == 0o600


def test_what_was_folded_before_patience_ended_is_kept(tmp_path, monkeypatch):
    tallies = [tally(index) for index in range(40)]
    prices = Prices(tmp_path / "prices", "salt", writable=True)
    plain, folds = ledger_prices.fold, []

    def impatient(*args: Any, **options: Any) -> Any:
        folds.append(args)
        if len(folds) > 3:
            raise patience.OutOfPatienceError("too long")
        return plain(*args, **options)

    monkeypatch.setattr(ledger_prices, "fold", impatient)
    with pytest.raises(patience.OutOfPatienceError):
        prices.reserved_epsilon(tallies, DELTA)
    monkeypatch.setattr(ledger_prices, "fold", plain)
    kept = Prices(tmp_path / "prices", "salt", writable=True)
    kept._read()
    assert [len(past.counts) for past in kept._kept.values()] == [3 * FEW]


@pytest.mark.parametrize("price", [math.nan, math.inf])
def test_a_price_that_is_no_figure_exceeds_every_budget(tmp_path, monkeypatch, price):
    with Ledger.create(tmp_path / "ledger.db", "ward 7") as ledger:
        monkeypatch.setattr(ledger_prices, "epsilon_after", lambda *_, **__: price)
        assert ledger.would_exceed(terms(0), 1, 1e300, DELTA)
        with pytest.raises(BudgetExceededError):
            ledger.reserve("trial", terms(0), 1, PLENTY)


def test_others_who_reserve_while_a_price_is_computed_are_counted(tmp_path, monkeypatch):
    path = tmp_path / "ledger.db"
    budget = Budget(epsilon=epsilon_after([(terms(0), 5), (terms(1), 5)], DELTA), delta=DELTA)
    plain = Prices.reserved_epsilon
    with Ledger.create(path, "ward 7") as ledger, Ledger.open(path) as other:

        def slow(self, *args, **options):
            found = plain(self, *args, **options)
            if self is ledger.prices and not other.tallies():
                other.reserve("other", terms(1), 6, PLENTY)
            return found

        monkeypatch.setattr(Prices, "reserved_epsilon", slow)
        with pytest.raises(BudgetExceededError):
            ledger.reserve("trial", terms(0), 5, budget)
        assert [each.experiment for each in ledger.tallies()] == ["other"]


def test_a_ledger_that_never_rests_is_given_up_after_a_few_prices(tmp_path, monkeypatch):
    path = tmp_path / "ledger.db"
    plain, asked = Prices.reserved_epsilon, []
    with Ledger.create(path, "ward 7") as ledger, Ledger.open(path) as other:

        def restless(self, *args, **options):
            asked.append(None)
            if self is ledger.prices:
                other.reserve(f"other-{len(asked)}", terms(1), 1, PLENTY)
            return plain(self, *args, **options)

        monkeypatch.setattr(Prices, "reserved_epsilon", restless)
        with pytest.raises(LedgerError, match="changed by others 5 times"):
            ledger.reserve("trial", terms(0), 5, PLENTY)
        assert "trial" not in [each.experiment for each in ledger.tallies()]


def _price_slowly(path: Path, pricing: Any, go_on: Any) -> None:
    plain = ledger_prices.epsilon_after

    def slow(*args: Any, **options: Any) -> float:
        pricing.set()
        go_on.wait(60)
        return plain(*args, **options)

    ledger_prices.epsilon_after = slow
    with Ledger.open(path) as ledger:
        try:
            ledger.reserve("slow", terms(0), 5, PLENTY)
        except LedgerError:
            raise SystemExit(3) from None


def test_other_processes_and_a_pause_get_through_while_a_price_is_computed(tmp_path):
    path = tmp_path / "ledger.db"
    with Ledger.create(path, "ward 7") as ledger:
        ledger.reserve("quick", terms(1), 5, PLENTY)
        pricing, go_on = SPAWN.Event(), SPAWN.Event()
        process = SPAWN.Process(target=_price_slowly, args=(path, pricing, go_on))
        process.start()
        try:
            assert pricing.wait(60)
            ledger.flip("quick", 1)
            ledger_stops.leave(path, "quick")
            ledger_stops.pause(path)
            assert ledger_stops.read_stops(path).paused_since
        finally:
            go_on.set()
            process.join(60)
        assert process.exitcode == 3  # the pause, which came first, holds
        assert [each.experiment for each in ledger.tallies()] == ["quick"]
