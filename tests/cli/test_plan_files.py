"""What `coinflower plan` writes is what `coinflower simulate --plan` plays."""

import json
import shlex

import pytest
from typer.testing import CliRunner

from coinflower.cli.main import app

WISHES = "--clients 20 -d 60 --rounds 3 --epsilon 3 --delta 1e-4"


def call(arguments):
    return CliRunner().invoke(app, shlex.split(arguments), catch_exceptions=False)


@pytest.fixture(scope="module")
def planned(tmp_path_factory):
    folder = tmp_path_factory.mktemp("planned") / "plan"
    done = call(f"plan {WISHES} --largest-p 0.5 --cap 2 --out {folder} --json")
    return folder / "plan.json", json.loads(done.stdout)


def simulate(tmp_path, plan, more=""):
    done = call(f"simulate many-small --data digits --plan {plan} --out {tmp_path} --json {more}")
    return json.loads(done.stdout)


def test_a_simulation_takes_everything_from_the_plan(tmp_path, planned):
    path, figures = planned
    found = simulate(tmp_path / "run", path)
    terms = figures["terms"]
    for name in ("p", "q", "cap"):
        assert found[name] == terms[name]
    assert found["sigma"] == terms["noise_multiplier"]
    assert found["iterations"] == 3
    assert (found["clients"], found["d"]) == (20, 60)
    assert found["learning_rate"] == figures["learning_rate"]
    assert f"momentum {figures['momentum']:g}" in found["update"]
    assert found["epsilon"] == pytest.approx(figures["terms_epsilon"])


def test_what_is_printed_is_a_plan_as_well(tmp_path, planned):
    path, figures = planned
    printed = tmp_path / "printed.json"
    printed.write_text(json.dumps(figures))
    kept = {key: value for key, value in figures.items() if key != "files"}
    assert kept == json.loads(path.read_text())
    assert simulate(tmp_path / "run", printed)["sigma"] == figures["terms"]["noise_multiplier"]


def test_what_a_person_states_comes_before_the_plan(tmp_path, planned):
    found = simulate(
        tmp_path / "run", planned[0], "--iterations 2 --learning-rate 0.25 --clients 5"
    )
    assert (found["iterations"], found["learning_rate"], found["clients"]) == (2, 0.25, 5)
    assert found["cap"] == 2


def test_a_plan_is_not_played_for_more_than_it_costs(tmp_path, planned):
    with pytest.raises(ValueError, match="more than the total of 3 that was asked for"):
        simulate(tmp_path / "run", planned[0], "--iterations 30")


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (None, "cannot be read"),
        ("p = 1", "is no JSON"),
        ("{}", r"is no plan with terms \(it lacks 'terms'\)"),
        ("[1]", "is no plan with terms"),
        ('{"terms": {"p": 2}}', "The terms lack"),
    ],
)
def test_a_file_that_is_no_plan_is_refused_with_a_sentence(tmp_path, content, complaint):
    path = tmp_path / "plan.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ValueError, match=complaint):
        simulate(tmp_path / "run", path)


def test_a_plan_by_another_scheme_has_nothing_to_play(tmp_path):
    path = tmp_path / "plan.json"
    path.write_text(call(f"plan {WISHES} --scheme wcs --json").stdout)
    with pytest.raises(ValueError, match="without --scheme"):
        simulate(tmp_path / "run", path)
