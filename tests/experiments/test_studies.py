"""Studies: what is compared, how it is tuned and kept, and what their pages say."""

import csv
import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from coinflower.accounting.rounding import rounded_up
from coinflower.experiments.studies.drawing import draw
from coinflower.experiments.studies.page import write_page
from coinflower.experiments.studies.studies import Case, Question, Study, training_key
from coinflower.experiments.studies.tables import write_tables
from coinflower.experiments.studies.trainings import play
from tools.study_outcomes import read_outcomes
from tools.study_redraw import redraw

RESULTS = Path(__file__).parents[2] / "docs" / "results"
BRIEF = {
    "scenario": "many-small",
    "data": "digits",
    "model": "digits",
    "iterations": 4,
    "epsilons": (2.0,),
    "rates": (0.05, 0.5),
    "seeds": 2,
    "test_images": 100,
}


def study(question, **changes):
    return Study(question=question, **{**BRIEF, **changes})


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    return tmp_path_factory.mktemp("trainings")


@pytest.fixture(scope="module")
def outcomes(kept):
    return play(study(Question.PER_ITERATION), kept, workers=1)


def table(path):
    with path.open() as file:
        return list(csv.DictReader(file))


def test_the_rate_that_did_best_on_the_tuning_images_is_taken(outcomes):
    for outcome in outcomes:
        assert set(outcome.tuning) == {0.05, 0.5}
        assert outcome.tuning[outcome.learning_rate] == max(outcome.tuning.values())
        assert len(outcome.accuracy) == 2


def test_trainings_that_are_there_are_not_played_again(outcomes, kept):
    files = {path: path.stat().st_mtime_ns for path in kept.iterdir()}
    again = play(study(Question.PER_ITERATION), kept, workers=1, stopped=lambda: True)
    assert again == outcomes
    assert {path: path.stat().st_mtime_ns for path in kept.iterdir()} == files


def test_a_stopped_study_has_no_outcome(tmp_path):
    assert play(study(Question.PER_ITERATION), tmp_path, workers=1, stopped=lambda: True) is None


def test_different_trainings_have_different_keys():
    first = study(Question.PER_ITERATION)
    case, other = first.cases()[2:4]
    keys = {
        training_key(first.request(case, 0.1, 0), 100),
        training_key(first.request(case, 0.1, 1), 100),
        training_key(first.request(case, 0.2, 0), 100),
        training_key(first.request(other, 0.1, 0), 100),
        training_key(first.request(case, 0.1, 0), 200),
    }
    assert len(keys) == 5


def test_the_page_states_what_the_papers_noise_really_costs(outcomes, tmp_path):
    write_page(
        study(Question.PER_ITERATION), outcomes, tmp_path, data="digits", command="coinflower …"
    )
    page = (tmp_path / "README.md").read_text()
    (theirs,) = (each for each in outcomes if each.case.scheme == "paper")
    assert f"`paper` really costs ε = {rounded_up(theirs.epsilon, 3)}" in page
    assert "INSECURE" in page
    for name in ("over-epsilon", "over-iterations"):
        assert f"({name}.png)" in page
        assert (tmp_path / f"{name}.png").stat().st_size > 1000
        assert (tmp_path / f"{name}.svg").stat().st_size > 1000
    rows = table(tmp_path / "results.csv")
    assert [float(row["accuracy_mean"]) for row in rows] == pytest.approx(
        [each.mean for each in outcomes], abs=1e-5
    )
    assert len(table(tmp_path / "learning-rates.csv")) == 2 * len(outcomes)


def test_learning_rates_at_the_edge_of_those_tried_are_marked(outcomes, tmp_path):
    write_page(
        study(Question.PER_ITERATION), outcomes, tmp_path, data="digits", command="coinflower …"
    )
    page = (tmp_path / "README.md").read_text()
    for each in outcomes:
        mark = "≤" if each.learning_rate == 0.05 else "≥"
        assert f"| {mark} {each.learning_rate:g} | {each.mean:.1%}" in page
    assert "**6 of 6 learning rates lie at the edge of those tried**" in page
    assert "standard deviation; 6 of 6 learning rates at the edge of those tried" in page


def test_a_learning_rate_between_others_is_not_marked(outcomes):
    tuning = {0.01: 0.1, 0.1: 0.2, 1.0: 0.3}
    marks = [replace(outcomes[0], tuning=tuning, learning_rate=rate).edge for rate in tuning]
    assert marks == ["≤ ", "", "≥ "]


def test_rates_beyond_are_tried_until_the_best_lies_inside(tmp_path, monkeypatch):
    best = {"certified": 20.0, "paper": 0.1}
    steps = []

    def learn(request, _test_images, _path):
        away = abs(math.log(request.update.step_size / best[request.scheme]))
        return {
            **{"tuning_accuracy": -away, "accuracy": 0.5, "sigma": 1.0, "epsilon": 1.0},
            **{"clients": 3, "curve": {"4": 0.5}, "p": 0.1, "q": 0.1, "d": 30},
        }

    def play_here(requests, study, folder, workers, stopped):
        return ((request, learn(request, 0, folder)) for request in requests)

    monkeypatch.setattr("coinflower.experiments.studies.trainings._played", play_here)
    asked = study(
        Question.CAP, caps=(2.0, math.inf), rates=(0.1, 0.2, 0.4), extend=True, iterations=4
    )
    found = play(asked, tmp_path, workers=1, progress=lambda done, of: steps.append((done, of)))
    for outcome in found:
        assert outcome.edge == ""
        assert abs(math.log(outcome.learning_rate / best[outcome.case.scheme])) < math.log(2)
        assert list(outcome.tuning) == sorted(outcome.tuning)
    assert steps[-1][0] == steps[-1][1]
    assert [done for done, _ in steps] == list(range(1, len(steps) + 1))


def test_the_cap_is_studied_at_every_budget_and_beside_the_papers_noise():
    cases = study(Question.CAP, epsilons=(1.0, 2.0), caps=(1.5, math.inf)).cases()
    assert {(case.epsilon, case.cap) for case in cases if case.scheme == "certified"} == {
        (epsilon, cap) for epsilon in (1.0, 2.0, None) for cap in (1.5, math.inf)
    }
    assert cases[-1] == Case(scheme="paper")


def test_the_page_of_the_cap_compares_it_with_none_and_with_the_papers_noise(tmp_path):
    asked = study(Question.CAP, caps=(1.5, math.inf), seeds=1)
    found = play(asked, tmp_path / "kept", workers=1)
    noise = {(each.case.epsilon, each.case.cap): each.sigma for each in found[:-1]}
    for epsilon in (2.0, None):
        assert noise[epsilon, 1.5] < noise[epsilon, math.inf]
    write_page(asked, found, tmp_path, data="digits", command="coinflower …")
    page = (tmp_path / "README.md").read_text()
    assert "| certified, cap 1.5 | 2 |" in page
    assert "- At ε = 2: " in page
    assert "The paper's σ = " in page
    assert (tmp_path / "over-cap.png").stat().st_size > 1000
    assert [each.case for each in read_outcomes(tmp_path)] == asked.cases()


def test_what_csv_files_hold_is_read_again(outcomes, tmp_path):
    write_tables(study(Question.PER_ITERATION), outcomes, tmp_path)
    for read, made in zip(read_outcomes(tmp_path), outcomes, strict=True):
        assert (read.case, read.sigma, read.epsilon) == (made.case, made.sigma, made.epsilon)
        assert (read.tuning, read.clients) == (made.tuning, made.clients)
        assert read.mean == pytest.approx(made.mean, abs=1e-5)
        assert read.spread == pytest.approx(made.spread, abs=1e-5)
        assert list(read.curve) == list(made.curve)


STUDIES = sorted(path.with_name("README.md") for path in RESULTS.glob("*/curves.csv"))


@pytest.mark.parametrize("page", STUDIES, ids=lambda p: p.parent.name)
def test_the_pages_of_results_say_what_their_figures_say(page, tmp_path):
    redraw(page.parent, tmp_path)
    assert (tmp_path / "README.md").read_text() == page.read_text()


@pytest.fixture
def pictures(monkeypatch):
    drawn = []

    def keep(figure, *_paths):
        figure.canvas.draw()
        drawn.append(figure.axes[0])

    monkeypatch.setattr("coinflower.experiments.studies.drawing.save", keep)
    return drawn


def test_no_legend_covers_points(outcomes, tmp_path, pictures):
    draw(study(Question.PER_ITERATION), outcomes, tmp_path)
    for axes in pictures:
        assert axes.get_legend().get_window_extent().y1 < axes.get_window_extent().y0


def test_the_papers_noise_lies_open_upon_all_others(outcomes, tmp_path, pictures):
    draw(study(Question.PER_ITERATION), outcomes, tmp_path)
    last = pictures[-1].get_lines()[-1]
    assert last.get_label().startswith("paper")
    assert last.get_markerfacecolor() == "none"


@pytest.mark.parametrize(
    ("iterations", "interval"), [(600, 100), (400, 50), (800, 100), (4, 1), (601, 100)]
)
def test_points_of_a_curve_are_evenly_spaced_where_that_takes_few(iterations, interval):
    wanted = study(Question.PER_ITERATION, iterations=iterations)
    assert wanted.request(wanted.cases()[0], 0.1, 0).evaluate_every == interval


def test_trainings_of_another_format_are_not_taken(monkeypatch):
    request = study(Question.PER_ITERATION).request(Case(scheme="wcs"), 0.1, 0)
    key = training_key(request, 100)
    monkeypatch.setattr("coinflower.experiments.studies.studies._FORMAT", 0)
    assert training_key(request, 100) != key


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"partition": "writer"}, "writer"),
        ({"epsilons": (2.0, 1e-6)}, "asks for sigma"),
    ],
)
def test_a_case_that_cannot_be_trained_is_refused_before_any_is(tmp_path, changes, complaint):
    with pytest.raises(ValueError, match=complaint):
        play(study(Question.CAP, **changes), tmp_path / "kept", workers=1)
    assert not (tmp_path / "kept").exists()


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"rates": ()}, "rates"),
        ({"rates": (0.1, -1.0)}, r"rates: learning rate = -1\.0"),
        ({"seeds": 0}, "seeds = 0"),
        ({"epsilons": ()}, "epsilons"),
        ({"epsilons": (1.0, 0.0)}, r"epsilons: epsilon = 0\.0"),
        ({"delta": 3.0}, r"delta = 3\.0"),
        ({"iterations": 0}, "iterations = 0"),
        ({"test_images": 0}, "test images = 0"),
        ({"partition": "halves"}, "partition = 'halves'"),
    ],
)
def test_a_study_of_nothing_is_refused(changes, complaint):
    with pytest.raises(ValueError, match=complaint):
        study(Question.CAP, **changes)


def test_a_kept_training_holds_its_figures(outcomes, kept):
    results = [json.loads(path.read_text()) for path in kept.iterdir()]
    assert {"accuracy", "tuning_accuracy", "sigma", "epsilon", "insecure"} <= set(results[0])
    assert len(results) == len(outcomes) * 3
