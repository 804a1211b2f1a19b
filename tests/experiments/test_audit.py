"""Sound code passes the audit; each planted fault is caught.

Every claim is judged with an error probability of 1e-8, so that all tests of sound code together
raise a false alarm with probability below 1e-6.
"""

import json
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from coinflower.cli.main import app
from coinflower.experiments.audit import audit
from coinflower.experiments.audit.audit import (
    Plan,
    capped_client,
    conspired_against,
    persons,
    rare_participation,
    run_audit,
    single_client,
    twin,
    under_masks,
    worst_under_cap,
)
from coinflower.experiments.audit.claims import judge, judge_coins
from coinflower.experiments.audit.faults import FAULTS, planted
from coinflower.experiments.audit.one_run import Training, audit_training
from coinflower.experiments.audit.settings import Setting
from coinflower.experiments.audit.trials import Job, run_job
from coinflower.protocol.modes import PRIVATE_MODES, Mode

ERROR = 1e-8

LOCAL = Setting(mode=Mode.LOCAL_ONLY, geometry="across", p=1.0, rounds=300)
TRUSTED = Setting(mode=Mode.TRUSTED, geometry="angled", rounds=200, flips=2000)
COVERED = Setting(mode=Mode.COVERED, geometry="angled", rounds=200, flips=2000)
QUIET = Setting(mode=Mode.QUIET, geometry="across", rounds=300, flips=8000)
UNTRUSTED = Setting(mode=Mode.UNTRUSTED, geometry="across", rounds=100, flips=1000)
MASKED = Setting(mode=Mode.MASKED, geometry="across", p=1.0, rounds=150)
SINGLE = single_client()
COLLUDERS = conspired_against()
RARE = rare_participation()
TRAINING = Training(mode=Mode.LOCAL_ONLY, rounds=100, noise_multiplier=20.0, delta=1e-12)
CHARGED = Training(mode=Mode.UNTRUSTED, rounds=20, noise_multiplier=5.0)


def run_worlds(setting, fault=None):
    """Run both worlds in this process."""
    return [
        run_job(Job(setting=setting, with_canary=world, fault=fault)) for world in (True, False)
    ]


@pytest.mark.parametrize(
    "setting",
    [
        LOCAL,
        TRUSTED,
        COVERED,
        QUIET,
        UNTRUSTED,
        MASKED,
        replace(SINGLE, rounds=400),
        COLLUDERS,
        persons(Mode.TRUSTED),
        persons(Mode.UNTRUSTED),
        worst_under_cap(),
        *(capped_client(mode) for mode in PRIVATE_MODES),
    ],
    ids=lambda setting: setting.name,
)
def test_sound_code_passes_an_audit_that_sees_the_canary(setting):
    worlds = run_worlds(setting)
    claims = list(judge(setting, *worlds, ERROR))
    assert all(claim.holds for claim in claims)
    assert [claim.delta for claim in claims] == list(setting.deltas)
    # Outputs with nothing of the canary in them would pass, too. Where one message is one trial,
    # there are too few to see it.
    if setting.copies > 1:
        seen = next(judge(setting, *worlds, 0.01))
        assert seen.audited_epsilon > 0.25 * seen.claimed_epsilon


def test_messages_under_masks_have_nothing_to_do_with_each_other():
    (claim,) = judge(under_masks(), *run_worlds(under_masks()), ERROR)
    assert (claim.holds, claim.claimed_epsilon, claim.audited_epsilon) == (True, 0.0, 0.0)
    assert claim.trials == 20_000


@pytest.mark.parametrize(
    ("fault", "setting"),
    [
        ("less-noise", LOCAL),
        ("less-noise", MASKED),
        ("no-clipping", TRUSTED),
        ("no-clipping", UNTRUSTED),
        ("clipping-rows", persons(Mode.TRUSTED)),
        ("clipping-rows", persons(Mode.UNTRUSTED)),
        *(("no-cap", capped_client(mode)) for mode in PRIVATE_MODES),
        ("larger-coin", QUIET),
        ("fixed-size", SINGLE),
        ("float-sums", COLLUDERS),
        ("reused-mask", under_masks()),
    ],
)
def test_planted_fault_is_caught(fault, setting):
    worlds = run_worlds(setting, fault)
    assert not all(claim.holds for claim in judge(setting, *worlds, ERROR))


def judge_coins_of(setting, fault=None):
    worlds = run_worlds(replace(setting, rounds=2), fault)
    return list(judge_coins(setting, *(world.coins for world in worlds), ERROR))


@pytest.mark.parametrize("setting", [TRUSTED, QUIET, UNTRUSTED], ids=lambda one: str(one.mode))
@pytest.mark.parametrize(
    ("fault", "held"),
    [(None, [True, True]), ("telling-coin", [False, True]), ("larger-coin", [True, False])],
)
def test_coins_know_nothing_of_the_data_and_are_no_more_than_p(setting, fault, held):
    setting = replace(setting, flips=8000)
    assert [claim.holds for claim in judge_coins_of(setting, fault)] == held


@pytest.fixture(scope="module")
def rare_outputs():
    return run_worlds(RARE)


def test_rare_participation_does_not_refute_what_a_ledger_charges(rare_outputs):
    (claim,) = judge(RARE, *rare_outputs, ERROR)
    assert claim.holds


def test_noise_by_the_paper_is_caught_where_it_is_too_little(rare_outputs):
    with planted("paper-noise"):
        (claim,) = judge(RARE, *rare_outputs, ERROR)
    assert claim.claimed_epsilon == claim.paper_epsilon
    assert not claim.holds


@pytest.mark.parametrize(("fault", "holds"), [(None, True), ("shared-noise", False)])
def test_noise_that_two_processes_share_is_caught(fault, holds):
    plan = Plan(settings=(twin(),), trainings=())
    assert run_audit(plan, fault=fault, false_alarm=ERROR)["holds"] is holds


@pytest.mark.parametrize(("fault", "holds"), [(None, True), ("no-clipping", False)])
def test_one_training_is_enough_to_see_that_nothing_is_clipped(fault, holds):
    training = replace(TRAINING, fault=fault)
    guesses, ledger = audit_training(training, ERROR)
    assert guesses.holds is holds
    assert ledger.holds


@pytest.mark.parametrize("mode", PRIVATE_MODES)
def test_ledgers_of_sound_clients_hold_every_round_that_was_heard_of(mode):
    _, ledger = audit_training(Training(mode=mode, rounds=6, noise_multiplier=5.0), ERROR)
    assert ledger.holds
    assert ledger.claimed_epsilon == ledger.audited_epsilon > 0


@pytest.mark.parametrize("mode", [Mode.TRUSTED, Mode.UNTRUSTED])
def test_a_missing_charge_is_caught(mode):
    training = replace(CHARGED, mode=mode, fault="missing-charge")
    _, ledger = audit_training(training, ERROR)
    assert not ledger.holds
    assert ledger.claimed_epsilon < ledger.audited_epsilon


def test_a_fault_is_gone_after_its_block():
    from coinflower.learning import SecureRandom

    before = SecureRandom.normal
    with planted("less-noise"):
        assert SecureRandom.normal is not before
    assert SecureRandom.normal is before


@pytest.fixture
def small_plan(monkeypatch):
    plan = Plan(settings=(replace(UNTRUSTED, rounds=4),), trainings=(CHARGED,))
    monkeypatch.setattr(audit, "standard_plan", lambda **_: plan)


@pytest.mark.usefixtures("small_plan")
@pytest.mark.parametrize(("options", "code"), [([], 0), (["--fault", "missing-charge"], 1)])
def test_command_tells_claims_and_fails_if_one_is_refuted(options, code, tmp_path):
    arguments = ["audit", "--quick", "--json", "--out", str(tmp_path), *options]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == code
    figures = json.loads(done.stdout)
    assert all(
        {"claimed_epsilon", "audited_epsilon", "holds"} <= claim.keys()
        for claim in figures["claims"]
    )
    assert figures["holds"] is (code == 0)
    assert json.loads((tmp_path / "audit.json").read_text())["holds"] is figures["holds"]
    assert (tmp_path / "audit.png").stat().st_size > 1000


@pytest.mark.usefixtures("small_plan")
def test_a_seeded_audit_says_that_it_is_insecure():
    done = CliRunner().invoke(app, ["audit", "--seed", "3"])
    assert done.exit_code == 0
    assert "INSECURE" in done.stderr


def test_an_unknown_fault_is_told_with_the_known_ones():
    with pytest.raises(ValueError, match="less-noise"), planted("more-noise"):
        pass
    assert len(FAULTS) == 12


@pytest.fixture
def plan_of_all_modes(monkeypatch):
    """A small plan in which every mode is played."""
    plan = Plan(
        settings=tuple(replace(one, rounds=24, flips=400) for one in (TRUSTED, COVERED, QUIET)),
        trainings=tuple(replace(CHARGED, mode=mode) for mode in (Mode.TRUSTED, Mode.LOCAL_ONLY)),
    )
    monkeypatch.setattr(audit, "standard_plan", lambda **_: plan)


@pytest.mark.usefixtures("plan_of_all_modes")
@pytest.mark.parametrize("fault", FAULTS)
def test_every_fault_comes_to_a_verdict_in_every_mode(fault):
    done = CliRunner().invoke(app, ["audit", "--json", "--fault", fault])
    assert done.exit_code in (0, 1), done.output  # so small a plan misses most of them
    figures = json.loads(done.stdout)
    assert done.exit_code == (0 if figures["holds"] else 1)
    assert fault != "missing-charge" or not figures["holds"]
