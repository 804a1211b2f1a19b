"""`coinflower explain`: sentences whose figures are the ledger's, and bounds that hold."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import norm
from typer.testing import CliRunner

from coinflower.accounting.analyses.baselines import OnlyLocalSampling, WeakClientSampling
from coinflower.accounting.analyses.certified import Certified
from coinflower.accounting.analyses.client_unit import SeenWholeClient, WholeClient
from coinflower.accounting.composition.compose import delta_after, epsilon_after
from coinflower.accounting.ledger.entries import Budget
from coinflower.accounting.ledger.ledger import Ledger
from coinflower.accounting.mechanism import Round
from coinflower.accounting.rounding import rounded_down, rounded_up
from coinflower.cli.main import app
from coinflower.learning import SeededRandom
from coinflower.protocol.modes import PRIVATE_MODES, Mode
from coinflower.protocol.unit import Unit
from coinflower.report.guarantee import detection_rate, group_loss, guessing_chance
from tests.support import builders

COST = Certified(Round(p=0.5, q=0.1, d=40, noise_multiplier=1.5))
BUDGET = Budget(epsilon=4.0, delta=1e-3)


def make_terms(mode):
    return builders.make_terms(
        mode, experiment="heart", q=0.1, rounds=2, rounds_per_invitation=1, noise_multiplier=1.5
    )


def call(*arguments):
    return CliRunner().invoke(app, ["explain", *map(str, arguments)], catch_exceptions=False)


def told(*arguments):
    done = call(*arguments)
    assert done.exit_code == 0
    return " ".join(done.stdout.split())


@pytest.fixture
def ledger(tmp_path):
    with Ledger.create(tmp_path / "ward.db", "ward 7") as opened:
        yield opened


def charge(ledger, experiment, cost, rounds, reserved=None):
    ledger.reserve(experiment, cost, reserved or rounds, BUDGET)
    ledger.flip_all(experiment, range(1, rounds + 1))


def write_policy(folder):
    return builders.write_policy(
        folder / "policy.toml",
        ledger="ward.db",
        declared_size=40,
        modes=["trusted"],
        largest_q=0.1,
        least_noise_multiplier=1.5,
        budget={"epsilon": 4.0, "delta": 1e-3},
    )


def test_spent_reserved_and_left_are_the_ledgers(ledger, tmp_path):
    charge(ledger, "heart#ab", COST, 3, reserved=6)
    charge(
        ledger, "lung#cd", WeakClientSampling(Round(p=0.5, q=0.1, d=40, noise_multiplier=2.0)), 2
    )
    found = json.loads(call(ledger.path, "--policy", write_policy(tmp_path), "--json").stdout)
    assert found["epsilon"] == ledger.spent(1e-3)
    assert found["committed_epsilon"] == ledger.reserved_epsilon(1e-3)
    assert found["left_epsilon"] == 4.0 - ledger.reserved_epsilon(1e-3)
    assert (found["rounds"], found["delta"], found["secure"]) == (5, 1e-3, True)
    text = told(ledger.path, "--policy", tmp_path / "policy.toml")
    assert (
        f"spent ε ≤ {rounded_up(ledger.spent(1e-3))} at δ = 0.001: 5 rounds of 2 experiments"
        in text
    )
    assert "heart: charged as certified" in text
    assert "lung: charged as wcs" in text
    assert f"may bring it to ε ≤ {rounded_up(ledger.reserved_epsilon(1e-3))}" in text
    assert f"ε = {rounded_down(found['left_epsilon'])} is neither spent nor reserved" in text


def test_it_says_what_is_protected_and_what_is_not(ledger):
    charge(ledger, "heart#ab", COST, 1)
    text = told(ledger.path)
    for words in (
        "but not the server",
        "A patient with several records is protected less",
        "What it does not mean",
        "Training that bypassed the ledger",
        "name it with --policy",
        "blind guessing is right in 50 %",
    ):
        assert words in text
    assert "INSECURE" not in text


@pytest.mark.parametrize("mode", PRIVATE_MODES)
def test_it_names_the_mode_of_an_experiment_and_whom_that_protects_against(ledger, mode):
    terms = make_terms(mode)
    cost = terms.round_cost(40)
    ledger.reserve(terms.ledger_key, cost, 2, BUDGET, agreed=terms.to_json())
    ledger.flip(terms.ledger_key, 1)
    found = json.loads(call(ledger.path, "--json").stdout)
    first, *caveats = found["sections"]["Who is protected against whom"]
    assert first == (
        f"heart: mode {mode}, charged as {cost.name} ({cost.title}). "
        f"It holds against {mode.facts.against}."
    )
    assert caveats == [mode.facts.caveat] * bool(mode.facts.caveat)
    shown = CliRunner().invoke(app, ["ledger", "show", str(ledger.path), "--json"])
    assert [one["mode"] for one in json.loads(shown.stdout)["experiments"]] == [mode]


def charge_terms(ledger, **changes):
    terms = replace(make_terms(Mode.TRUSTED), **changes)
    ledger.reserve(terms.ledger_key, terms.round_cost(40), 2, BUDGET, agreed=terms.to_json())
    ledger.flip(terms.ledger_key, 1)


def shown(ledger, *more):
    return CliRunner().invoke(app, ["ledger", "show", str(ledger.path), *more]).stdout


def test_persons_are_named_if_they_are_what_is_protected(ledger):
    charge_terms(ledger, unit=Unit.PERSON)
    text = told(ledger.path)
    for words in (
        "For whom: one person",
        "All figures are for one person, with all of that person's records in this data set, added",
        "knows the records of everybody else",
        "as likely as not that a certain person was among the data",
        "of the persons that are in the data",
        "the unluckiest person",
        "A person whose records are at several clients is protected by each of them separately",
        "A person under two ids counts as two persons",
        "2 persons: ε ≤",
    ):
        assert words in text
    assert "patient with several records" not in text
    assert json.loads(call(ledger.path, "--json").stdout)["unit"] == "person"
    printed = " ".join(shown(ledger).split())
    assert "for one person, with all of that person's records in this data set." in printed
    found = json.loads(shown(ledger, "--json"))
    assert (found["unit"], found["experiments"][0]["unit"]) == ("person", "person")


def test_a_ledger_of_both_units_says_for_whom_its_sum_holds(ledger):
    charge_terms(ledger, experiment="lung")
    charge_terms(ledger, unit=Unit.PERSON)
    text = told(ledger.path)
    for words in (
        "All figures are for one person who has a single record in this data set, since some",
        "a certain person with a single record was among the data",
        "loses up to k times as much in those that protect records: lung.",
    ):
        assert words in text
    assert json.loads(call(ledger.path, "--json").stdout)["unit"] == "mixed"
    found = json.loads(shown(ledger, "--json"))
    assert found["unit"] == "mixed"
    assert [one["unit"] for one in found["experiments"]] == ["person", "record"]
    assert "for one person who has a single record" in " ".join(shown(ledger).split())


def test_a_ledger_of_records_says_so(ledger):
    charge(ledger, "heart#ab", COST, 1)
    assert "All figures are for one record, added or removed." in told(ledger.path)
    assert json.loads(call(ledger.path, "--json").stdout)["unit"] == "record"
    assert "All of this is for one record." in " ".join(shown(ledger).split())


def test_a_mode_that_does_not_belong_to_the_experiment_is_not_believed(ledger):
    terms = make_terms(Mode.TRUSTED)
    lie = replace(terms, mode=Mode.UNTRUSTED).to_json()
    for key, agreed in ((terms.ledger_key, lie), ("lung#cd", '{"mode":"of another version"}')):
        ledger.reserve(key, terms.round_cost(40), 1, BUDGET, agreed=agreed)
        ledger.flip(key, 1)
    text = told(ledger.path)
    assert "heart, lung: charged as certified" in text
    assert "this ledger does not name the mode. In mode trusted it holds against" in text
    for mode in (Mode.TRUSTED, Mode.COVERED, Mode.UNTRUSTED):
        assert f"In mode {mode} it holds against {mode.facts.against}" in text
    assert "In mode quiet" not in text


def test_of_very_many_experiments_only_a_few_are_named(ledger):
    for index in range(12):
        charge(ledger, f"one-{index:02}#ab", COST, 1)
    assert "one-09 and 2 more: charged as certified" in told(ledger.path)


def test_an_empty_ledger_has_charged_nothing_and_knows_nothing_of_mode_none(ledger):
    found = json.loads(call(ledger.path, "--json").stdout)
    assert (found["epsilon"], found["rounds"]) == (0.0, 0)
    assert found["guessing_chance"] == 0.5
    text = told(ledger.path)
    assert "No round was ever charged" in text
    assert "Mode none charges nothing and protects nothing" in text


def test_the_client_as_a_whole_is_added_up_over_all_experiments(ledger):
    capped = Round(p=0.1, q=0.1, d=40, noise_multiplier=2.0, cap=1.5)
    seen = Round(p=0.1, q=0.1, d=40, noise_multiplier=3.0, cap=2.0)
    charge(ledger, "heart#ab", Certified(capped), 3, reserved=6)
    charge(ledger, "lung#cd", WeakClientSampling(seen), 2)
    found = json.loads(call(ledger.path, "--json").stdout)
    whole = epsilon_after([(WholeClient(capped), 3), (SeenWholeClient(seen), 2)], 1e-5)
    assert found["client_epsilon"] == whole > found["epsilon"]
    text = told(ledger.path)
    assert (
        f"And for the client as a whole, all its records at once: ε ≤ {rounded_up(whole)} at δ = "
        in text
    )


def test_a_client_that_is_plain_to_see_is_called_so(ledger):
    charge(ledger, "heart#ab", COST, 20)
    found = json.loads(call(ledger.path, "--json").stdout)
    assert found["client_epsilon"] > 20
    text = told(ledger.path)
    assert "The client as a whole is not protected" in text
    assert "A cap on its sum, or a smaller one, would hide more." in text


def test_of_very_many_terms_the_client_as_a_whole_is_not_worked_out(ledger, monkeypatch):
    monkeypatch.setattr("coinflower.report.explanation._MOST_WHOLE", 1)
    charge(ledger, "heart#ab", COST, 1)
    charge(ledger, "lung#cd", COST.with_noise(2.0), 1)
    found = json.loads(call(ledger.path, "--json").stdout)
    assert found["client_epsilon"] is None
    assert "loses, all its records at once, is not known" in told(ledger.path)


def test_seeded_coins_void_what_follows(tmp_path):
    with Ledger.create(tmp_path / "toy.db", "toy", coins=SeededRandom(1)) as seeded:
        charge(seeded, "toy", COST, 1)
    assert "INSECURE: coins or noise of at least one experiment were seeded" in told(
        tmp_path / "toy.db"
    )


def test_a_loose_budget_is_called_hardly_any_protection(ledger):
    ledger.reserve(
        "leak", OnlyLocalSampling(Round(p=1.0, q=1.0, d=40, noise_multiplier=0.2)), 1,
        Budget(epsilon=1e3, delta=1e-3),
    )  # fmt: skip
    ledger.flip("leak", 1)
    assert "hardly any protection" in told(ledger.path)


def test_another_delta_than_the_budgets_is_refused(ledger, tmp_path):
    with pytest.raises(ValueError, match=r"budget is at delta = 0\.001"):
        call(ledger.path, "--policy", write_policy(tmp_path), "--delta", "1e-5")


@pytest.mark.parametrize("sigma", [0.5, 1.0, 3.0])
def test_the_guessing_chance_is_exact_for_a_known_mechanism(sigma):
    cost = OnlyLocalSampling(Round(p=1.0, q=1.0, d=1, noise_multiplier=sigma))
    delta = 1e-5
    bound = guessing_chance(cost.delta(0.0), cost.epsilon(delta), delta)
    # The best guess between N(0, σ²) and N(1, σ²) cuts half-way.
    assert bound == pytest.approx(norm.cdf(1 / (2 * sigma)), rel=1e-9)


@pytest.mark.parametrize("alpha", [0.001, 0.01, 0.3])
def test_the_detection_rate_bounds_the_best_test_and_is_not_void(alpha):
    sigma, delta = 1.0, 1e-5
    cost = OnlyLocalSampling(Round(p=1.0, q=1.0, d=1, noise_multiplier=sigma))
    bound = detection_rate(alpha, cost.epsilon(delta), delta)
    best = norm.sf(norm.isf(alpha) - 1 / sigma)
    assert best <= bound <= 1
    assert detection_rate(alpha, 0.1, delta) < 1.2 * alpha + delta


@pytest.mark.parametrize("records", [2, 5])
def test_the_group_loss_bounds_several_records_together(records):
    sigma, delta = 4.0, 1e-6
    one = OnlyLocalSampling(Round(p=1.0, q=1.0, d=1, noise_multiplier=sigma))
    together = OnlyLocalSampling(Round(p=1.0, q=1.0, d=1, noise_multiplier=sigma / records))
    epsilon, group_delta = group_loss(records, one.epsilon(delta), delta)
    assert epsilon == pytest.approx(records * one.epsilon(delta))
    assert delta_after([(together, 1)], epsilon) <= group_delta < 1


def test_figures_stay_within_their_range_for_any_loss():
    for epsilon in (0.0, 1e-12, 1.0, 50.0, 1e4, math.inf):
        for delta in (1e-12, 0.5):
            assert 0 < detection_rate(0.01, epsilon, delta) <= 1
            assert 0.5 <= guessing_chance(COST.delta(0.0), epsilon, delta) <= 1
            assert np.isfinite(group_loss(10, epsilon, delta)[1])
