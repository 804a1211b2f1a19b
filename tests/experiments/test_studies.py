"""Studies: what is compared, how it is tuned and kept, and what their pages say."""

import csv
import json

import pytest

from experiments.simulator import NoiseModel
from experiments.studies import Question, Study, training_key
from experiments.study_page import write_page
from experiments.trainings import play

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
    return play(study(Question.TOTAL_BUDGET), kept, workers=1)


def table(path):
    with path.open() as file:
        return list(csv.DictReader(file))


def test_a_total_budget_is_compared_by_every_analysis():
    cases = study(Question.TOTAL_BUDGET, epsilons=(1.0, 2.0)).cases()
    assert [case.scheme for case in cases if case.epsilon == 1.0] == [
        "cs",
        "paper",
        "certified",
        "wcs",
        "ols",
    ]
    assert len(cases) == 11


def test_the_price_of_mistrust_compares_equal_epsilon_over_clients():
    cases = study(Question.UNTRUSTED_PRICE, clients=(10, 40)).cases()
    assert {(case.noise, case.clients) for case in cases} == {
        (noise, count) for noise in (NoiseModel.TRUSTED, NoiseModel.UNTRUSTED) for count in (10, 40)
    }


def test_every_analysis_meets_the_budget_it_claims(outcomes):
    for outcome in outcomes:
        if outcome.case.holds:
            assert outcome.epsilon <= 2.0
        elif outcome.epsilon is not None:
            assert outcome.epsilon > 2.0


def test_the_rate_that_did_best_on_the_tuning_images_is_taken(outcomes):
    for outcome in outcomes:
        assert set(outcome.tuning) == {0.05, 0.5}
        assert outcome.tuning[outcome.learning_rate] == max(outcome.tuning.values())
        assert len(outcome.accuracy) == 2


def test_trainings_that_are_there_are_not_played_again(outcomes, kept):
    files = {path: path.stat().st_mtime_ns for path in kept.iterdir()}
    again = play(study(Question.TOTAL_BUDGET), kept, workers=1, stopped=lambda: True)
    assert again == outcomes
    assert {path: path.stat().st_mtime_ns for path in kept.iterdir()} == files


def test_a_stopped_study_has_no_outcome(tmp_path):
    assert play(study(Question.TOTAL_BUDGET), tmp_path, workers=1, stopped=lambda: True) is None


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
        study(Question.TOTAL_BUDGET), outcomes, tmp_path, data="digits", command="coinflower …"
    )
    page = (tmp_path / "README.md").read_text()
    (theirs,) = (each for each in outcomes if each.case.scheme == "paper")
    assert f"`paper` for ε = 2 really costs ε = {theirs.epsilon:.3g}" in page
    assert "INSECURE" in page
    for name in ("over-budget", "over-true-epsilon", "over-iterations"):
        assert f"({name}.png)" in page
        assert (tmp_path / f"{name}.png").stat().st_size > 1000
        assert (tmp_path / f"{name}.svg").stat().st_size > 1000
    rows = table(tmp_path / "results.csv")
    assert [float(row["accuracy_mean"]) for row in rows] == pytest.approx(
        [each.mean for each in outcomes], abs=1e-5
    )
    assert len(table(tmp_path / "learning-rates.csv")) == 2 * len(outcomes)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [({"rates": ()}, "rates"), ({"seeds": 0}, "seeds"), ({"epsilons": ()}, "epsilons")],
)
def test_a_study_of_nothing_is_refused(changes, complaint):
    with pytest.raises(ValueError, match=complaint):
        study(Question.TOTAL_BUDGET, **changes)


def test_a_kept_training_holds_its_figures(outcomes, kept):
    results = [json.loads(path.read_text()) for path in kept.iterdir()]
    assert {"accuracy", "tuning_accuracy", "sigma", "epsilon", "insecure"} <= set(results[0])
    assert len(results) == len(outcomes) * 3
