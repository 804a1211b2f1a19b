"""The figures of the owner's page are those of the ledger, and cost little to follow."""

from __future__ import annotations

import itertools
import os
import sqlite3
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import coinflower.client.page.ledger_snapshot
from coinflower.accounting.analyses.baselines import WeakClientSampling
from coinflower.accounting.analyses.certified import Certified
from coinflower.accounting.composition.compose import epsilon_after
from coinflower.accounting.ledger import prices, statement
from coinflower.accounting.ledger import stops as ledger_stops
from coinflower.accounting.ledger.entries import Budget
from coinflower.accounting.ledger.ledger import Ledger
from coinflower.accounting.mechanism import Round
from coinflower.accounting.rounding import rounded_down, rounded_up
from coinflower.client.page.drawing import draw_curve, gauge
from coinflower.client.page.figures import work_out
from coinflower.client.page.ledger_snapshot import Reader, read_snapshot

DELTA = 1e-5
BUDGET = Budget(epsilon=6.0, delta=DELTA)
FIRST = WeakClientSampling(Round(p=0.5, q=0.1, d=20, noise_multiplier=1.5))
SECOND = WeakClientSampling(Round(p=0.3, q=0.1, d=20, noise_multiplier=2.0))


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with Ledger.create(tmp_path / "ward7.db", "ward 7") as ledger:
        ledger.reserve("second#b", SECOND, 9, BUDGET)
        ledger.reserve("first#a", FIRST, 12, BUDGET)
        ledger.flip_all("first#a", range(1, 5))
        ledger.flip_all("second#b", range(1, 4))
        yield ledger


def test_spent_and_reserved_are_the_ledgers_own(ledger: Ledger) -> None:
    figures = work_out(read_snapshot(ledger.path), delta=DELTA, budget=BUDGET)
    assert figures.spent == ledger.spent(DELTA)
    assert figures.reserved_epsilon == ledger.reserved_epsilon(DELTA)
    assert figures.left == BUDGET.epsilon - ledger.reserved_epsilon(DELTA)
    assert figures.by_experiment == {
        "first#a": epsilon_after([(FIRST, 4)], DELTA),
        "second#b": epsilon_after([(SECOND, 3)], DELTA),
    }


class Seeded:
    insecure = True

    def coin(self, p: float) -> bool:
        return p > 0


def test_an_account_is_insecure_exactly_if_its_tally_is(ledger: Ledger) -> None:
    with Ledger.open(ledger.path, coins=Seeded()) as seeded:
        seeded.claim_answer("first#a", 1)
        seeded.release("second#b")
    secure = {account.experiment: account.secure for account in read_snapshot(ledger.path).accounts}
    assert secure == {tally.experiment: tally.secure for tally in ledger.tallies()}
    assert secure == {"first#a": False, "second#b": True}


@pytest.mark.parametrize("current", ["first#a", "second#b", None])
def test_one_more_round_costs_what_the_ledger_then_shows(
    ledger: Ledger, current: str | None
) -> None:
    before = ledger.spent(DELTA)
    outlook = work_out(read_snapshot(ledger.path), delta=DELTA, current=current).outlook
    assert outlook is not None
    assert outlook.tally.experiment == (current or "second#b")
    ledger.flip(outlook.tally.experiment, 9)
    assert outlook.next_round == ledger.spent(DELTA) - before > 0
    assert outlook.affordable_rounds is None


def test_the_rounds_that_fit_are_those_that_the_ledger_would_allow(ledger: Ledger) -> None:
    figures = work_out(read_snapshot(ledger.path), delta=DELTA, budget=BUDGET, current="first#a")
    outlook = figures.outlook
    assert outlook is not None
    assert outlook.tally.remaining_rounds == 8
    assert outlook.affordable_rounds is not None
    more = outlook.affordable_rounds - outlook.tally.remaining_rounds
    assert more > 0
    assert not ledger.would_exceed(FIRST, more, BUDGET.epsilon, DELTA)
    assert ledger.would_exceed(FIRST, more + 1, BUDGET.epsilon, DELTA)


@pytest.mark.parametrize("epsilon", [0.0, 0.01])
def test_a_budget_that_was_lowered_has_room_for_nothing(ledger: Ledger, epsilon: float) -> None:
    budget = Budget(epsilon=epsilon, delta=DELTA)
    figures = work_out(read_snapshot(ledger.path), delta=DELTA, budget=budget)
    assert figures.outlook is not None
    assert figures.outlook.affordable_rounds == 0
    assert figures.left is not None
    assert figures.left < 0
    assert gauge(figures, epsilon).limit == epsilon / figures.reserved_epsilon


def test_the_curve_ends_at_what_was_spent_and_changes_colour_with_the_experiment(
    ledger: Ledger,
) -> None:
    figures = work_out(read_snapshot(ledger.path), delta=DELTA, budget=BUDGET)
    rounds = [point.rounds for point in figures.curve]
    assert rounds == list(range(8))
    assert figures.curve[4].epsilon == epsilon_after([(FIRST, 4)], DELTA)
    assert figures.curve[-1].epsilon == ledger.spent(DELTA)
    drawn = draw_curve(figures, ["second#b", "first#a"])
    assert drawn.index("colour-1") < drawn.index("colour-0")


def test_a_long_history_is_drawn_by_few_points(ledger: Ledger) -> None:
    ledger.reserve("first#a", FIRST, 500, Budget(epsilon=100.0, delta=DELTA))
    ledger.flip_all("first#a", range(5, 501))
    figures = work_out(read_snapshot(ledger.path), delta=DELTA)
    rounds = [point.rounds for point in figures.curve]
    assert len(rounds) < 40
    assert {0, 1, 4, 7, 503} <= set(rounds)


def another(index: int) -> WeakClientSampling:
    return WeakClientSampling(Round(0.5, 0.1, 20, 5.0 + index))


@pytest.fixture
def compositions(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often anything is really added up."""
    counts: Counter[str] = Counter()
    for module in (prices, statement):
        for name in {"epsilon_after", "fold"} & set(vars(module)):
            real = getattr(module, name)

            def counted(*given: Any, real: Any = real, name: str = name, **more: Any) -> Any:
                counts[name] += 1
                return real(*given, **more)

            monkeypatch.setattr(module, name, counted)
    return counts


def test_a_ledger_with_many_experiments_is_shown_without_adding_up_all_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compositions: Counter[str]
) -> None:
    monkeypatch.setattr(statement, "_MOST_ALONE", 5)
    monkeypatch.setattr(statement, "_MOST_DRAWN", 5)
    budget = Budget(epsilon=1e3, delta=DELTA)
    with Ledger.create(tmp_path / "many.db", "many") as ledger:
        for index in range(25):
            terms = another(index)
            ledger.reserve(f"trial-{index:02}", terms, 3, budget)
            ledger.flip_all(f"trial-{index:02}", [1, 2])
        path = ledger.path
        reader = Reader(path=path)
        compositions.clear()
        snapshot = reader.look(now=True).snapshot
        assert snapshot is not None
        figures = work_out(snapshot, delta=DELTA)
        assert figures.spent == ledger.spent(DELTA)
        assert figures.reserved_epsilon == ledger.reserved_epsilon(DELTA)
        assert compositions.total() < 2 * 25 / 2  # a few a figure, not a few an experiment
        priced = [name for name, epsilon in figures.by_experiment.items() if epsilon is not None]
        assert sorted(priced) == [f"trial-{index}" for index in range(20, 25)]
        assert figures.curve == []
        ledger.flip("trial-24", 3)
        compositions.clear()
        snapshot = reader.look(now=True).snapshot
        assert snapshot is not None
        again = work_out(snapshot, delta=DELTA)
        assert again.spent > figures.spent
        assert compositions.total() <= 8


def test_a_curve_over_different_terms_is_worked_out_once_and_ends_at_what_was_spent(
    tmp_path: Path, compositions: Counter[str]
) -> None:
    budget = Budget(epsilon=1e3, delta=DELTA)
    with Ledger.create(tmp_path / "many.db", "many") as ledger:
        for index in range(9):
            ledger.reserve(f"e{index}", another(index), 2, budget)
            ledger.flip_all(f"e{index}", [1, 2])
        snapshot = read_snapshot(ledger.path)
        curve = work_out(snapshot, delta=DELTA).curve
        assert [point.rounds for point in curve] == list(range(19))
        assert curve[-1].epsilon == ledger.spent(DELTA)
        steps = [after.epsilon - before.epsilon for before, after in itertools.pairwise(curve)]
        assert all(step >= 0 for step in steps)
        for point in curve[1:]:
            rounds = Counter(snapshot.charges[: point.rounds])
            terms = {account.experiment: account.terms for account in snapshot.accounts}
            exact = epsilon_after([(terms[name], rounds[name]) for name in rounds], DELTA)
            assert point.epsilon == pytest.approx(exact, rel=0.01)
        compositions.clear()
        assert work_out(snapshot, delta=DELTA).curve == curve
        assert compositions.total() <= 3  # spent, reserved, one round more


def test_an_empty_ledger_has_figures_too(tmp_path: Path) -> None:
    Ledger.create(tmp_path / "new.db", "new").close()
    figures = work_out(read_snapshot(tmp_path / "new.db"), delta=DELTA, budget=BUDGET)
    assert (figures.spent, figures.left, figures.outlook) == (0, BUDGET.epsilon, None)
    shown = gauge(figures, BUDGET.epsilon)
    assert (shown.spent, shown.reserved, shown.limit) == (0, 0, 1)


@pytest.mark.parametrize(
    ("value", "up", "down"),
    [
        (0.0, "0", "0"),
        (1.00001, "1.001", "1"),
        (12.34567, "12.35", "12.34"),
        (0.00123456, "0.001235", "0.001234"),
        (99999.0, "1e+05", "9.999e+04"),
        (-0.5, "−0.5", "−0.5"),
        (float("inf"), "∞", "∞"),
    ],
)
def test_spent_is_rounded_up_and_left_is_rounded_down(value: float, up: str, down: str) -> None:
    assert (rounded_up(value), rounded_down(value)) == (up, down)


def test_certified_rounds_are_charged_on_the_page_as_in_the_ledger(tmp_path: Path) -> None:
    terms = Certified(Round(p=0.5, q=0.1, d=20, noise_multiplier=1.5))
    with Ledger.create(tmp_path / "c.db", "c") as ledger:
        ledger.reserve("trial", terms, 3, Budget(epsilon=50.0, delta=DELTA))
        ledger.flip_all("trial", [1, 2])
        assert work_out(read_snapshot(ledger.path), delta=DELTA).spent == ledger.spent(DELTA)


def test_a_ledger_that_did_not_change_is_not_read_again(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    readings: list[Path] = []
    monkeypatch.setattr(coinflower.client.page.ledger_snapshot, "_EASE", 0.0)
    monkeypatch.setattr(
        coinflower.client.page.ledger_snapshot,
        "read_snapshot",
        lambda path, known=None: readings.append(path) or read_snapshot(path, known),
    )
    os.utime(ledger.path, (0, 0))  # long ago: what was written just now is looked at once more
    reader = Reader(path=ledger.path)
    versions = {reader.look().version for _ in range(20)}
    assert (len(readings), len(versions)) == (1, 1)
    ledger.flip("first#a", 5)
    os.utime(ledger.path, (1, 1))
    versions |= {reader.look().version for _ in range(20)}
    assert (len(readings), len(versions)) == (2, 2)
    ledger_stops.pause(ledger.path)
    versions.add(reader.look().version)
    assert len(versions) == 3


def test_reading_that_takes_long_is_not_done_all_the_time(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coinflower.client.page.ledger_snapshot, "_EASE", 1e9)
    reader = Reader(path=ledger.path)
    before = reader.look()
    ledger.flip("first#a", 5)
    assert reader.look() is before
    assert reader.look(now=True) is not before


def test_a_ledger_that_is_tampered_with_while_being_watched_is_found_out(ledger: Ledger) -> None:
    reader = Reader(path=ledger.path)
    assert reader.look().snapshot is not None
    outside = sqlite3.connect(ledger.path)
    outside.execute("DROP TRIGGER entries_are_never_changed")
    outside.execute("UPDATE entries SET coin = 1 - coin WHERE seq = 4")
    outside.commit()
    outside.close()
    seen = reader.look(now=True)
    assert seen.snapshot is None
    assert "cannot be trusted" in seen.problem
