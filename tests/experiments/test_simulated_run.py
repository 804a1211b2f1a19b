"""Requests for a simulation: what is refused, what is told, and how one goes on."""

import dataclasses
import json
import math

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import save as save_tensors

from coinflower.accounting.analyses.certified import Certified
from coinflower.accounting.composition.compose import epsilon_after
from coinflower.accounting.mechanism import Round
from coinflower.experiments.simulator.request import Request
from coinflower.experiments.simulator.simulated_run import run_request
from coinflower.experiments.simulator.simulation import STATE, read_state
from coinflower.learning import Update, build_model, flatten_parameters, load_data
from coinflower.protocol.planning.choices import learning_rates

SMALL = Request(scenario="many-small", data="digits", model="digits", iterations=2)


def test_an_almost_empty_batch_is_warned_about():
    told = []
    run_request(dataclasses.replace(SMALL, p=0.001, q=0.01), note=told.append)
    assert any("most iterations are pure noise" in line for line in told)


def test_a_seeded_simulation_is_stamped():
    told = []
    results = run_request(dataclasses.replace(SMALL, seed=1), note=told.append)
    assert results["insecure"]
    assert any(line.startswith("INSECURE") for line in told)
    assert not run_request(SMALL)["insecure"]


def test_a_simulation_computes_on_at_least_one_thread():
    with pytest.raises(ValueError, match="threads = 0 must be an integer of at least 1"):
        dataclasses.replace(SMALL, threads=0)


def test_the_papers_learning_rate_is_the_default():
    assert run_request(SMALL)["learning_rate"] == 0.002
    assert run_request(dataclasses.replace(SMALL, scheme="ols"))["learning_rate"] == 1e-4


def test_with_a_total_epsilon_the_step_is_a_plans_and_falls_with_the_noise():
    steps = {}
    for total in (0.5, 2.0):
        results = run_request(dataclasses.replace(SMALL, total_epsilon=total))
        noise = results["sigma"] / 70
        model = build_model("digits", classes=10)
        parameters = flatten_parameters(model).numel()
        assert results["learning_rate"] == learning_rates(noise, parameters, clip_norm=1.0)[1]
        steps[total] = results["learning_rate"]
    assert steps[0.5] < steps[2.0]


def test_a_simulation_that_began_with_another_step_goes_on_with_it(tmp_path):
    earlier = Update(learning_rate=0.002, momentum=0.9)
    begin(tmp_path, total_epsilon=2.0, update=earlier)
    assert go_on(tmp_path, total_epsilon=2.0)["learning_rate"] == 0.002


def test_a_model_for_other_images_is_refused():
    with pytest.raises(ValueError, match="cannot take the 8 x 8 images of digits"):
        run_request(dataclasses.replace(SMALL, model="paper-cnn"))


def test_an_unknown_scheme_is_told_with_the_known_ones():
    with pytest.raises(ValueError, match=r"scheme = 'magic' is unknown.*certified"):
        dataclasses.replace(SMALL, scheme="magic")


def asked(**changes):
    return dataclasses.replace(SMALL, **changes)


def begin(folder, **changes):
    return run_request(asked(out=folder, **changes))


def go_on(folder, note=lambda _: None, **changes):
    return run_request(asked(out=folder, resume=True, **changes), note=note)


def cost(results, iterations):
    terms = Certified(
        Round(
            p=results["p"],
            q=results["q"],
            d=results["d"],
            noise_multiplier=results["sigma"],
            cap=results["cap"] or math.inf,
        )
    )
    return epsilon_after([(terms, iterations)], results["delta"])


@pytest.mark.parametrize(
    ("began", "asked_for", "told"),
    [
        ({"sigma": 0.5}, {"sigma": 50.0}, r"sigma = 0\.5, but sigma = 50\.0"),
        ({}, {"p": 0.01}, r"p = 0\.4964.*, but p = 0\.01"),
        ({}, {"q": 0.2}, r"q = 0\.1, but q = 0\.2"),
        ({}, {"clients": 20}, "clients = 47, but clients = 20"),
        ({}, {"partition": "dirichlet"}, "partition = equal, but partition = dirichlet"),
        ({}, {"noise": "untrusted"}, "noise = trusted, but noise = untrusted"),
        ({}, {"scheme": "wcs"}, "scheme = certified, but scheme = wcs"),
        ({}, {"availability": 0.5}, r"availability = 1\.0, but availability = 0\.5"),
        ({}, {"clipping": "automatic"}, "no clipping, but clipping = automatic"),
        ({}, {"clip_norm": 2.0}, r"clip norm = 1\.0, but clip norm = 2\.0"),
        ({}, {"cap": 2.0}, r"no cap, but cap = 2\.0"),
        ({"cap": 2.0}, {}, r"cap = 2\.0, but no cap"),
        ({"cap": 2.0}, {"cap": 3.0}, r"cap = 2\.0, but cap = 3\.0"),
        (
            {},
            {"update": Update(learning_rate=0.1, momentum=0.9)},
            r"learning rate = 0\.002, but learning rate = 0\.1",
        ),
        ({}, {"update": Update(momentum=0.5)}, r"momentum = 0\.9, but momentum = 0\.5"),
        ({}, {"delta": 1e-6}, "delta = 1e-05, but delta = 1e-06"),
        ({"seed": 3}, {}, "seed = 3, but no seed"),
        ({}, {"seed": 3}, "no seed, but seed = 3"),
        ({"seed": 3}, {"seed": 4}, "seed = 3, but seed = 4"),
    ],
)
def test_a_simulation_goes_on_only_as_it_began(tmp_path, began, asked_for, told):
    begin(tmp_path, **began)
    with pytest.raises(ValueError, match=f"began with {told} is asked for"):
        go_on(tmp_path, iterations=3, **asked_for)


def test_a_simulation_does_not_go_on_with_other_data(tmp_path):
    begin(tmp_path)
    digits = load_data("digits")
    other = dataclasses.replace(
        digits,
        train=dataclasses.replace(digits.train, targets=digits.train.targets[::-1].copy()),
    )
    with pytest.raises(ValueError, match=r"began with data = 1,437 records \(.*but data = 1,437"):
        run_request(asked(out=tmp_path, resume=True, iterations=3), data=other)


def test_going_on_keeps_the_noise_and_reports_what_all_iterations_cost(tmp_path):
    first = begin(tmp_path, total_epsilon=2.0)
    results = go_on(tmp_path, total_epsilon=20.0, iterations=6)
    assert results["sigma"] == first["sigma"]
    assert 2.0 < results["epsilon"] == cost(first, 6) <= 20.0


@pytest.mark.parametrize("again", [{"total_epsilon": 2.0}, {"total_epsilon": 0.5}, {}])
def test_going_on_beyond_the_stated_total_is_refused(tmp_path, again):
    first = begin(tmp_path, total_epsilon=2.0)
    before = (tmp_path / STATE).read_bytes()
    complaint = f"6 iterations with sigma = {first['sigma']:.6g} cost .* more than the total of"
    with pytest.raises(ValueError, match=complaint):
        go_on(tmp_path, iterations=6, **again)
    assert (tmp_path / STATE).read_bytes() == before


def test_a_total_below_what_is_spent_already_is_refused(tmp_path):
    played = begin(tmp_path, total_epsilon=2.0)["iterations"]
    with pytest.raises(ValueError, match=r"more than the total of 0\.1"):
        go_on(tmp_path, iterations=played, total_epsilon=0.1)


def test_an_analysis_that_understates_is_kept_to_and_told_of(tmp_path):
    told = []
    first = begin(tmp_path, total_epsilon=2.0, scheme="cs")
    go_on(tmp_path, told.append, total_epsilon=2.0, scheme="cs", iterations=first["iterations"])
    assert first["epsilon"] > 2.0
    assert any("more than the total of 2" in line for line in told)


def test_a_seeded_simulation_stays_insecure(tmp_path):
    begin(tmp_path, seed=3)
    assert go_on(tmp_path, seed=3, iterations=3)["insecure"]


def test_a_seeded_simulation_that_goes_on_draws_anew(tmp_path):
    begin(tmp_path, seed=3, iterations=5)
    go_on(tmp_path, seed=3, iterations=10)
    draws = read_state(tmp_path).curve.draws
    assert len(draws) == 10
    assert draws[:5] != draws[5:]


def test_given_noise_beyond_the_stated_total_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"more than the total of 0\.1"):
        run_request(asked(sigma=0.5, total_epsilon=0.1, out=tmp_path / "out"))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"delta": 5.0}, r"delta = 5\.0"),
        ({"seed": -1}, "seed = -1 must be an integer of at least 0"),
        ({"p": 1.5}, r"p = 1\.5"),
        ({"q": 0.0}, r"q = 0\.0"),
        ({"clip_norm": -1.0}, r"clip norm = -1\.0"),
        ({"cap": 0.9}, r"cap = 0\.9 must be at least 1 clip norm"),
        ({"cap": math.nan}, "cap = nan must be at least 1 clip norm"),
        ({"cap": 2.0, "noise": "central"}, "cap = 2 .*'central' has no clients"),
        ({"threshold": 5}, "threshold = 5 goes with noise = 'masked', not with 'trusted'"),
        ({"colluders": 5, "noise": "central"}, "colluders = 5 goes with noise = 'masked'"),
        ({"availability": 2.0}, r"availability = 2\.0"),
        ({"total_epsilon": 0.0}, r"total epsilon = 0\.0"),
        ({"clients": 0}, "clients = 0"),
        ({"partition": "halves"}, "partition = 'halves' is unknown"),
    ],
)
def test_a_bad_value_is_refused_before_any_data_is_read(changes, complaint):
    with pytest.raises(ValueError, match=complaint):
        asked(data="no such data", **changes)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"scheme": "none", "sigma": 5.0}, "scheme = 'none' adds no noise, but sigma = 5"),
        ({"scheme": "none", "total_epsilon": 2.0}, "scheme = 'none'.*total epsilon = 2"),
        ({"noise": "none", "sigma": 5.0}, "noise = 'none' adds no noise, but sigma = 5"),
        ({"noise": "none", "scheme": "certified"}, "noise = 'none'.*scheme = 'certified'"),
    ],
)
def test_noise_that_is_asked_for_and_forbidden_is_refused(changes, complaint):
    with pytest.raises(ValueError, match=complaint):
        asked(**changes)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (
            {},
            "many-small differs from the paper's: 47 clients instead of 23,264, as the data "
            "allows; p = 0.4965 instead of 0.001, for a mean batch of 70.",
        ),
        (
            {"clients": 20, "p": 0.5},
            "many-small differs from the paper's: 20 clients instead of 23,264, as asked for; "
            "p = 0.5 instead of 0.001, as asked for.",
        ),
        (
            {"cap": 1.5},
            "many-small differs from the paper's: 47 clients instead of 23,264, as the data "
            "allows; p = 0.4965 instead of 0.001, for a mean batch of 70; each client's sum is "
            "capped at 1.5 clip norms.",
        ),
        (
            {"noise": "local-only"},
            "many-small differs from the paper's: 47 clients instead of 23,264, as the data "
            "allows; p = 1 instead of 0.001, because everybody takes part; q = 0.04965 instead of "
            "0.1, for a mean batch of 70.",
        ),
    ],
)
def test_what_differs_from_the_paper_is_told_with_its_reason(changes, told):
    lines = []
    run_request(asked(**changes), note=lines.append)
    assert lines == [told]


@pytest.mark.parametrize(("noise", "warned"), [("trusted", True), ("central", False)])
def test_the_ideal_is_warned_of_unless_it_is_what_runs(noise, warned):
    lines = []
    run_request(asked(scheme="cs", noise=noise), note=lines.append)
    assert any("'cs' is not an upper bound" in line for line in lines) == warned


def test_a_cap_saves_noise_and_epsilon_counts_on_it():
    asked_for = {"p": 0.05, "total_epsilon": 1.0, "iterations": 4}
    plain, capped = (run_request(asked(cap=cap, **asked_for)) for cap in (math.inf, 1.5))
    assert plain["cap"] is None
    assert capped["cap"] == 1.5
    assert capped["sigma"] < 0.9 * plain["sigma"]
    assert cost(capped, 4) == capped["epsilon"] <= 1.0
    given = run_request(asked(cap=1.5, p=0.05, sigma=plain["sigma"], iterations=4))
    assert given["epsilon"] < plain["epsilon"]


def test_an_analysis_that_knows_no_cap_chooses_no_noise_for_one():
    with pytest.raises(ValueError, match="scheme 'paper' knows no cap"):
        run_request(asked(cap=2.0, scheme="paper"))


def test_a_simulation_of_an_earlier_version_goes_on(tmp_path):
    first = begin(tmp_path)
    path = tmp_path / STATE
    with safe_open(path, "numpy") as file:
        notes = file.metadata()
        kept = {
            "weights": file.get_tensor("weights"),
            "velocity": file.get_tensor("momentum_buffer"),
        }
    terms = json.loads(notes["terms"])
    del terms["cap"]
    terms["data"] = terms["data"].replace(" records (", " samples (")
    path.write_bytes(save_tensors(kept, metadata={**notes, "terms": json.dumps(terms)}))
    begun = read_state(tmp_path)
    assert begun.checkpoint.round == 2
    np.testing.assert_array_equal(begun.checkpoint.memory["momentum_buffer"], kept["velocity"])
    result = go_on(tmp_path, iterations=3)
    assert result["iterations"] == 3
    assert result["sigma"] == first["sigma"]
