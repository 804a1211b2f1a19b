"""`coinflower plan`: what it proposes starts, and costs what it says."""

import json
import math
import shlex
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from coinflower.accounting.composition.calibration import Split, splits_for_batch
from coinflower.accounting.errors import UserError
from coinflower.accounting.ledger.entries import Budget
from coinflower.accounting.ledger.ledger import BudgetExceededError, Ledger
from coinflower.accounting.mechanism import Round
from coinflower.cli.main import app
from coinflower.learning import make_task
from coinflower.protocol.modes import PRIVATE_MODES, Mode
from coinflower.protocol.notary_key import notary_line
from coinflower.protocol.planning.evaluation_price import price_of_evaluations
from coinflower.protocol.planning.planner import (
    ACCURACY,
    Wishes,
    batch_for,
    batches,
    suggested_delta,
)
from coinflower.protocol.planning.proposal import propose
from coinflower.protocol.policy import Refusal, RefusedError, load_policy
from coinflower.server.settings import load_settings

WISHES = {"clients": 8, "d": 60, "rounds": 4, "epsilon": 2.0, "delta": 1e-4, "largest_p": 0.5}
OPTIONS = (
    "plan --clients 8 -d 60 --rounds 4 --epsilon 2 --delta 1e-4 --largest-p 0.5 --batch 24 --json"
)


def call(arguments, typed=""):
    return CliRunner().invoke(app, shlex.split(arguments), input=typed, catch_exceptions=False)


def proposal(mode=Mode.TRUSTED, cap=math.inf, **changes):
    notaries = ("a" * 64,) if mode.masks_sums else ()
    wishes = Wishes(**{**WISHES, "mode": mode, "notaries": notaries, **changes})
    splits = splits_for_batch(
        wishes.scheme,
        batch_size=24,
        clients=wishes.clients,
        d=wishes.d,
        epsilon=wishes.epsilon,
        delta=wishes.delta,
        rounds=wishes.rounds,
        largest_p=wishes.largest_p,
        count=1,
        caps=(cap,),
    )
    return propose(wishes, splits[0])


def with_evaluations(mode=Mode.TRUSTED, every=3, **changes):
    plain = proposal(mode, **changes)
    wishes, terms = plain.wishes, plain.terms
    price = price_of_evaluations(
        wishes.scheme,
        Round(terms.p, terms.q, wishes.d, terms.noise_multiplier, terms.cap),
        rounds=wishes.rounds,
        every=every,
        epsilon=wishes.epsilon,
        delta=wishes.delta,
    )
    split = Split(
        p=terms.p, q=terms.q, sigma=terms.noise_multiplier, cap=terms.cap, epsilon=plain.epsilon
    )
    return propose(wishes, split, evaluation=price)


@pytest.mark.parametrize("mode", PRIVATE_MODES)
def test_policy_and_ledger_accept_the_terms_at_the_stated_epsilon(tmp_path, mode):
    made = proposal(mode, largest_p=mode.usual_p)
    made.write(tmp_path)
    settings = load_settings(tmp_path / "settings.toml")
    policy = load_policy(tmp_path / "policy.toml")
    terms = settings.terms
    assert terms == made.terms
    policy.require(terms)
    with Ledger.create(tmp_path / "ledger.db", policy.data_set) as ledger:
        ledger.reserve(
            terms.ledger_key, terms.round_cost(policy.declared_size), terms.rounds, policy.budget
        )
        assert ledger.reserved_epsilon(policy.budget.delta) == made.epsilon
        assert made.epsilon <= policy.budget.epsilon


@pytest.mark.parametrize("mode", PRIVATE_MODES)
def test_policy_and_ledger_accept_a_training_and_its_evaluations(tmp_path, mode):
    made = with_evaluations(mode, largest_p=mode.usual_p)
    made.write(tmp_path)
    settings = load_settings(tmp_path / "settings.toml")
    policy = load_policy(tmp_path / "policy.toml")
    terms = settings.terms
    evaluation = settings.evaluation.terms(terms, make_task("classification", {}, outputs=10))
    with Ledger.create(tmp_path / "ledger.db", policy.data_set) as ledger:
        for each in (evaluation, terms):
            policy.require(each)
            cost = each.round_cost(policy.declared_size)
            ledger.reserve(each.ledger_key, cost, each.rounds, policy.budget)
        spent = ledger.reserved_epsilon(policy.budget.delta)
    assert evaluation.rounds == made.evaluation.times == 2
    assert spent == pytest.approx(made.evaluation.together)
    assert 0.99 * policy.budget.epsilon < spent <= policy.budget.epsilon


def test_the_policy_of_a_plan_without_evaluations_refuses_them(tmp_path):
    made = with_evaluations()
    made.write(tmp_path / "with")
    proposal().write(tmp_path / "without")
    settings = load_settings(tmp_path / "with" / "settings.toml")
    task = make_task("classification", {}, outputs=10)
    with pytest.raises(RefusedError) as refused:
        load_policy(tmp_path / "without" / "policy.toml").require(
            settings.evaluation.terms(settings.terms, task)
        )
    assert refused.value.refusal is Refusal.QUERY


def test_a_plan_with_evaluations_names_them_in_its_trial_and_its_figures():
    found = json.loads(call(f"{OPTIONS} --evaluate-every 3").stdout)
    plain = json.loads(call(OPTIONS).stdout)
    priced = found["evaluation"]
    (trial,) = found["commands"]["trial"]
    assert f"--evaluate-every 3 --evaluation-epsilon {priced['epsilon']!r}" in trial
    assert priced["training_sigma"] == found["terms"]["noise_multiplier"]
    assert found["terms"]["noise_multiplier"] > plain["terms"]["noise_multiplier"]
    assert tomllib.loads(found["settings_toml"])["evaluation"] == {
        "every": 3,
        "noise_multiplier": priced["sigma"],
    }
    assert plain["evaluation"] is None
    assert "evaluation" not in plain["settings_toml"] + plain["policy_toml"]


def test_the_noise_is_no_more_than_the_budget_asks_for(tmp_path):
    made = proposal()
    noise = made.terms.noise_multiplier * 0.99
    less = replace(made.terms, noise_multiplier=noise).round_cost(60)
    budget = Budget(epsilon=2.0, delta=1e-4)
    with (
        Ledger.create(tmp_path / "ledger.db", "ward") as ledger,
        pytest.raises(BudgetExceededError),
    ):
        ledger.reserve("weaker", less, 4, budget)


@pytest.mark.parametrize("weaker", [{"p": 0.6}, {"q": 0.9}, {"noise_multiplier": 0.1}])
def test_the_policy_refuses_anything_weaker(tmp_path, weaker):
    made = proposal()
    made.write(tmp_path)
    fields = {**made.terms.to_fields(), **weaker}
    with pytest.raises(RefusedError):
        load_policy(tmp_path / "policy.toml").require(type(made.terms).from_fields(fields))


def test_json_has_everything_without_a_question():
    done = call(OPTIONS)
    assert done.exit_code == 0
    assert done.stderr == ""
    found = json.loads(done.stdout)
    assert found["terms"]["noise_multiplier"] >= found["sigma"]
    assert found["terms_epsilon"] <= found["epsilon"] * 1.001 <= 2.002
    assert tomllib.loads(found["settings_toml"])["terms"] == found["terms"]
    assert tomllib.loads(found["policy_toml"])["budget"] == {"epsilon": 2.0, "delta": 1e-4}
    assert set(found["commands"]) == {"trial", "server", "client"}


def test_bad_answers_are_asked_again_with_a_sentence(tmp_path):
    out = tmp_path / "plan"
    typed = [
        *("ten", "0", "8"),
        *("60.5", "60"),
        *("-3", "4"),
        *("none", "trustful", "trusted"),
        *("2", "half", "0.5"),
        *("very", "-1", "2"),
        *("1", "1e-4"),
        *("much", "1e9", "24"),
    ]
    done = call(f"plan --interactive --out {out}", "\n".join(typed) + "\n")
    assert done.exit_code == 0
    for sentence in (
        "clients = 'ten' is not a whole number",
        "clients = 0 must be an integer of at least 1",
        "records = '60.5' is not a whole number",
        "rounds = -3 must be",
        "mode = 'none' protects nothing",
        "mode = 'trustful' is unknown",
        "the share = 2.0 is not a probability",
        "'half' is not understood",
        "'very' is not understood; give strict, balanced, loose",
        "epsilon = -1.0 must be",
        "delta = 1.0 must lie strictly between 0 and 1",
        "'much' is not understood; give fast, balanced, accurate",
        "is more than the 240 records",
    ):
        assert sentence in done.stderr
    made = load_settings(out / "settings.toml").terms
    assert (made.p * made.q * 8 * 60, made.rounds) == (pytest.approx(24, rel=1e-3), 4)
    assert made.p <= 0.5
    assert str(out / "policy.toml") in done.stdout


def test_enter_takes_the_defaults_and_options_are_not_asked():
    given = "--clients 4 -d 40 --rounds 2 --epsilon 4 --batch 16"
    done = call(f"plan --interactive {given} --json", "\n\n\n")
    assert done.exit_code == 0
    found = json.loads(done.stdout)
    assert found["mode"] == "trusted"
    assert found["delta"] == suggested_delta(4, 40) == 1e-4
    assert found["largest_p"] == 0.5
    assert "How many clients" not in done.stderr
    assert "Largest share of rounds" in done.stderr


@pytest.mark.parametrize(
    ("clients", "d", "delta"), [(1, 1, 1e-1), (10, 100, 1e-4), (10, 101, 1e-5), (8, 60, 1e-4)]
)
def test_the_suggested_delta_is_at_most_a_tenth_of_one_over_all_samples(clients, d, delta):
    assert suggested_delta(clients, d) == delta <= 1 / (10 * clients * d)


def test_a_plan_by_the_ideal_is_warned_of():
    assert "'cs' is not an upper bound for a client" in call(f"{OPTIONS} --scheme cs").stderr


@pytest.mark.parametrize("place", ["trial", "server", "client"])
def test_the_commands_shown_exist_with_their_options(place):
    for line in proposal().commands[place]:
        words = shlex.split(line)[1:]
        name = words[: 2 if words[0] in ("keys", "server", "ledger") else 1]
        done = call(" ".join([*name, "--help"]))
        assert done.exit_code == 0
        assert [word for word in words if word.startswith("-") and word not in done.stdout] == []


def test_the_trial_runs_with_the_proposed_terms(monkeypatch):
    made = proposal(cap=2.0)
    asked = []

    def prepare(plan, out):
        asked.append(plan)
        raise InterruptedError

    monkeypatch.setattr("coinflower.deploy.local.cluster.prepare", prepare)
    (trial,) = made.commands["trial"]
    with pytest.raises(InterruptedError):
        call(trial.removeprefix("coinflower "))
    (plan,) = asked
    terms = made.terms
    assert (plan.p, plan.q, plan.sigma) == (terms.p, terms.q, terms.noise_multiplier)
    assert (plan.mode, plan.rounds, plan.model) == (terms.mode, terms.rounds, terms.model)
    assert (plan.cap, plan.update.learning_rate) == (terms.cap, made.learning_rate)
    assert plan.update.momentum == 0.9


def test_a_wish_for_accuracy_asks_for_larger_batches():
    wishes = Wishes(**WISHES)
    found = batches(wishes)
    chosen = [batch_for(found, wish) for wish in ACCURACY]
    assert chosen == sorted(chosen)
    assert chosen[0] < chosen[-1] <= wishes.largest_batch


def test_noise_of_every_client_adds_up_where_the_server_is_not_trusted():
    trusted, untrusted = proposal(), proposal(Mode.UNTRUSTED)
    assert untrusted.noise_share == pytest.approx(trusted.noise_share * 8**0.5)


def test_what_is_missing_is_named():
    with pytest.raises(ValueError, match=r"needs -d, --delta; use --interactive"):
        call("plan --clients 8 --rounds 4 --epsilon 2")


def test_another_scheme_than_the_modes_proposes_no_terms(tmp_path):
    found = json.loads(call(f"{OPTIONS} --scheme cs").stdout)
    assert "terms" not in found
    with pytest.raises(ValueError, match="leave out --scheme"):
        call(f"{OPTIONS} --scheme cs --out {tmp_path / 'plan'}")


def test_files_that_are_there_are_left_alone(tmp_path):
    (tmp_path / "policy.toml").write_text("mine")
    with pytest.raises(ValueError, match="exists already"):
        call(f"{OPTIONS} --out {tmp_path}")
    assert (tmp_path / "policy.toml").read_text() == "mine"
    assert not (tmp_path / "settings.toml").exists()


def test_a_plan_needs_no_batch_and_names_all_that_is_chosen():
    wishes = "--clients 200 -d 30 --epsilon 2 --delta 1e-5 --rounds 30"
    found = json.loads(call(f"plan {wishes} --json").stdout)
    assert found["p"] * found["q"] * 200 * 30 == pytest.approx(found["batch"])
    assert found["rounds"] == 30
    assert {"p", "q", "cap", "sigma", "batch", "learning_rate"} <= set(found)
    least, largest = found["learning_rate_range"]
    assert least <= found["learning_rate"] <= largest
    settings = tomllib.loads(found["settings_toml"])
    assert (
        settings["update"]
        == found["update"]
        == {
            **{"learning_rate": found["learning_rate"], "momentum": 0.9, "schedule": "cosine"},
            **{"warm_up_rounds": 3, "averaging": 0.9},
        }
    )
    ratios = [each["signal_to_noise"] for each in found["splits"]]
    assert ratios == sorted(ratios, reverse=True)


def test_a_cap_is_proposed_where_it_serves_and_what_is_written_keeps_it(tmp_path):
    wishes = "--clients 2000 -d 30 --epsilon 2 --delta 1e-5 --rounds 300 --batch 70"
    found = json.loads(
        call(f"plan {wishes} --largest-p 0.02 --json --out {tmp_path / 'plan'}").stdout
    )
    assert 1 <= found["cap"] <= 2
    terms = load_settings(tmp_path / "plan" / "settings.toml").terms
    policy = load_policy(tmp_path / "plan" / "policy.toml")
    assert terms.cap == policy.largest_cap == found["cap"]
    policy.require(terms)
    with pytest.raises(RefusedError):
        policy.require(replace(terms, cap=found["cap"] + 1))
    plain = json.loads(call(f"plan {wishes} --largest-p 0.02 --cap inf --json").stdout)
    assert plain["cap"] is None
    assert plain["signal_to_noise"] < found["signal_to_noise"]


def test_fewer_messages_are_taken_where_they_cost_little_noise():
    wishes = "--clients 2000 -d 30 --epsilon 2 --delta 1e-5 --rounds 300 --batch 70"
    found = json.loads(call(f"plan {wishes} --json").stdout)
    best = found["splits"][0]
    assert best["p"] == 1
    assert found["messages"] < best["messages"]
    assert best["signal_to_noise"] <= 1.05 * found["signal_to_noise"]
    assert found["weighing"].startswith("The coin pays")


def test_where_a_coin_does_not_pay_the_plan_says_what_it_would_cost():
    wishes = "--clients 50 -d 1000 --epsilon 2 --delta 1e-5 --rounds 100 --batch 5000"
    shown = " ".join(call(f"plan {wishes}").stdout.split())
    assert "A smaller p does not pay here" in shown
    found = json.loads(call(f"plan {wishes} --largest-p 0.5 --cap inf --json").stdout)
    assert found["secret_coin_pays"] is False


@pytest.mark.parametrize("mode", [Mode.QUIET, Mode.LOCAL_ONLY])
def test_where_coins_are_seen_no_cap_is_proposed(mode):
    done = call(f"plan --clients 8 -d 60 --rounds 4 --epsilon 2 --delta 1e-4 --mode {mode} --json")
    found = json.loads(done.stdout)
    assert {each["cap"] for each in found["splits"]} == {None}
    assert found["secret_coin_pays"] is None


def test_a_model_that_is_not_installed_is_planned_for_all_the_same():
    done = call(f"{OPTIONS} --model their.own:model")
    assert "100,000 parameters" in done.stderr
    assert json.loads(done.stdout)["terms"]["model"] == "their.own:model"


def test_bytes_per_round_limit_how_many_take_part():
    wishes = "--clients 200 -d 30 --epsilon 2 --delta 1e-5 --rounds 30 --model paper-cnn --batch 60"
    whole = json.loads(call(f"plan {wishes} --json").stdout)
    half = whole["splits"][0]["bytes_per_round"] / 2
    found = json.loads(call(f"plan {wishes} --bytes-per-round {half} --json").stdout)
    assert max(each["p"] for each in found["splits"]) == pytest.approx(0.5)
    assert max(each["bytes_per_round"] for each in found["splits"]) <= half * (1 + 1e-9)
    assert found["with_everybody"]["p"] == 1


@pytest.mark.parametrize(("mode", "complaint"), [("trusted", "one client"), ("untrusted", "all 8")])
def test_fewer_bytes_than_a_round_takes_are_refused(mode, complaint):
    with pytest.raises(ValueError, match=f"must be at least .* where {complaint}"):
        call(f"{OPTIONS} --mode {mode} --bytes-per-round 1000")


def test_hours_become_rounds():
    options = OPTIONS.replace("--rounds 4", "--hours 0.01 --round-seconds 9")
    assert json.loads(call(options).stdout)["rounds"] == 4
    with pytest.raises(ValueError, match=r"hours = 0\.001 is less than a round of 9 seconds"):
        call(options.replace("0.01", "0.001"))


def test_where_p_is_limited_the_plan_says_what_everybody_would_be_worth():
    wishes = "--clients 50 -d 100 --epsilon 2 --delta 1e-5 --rounds 30"
    found = json.loads(call(f"plan {wishes} --largest-p 0.2 --json").stdout)
    assert found["with_everybody"]["signal_to_noise"] > found["signal_to_noise"]
    shown = " ".join(call(f"plan {wishes} --largest-p 0.2").stdout.split())
    assert "If everybody could take part in every round (p = 1)" in shown
    assert "If everybody" not in call(f"plan {wishes}").stdout


def test_other_batches_are_shown_with_their_price():
    wishes = "--clients 50 -d 100 --epsilon 2 --delta 1e-5 --rounds 30"
    found = json.loads(call(f"plan {wishes} --json").stdout)
    batches = [each["batch"] for each in found["batches"]]
    assert batches == sorted(batches, reverse=True)
    assert found["batch"] in batches
    assert "Other batches" in call(f"plan {wishes}").stdout


def test_a_proxy_tunes_the_learning_rate_and_the_grid_is_reported(tmp_path):
    wishes = "--clients 20 -d 60 --rounds 4 --epsilon 8 --delta 1e-4 --batch 600"
    done = call(f"plan {wishes} --proxy digits --seed 1 --out {tmp_path / 'plan'} --json")
    found = json.loads(done.stdout)
    best = max(found["proxy"], key=lambda each: each["accuracy"])
    assert found["learning_rate"] == best["learning_rate"]
    assert (found["p"], found["q"]) == (best["p"], best["q"])
    assert len({each["learning_rate"] for each in found["proxy"]}) >= 3
    settings = load_settings(tmp_path / "plan" / "settings.toml")
    assert settings.update.learning_rate == best["learning_rate"]
    assert settings.terms.model == "digits"


def test_mode_masked_is_planned_without_a_notary_and_written_with_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    wishes = f"{OPTIONS} --mode masked"
    figures = json.loads(call(wishes).stdout)
    untrusted = json.loads(call(f"{OPTIONS} --mode untrusted").stdout)
    # Of 8 clients 7 must answer, and 1 may collude: 8 shares of a sixth.
    ratio = untrusted["signal_to_noise"] / figures["signal_to_noise"]
    assert ratio == pytest.approx(1 / math.sqrt(6))
    assert "terms" not in figures
    with pytest.raises(UserError, match="--out needs --notary in mode masked"):
        call(f"{wishes} --out plan")
    Path("notary.pub").write_text(notary_line(b"n" * 32))
    figures = json.loads(call(f"{wishes} --notary notary.pub --out plan").stdout)
    terms = load_settings(Path("plan/settings.toml")).terms
    assert terms.notaries == ((b"n" * 32).hex(),)
    assert (terms.threshold, terms.colluders, terms.ring_bits) == (7, 1, 32)
    load_policy(Path("plan/policy.toml")).require(terms)
    assert figures["commands"]["notary"][0] == "coinflower notary create"
    with pytest.raises(UserError, match="threshold = 9 is more than the 8 clients"):
        call(f"{wishes} --threshold 9")
