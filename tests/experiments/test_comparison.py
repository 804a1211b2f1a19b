"""The comparison at equal ε: its lines and noise, what is trained next, what is kept, its pages."""

import csv
import dataclasses
import math
import warnings
from pathlib import Path

import pytest
from opacus.accountants.utils import get_noise_multiplier
from typer.testing import CliRunner

from coinflower.accounting.errors import UserError
from coinflower.cli.main import app
from coinflower.experiments.comparison import playing
from coinflower.experiments.comparison.comparisons import COMPARISONS, EPSILONS
from coinflower.experiments.comparison.lines import LINES, Level, cell_of, rounded_noise
from coinflower.experiments.comparison.page import write_overview, write_page
from coinflower.experiments.comparison.playing import cells_of, cells_over_clients, play, request_of
from coinflower.experiments.comparison.record import Accuracy, Training, TrainingRecord
from coinflower.experiments.comparison.sources import load_source, visits
from coinflower.protocol.unit import Unit

RESULTS = Path(__file__).parents[2] / "docs" / "results"
MNIST = COMPARISONS["mnist"]
LEVEL = Level(rounds=3, p=0.5, q=0.5, cap=math.inf, noise=1.0)
BY_NAME = {line.name: line for line in LINES}


def learned(training, best=6.4):
    """Accuracy that falls with the distance from a best learning rate."""
    found = round(1 - abs(math.log(training.rate / best)) / 9, 5)
    return Accuracy(first_half=found, second_half=found)


def complete(record, level, first=1.0):
    while wanted := record.wanted(level, first):
        record.add(wanted[0], learned(wanted[0]))


@pytest.fixture
def record(tmp_path):
    return TrainingRecord(tmp_path / "trainings.csv")


@pytest.fixture(scope="module")
def noise():
    cells = cells_of(MNIST)
    return {(cell.line.name, cell.epsilon): cell for cell in cells}


def test_every_line_that_holds_costs_no_more_than_its_budget(noise):
    for (name, epsilon), cell in noise.items():
        if epsilon is not None and name != "trusted, the paper's σ":
            assert cell.true_epsilon <= epsilon


def test_the_papers_noise_costs_more_than_its_budget(noise):
    for epsilon in EPSILONS:
        assert noise["trusted, the paper's σ", epsilon].true_epsilon > epsilon


def test_everybody_needs_the_noise_of_all_data_in_one_place(noise):
    for epsilon in EPSILONS:
        everybody, central = (
            noise[name, epsilon] for name in ("trusted, everybody", "centralised DP-SGD")
        )
        assert everybody.level == central.level


def test_masked_sums_carry_little_more_noise_than_one_and_untrusted_as_many_as_clients(noise):
    for epsilon in EPSILONS:
        one, masked, every = (
            noise[name, epsilon].level.noise
            for name in ("trusted, capped", "masked, capped", "untrusted")
        )
        assert masked / one == pytest.approx(math.sqrt(2000 / 1400), rel=0.011)
        assert every / one == pytest.approx(math.sqrt(2000), rel=0.011)


def test_a_quiet_sum_carries_a_noise_of_everybody_who_takes_part():
    cell = cell_of(MNIST, BY_NAME["quiet"], 2.0)
    assert cell.level.noise == pytest.approx(cell.sigma * math.sqrt(500), rel=0.006)


def test_over_clients_only_the_noise_changes():
    cells = cells_over_clients(MNIST)
    assert {(cell.level.p, cell.level.q) for cell in cells} == {(1.0, 1875 / 60_000)}
    untrusted = {c.clients: c.level.noise for c in cells if c.line.name == "untrusted"}
    assert untrusted[2000] / untrusted[5] == pytest.approx(20, rel=0.011)


def test_all_data_in_one_place_gets_the_noise_that_opacus_asks_for():
    cell = cell_of(MNIST, BY_NAME["centralised DP-SGD"], 2.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = get_noise_multiplier(
            **{"target_epsilon": 2.0, "target_delta": 1e-5, "accountant": "prv"},
            sample_rate=MNIST.batch / MNIST.units,
            steps=MNIST.rounds,
        )
    assert theirs * 0.99 < cell.sigma <= theirs


def test_noise_is_rounded_by_at_most_half_a_per_cent():
    for value in (0.6, 1.0, 1.2345, 140.0):
        assert rounded_noise(value) == pytest.approx(value, rel=0.0051)
        assert rounded_noise(rounded_noise(value)) == rounded_noise(value)


@pytest.mark.parametrize("first", [0.1, 6.4, 100.0])
def test_rates_are_searched_for_until_the_best_lies_inside(record, first):
    complete(record, LEVEL, first)
    outcome = record.outcome(LEVEL)
    assert outcome.complete
    assert outcome.rates == pytest.approx((6.4, 6.4), rel=0.42)


def test_the_other_seeds_are_played_at_the_best_rate_only(record):
    complete(record, LEVEL, 6.4)
    assert len(record) == 5  # three rates, two more seeds


def test_each_half_reports_what_the_other_half_chose(record):
    by_rate = {1.0: (0.5, 0.9), 2.0: (0.7, 0.8), 4.0: (0.6, 0.7), 0.5: (0.4, 0.6)}
    for seed in range(3):
        for rate, (first, second) in by_rate.items():
            training = Training(level=LEVEL, rate=rate, seed=seed)
            record.add(training, Accuracy(first_half=first, second_half=second))
    outcome = record.outcome(LEVEL)
    assert outcome.rates == (2.0, 1.0)
    assert outcome.mean == pytest.approx((0.8 + 0.5) / 2)
    assert outcome.complete


def test_both_halves_rates_are_searched_for_and_played_with_every_seed(record):
    def measured(training):
        return Accuracy(
            first_half=learned(training, 1.6).first_half,
            second_half=learned(training, 6.4).second_half,
        )

    while wanted := record.wanted(LEVEL, 3.2):
        record.add(wanted[0], measured(wanted[0]))
    assert record.outcome(LEVEL).rates == (1.6, 6.4)
    assert len(record) == 5 + 4  # rates from 0.8 to 12.8, two more seeds of two of them


def test_a_rate_that_was_never_inside_ends_the_search(record):
    while wanted := record.wanted(LEVEL, 1.0):
        record.add(wanted[0], Accuracy(first_half=wanted[0].rate, second_half=0.1))
    assert len(record) < 15


def test_what_was_trained_is_there_after_a_stop(record, tmp_path):
    complete(record, LEVEL)
    again = TrainingRecord(tmp_path / "trainings.csv")
    assert len(again) == len(record)
    assert again.outcome(LEVEL) == record.outcome(LEVEL)
    assert again.wanted(LEVEL, 1.0) == []


def test_levels_that_differ_share_no_training(record):
    complete(record, LEVEL)
    for change in ({"noise": 1.01}, {"cap": 2.0}, {"p": 0.25}, {"rounds": 4}):
        assert record.outcome(dataclasses.replace(LEVEL, **change)) is None


def test_a_damaged_row_is_named(tmp_path):
    path = tmp_path / "trainings.csv"
    path.write_text(
        "rounds,p,q,cap,noise,rate,seed,first_half,second_half\n3,0.5,0.5,,1,1,0,much,0.5\n"
    )
    with pytest.raises(UserError, match=r"trainings\.csv has a row that is no training"):
        TrainingRecord(path)


def test_a_plan_for_everybody_trains_no_line_in_which_coins_are_flipped():
    cells = cells_of(COMPARISONS["mnist-tanh"])
    assert {cell.level.p for cell in cells} == {1.0}
    assert {cell.line.name for cell in cells} == {
        "no privacy",
        "centralised DP-SGD",
        "trusted, everybody",
    }


def test_without_privacy_no_noise_is_added():
    level = cells_of(MNIST)[0].level
    request = request_of(MNIST, Training(level=level, rate=0.1, seed=0))
    assert (request.sigma, request.chosen_scheme) == (None, "none")


def test_anchors_are_tuned_first_and_every_level_is_trained_before_seeds(record):
    cells = cells_of(MNIST)[:21]
    levels = list(dict.fromkeys(cell.level for cell in cells))
    anchors = {cell.level for cell in cells if cell.line in playing.ANCHORS}

    def stages():
        while wanted := playing._by_urgency(MNIST, record, levels, anchors):
            yield wanted[0]
            record.add(wanted[0], learned(wanted[0]))

    played = list(stages())
    tuned = max(n for n, each in enumerate(played) if each.level in anchors and each.seed == 0)
    assert {each.level for each in played[: tuned + 1]} == anchors
    more_seeds = min(n for n, each in enumerate(played) if each.seed > 0)
    assert {each.level for each in played[:more_seeds]} == set(levels)


@pytest.fixture(scope="module")
def brief():
    return dataclasses.replace(COMPARISONS["clinics"], rounds=2, batch=40)


def test_visits_of_a_patient_are_one_person(brief):
    data = visits()
    assert len(set(data.train.persons.tolist())) == brief.units
    assert brief.unit is Unit.PERSON


def test_a_comparison_is_trained_until_it_is_stopped_and_then_continued(
    brief, record, tmp_path, monkeypatch
):
    monkeypatch.setattr(playing, "lines_of", lambda _: list(LINES[:2]))
    monkeypatch.setattr(playing, "EPSILONS", (2.0,))
    told = []

    def stopped():
        return len(record) >= 2

    play(brief, record, {}, jobs=1, stopped=stopped, progress=lambda *each: told.append(each))
    assert len(record) == 2
    write_page(brief, record, tmp_path, command="coinflower …")
    page = (tmp_path / "README.md").read_text()
    assert "–" in page
    assert "are begun" in page
    with (tmp_path / "results.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {row["seeds"] for row in rows} >= {"0", "1"}
    assert told[0] == (0, 2)


def test_the_overview_needs_a_place_for_its_table(tmp_path):
    page = tmp_path / "README.md"
    page.write_text("# Results\n")
    with pytest.raises(UserError, match="has no table between"):
        write_overview([], {}, page)


def test_the_overview_replaces_its_table_and_nothing_else(tmp_path, record):
    page = tmp_path / "README.md"
    page.write_text("before\n<!-- the table begins -->\nold\n<!-- the table ends -->\nafter\n")
    complete(record, cells_of(MNIST)[0].level)
    others = {"clinics": TrainingRecord(tmp_path / "none.csv")}
    write_overview([MNIST, COMPARISONS["clinics"]], {"mnist": record, **others}, page)
    text = page.read_text()
    assert text.startswith("before\n")
    assert text.endswith("<!-- the table ends -->\nafter\n")
    assert "old" not in text
    assert "| trusted, capped | – |" in text
    assert "patients protected**: not trained yet | – |" in text


def test_data_that_nobody_named_is_asked_for():
    with pytest.raises(UserError, match="--mnist PATH"):
        load_source(MNIST, {})


def test_an_unknown_comparison_is_refused(tmp_path):
    with pytest.raises(UserError, match="'mnits' is no comparison"):
        CliRunner().invoke(
            app, ["paper", "results", "mnits", "--out", str(tmp_path)], catch_exceptions=False
        )


@pytest.mark.parametrize("name", [each for each in COMPARISONS if (RESULTS / each).exists()])
def test_the_pages_say_what_their_trainings_say(name, tmp_path):
    kept = TrainingRecord(RESULTS / name / "trainings.csv")
    page = (RESULTS / name / "README.md").read_text()
    command = next(line for line in page.splitlines() if line.startswith("coinflower paper"))
    write_page(COMPARISONS[name], kept, tmp_path, command=command)
    assert (tmp_path / "README.md").read_text() == page
    for figures in tmp_path.glob("*.csv"):
        assert figures.read_text() == (RESULTS / name / figures.name).read_text()
