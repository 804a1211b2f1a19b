"""The audit's data have the gradients that its scores and claims are about."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats

from coinflower.accounting.analyses.certified import Certified
from coinflower.accounting.analyses.realised import Realised
from coinflower.accounting.mechanism import Direction, Round
from coinflower.experiments.audit.audit import capped_client, standard_plan, worst_under_cap
from coinflower.experiments.audit.model import RAW_NORM
from coinflower.experiments.audit.settings import (
    ANGLES,
    CLIP_NORM,
    Setting,
    claimed_scheme,
    log_likelihood_ratio,
)
from coinflower.learning import build_model, clipped_gradient_sum, to_tensor
from coinflower.protocol.modes import PRIVATE_MODES, Mode


def setting(geometry, mode=Mode.TRUSTED, **changes):
    return Setting(mode=mode, geometry=geometry, rounds=4, flips=4, **changes)


def gradients(case, clip_norm):
    """Return the summed gradient of each copy, with the canary less without it."""
    model = build_model(case.terms(4).model, classes=2)
    sums = []
    for with_canary in (True, False):
        images, classes = case.data(with_canary=with_canary)
        total = clipped_gradient_sum(model, to_tensor(images), torch.from_numpy(classes), clip_norm)
        sums.append(case.outputs(total.numpy()[None])[0])
    return sums[0] - sums[1], sums[1]


@pytest.mark.parametrize("geometry", ANGLES)
@pytest.mark.parametrize("copies", [1, 200])
def test_canary_has_the_clipped_gradient_that_the_scores_expect(geometry, copies):
    case = setting(geometry, copies=copies)
    canary, others = gradients(case, CLIP_NORM)
    assert canary == pytest.approx(np.tile(case.canary, (copies, 1)), abs=1e-5)
    assert others == pytest.approx(np.tile([case.d, 0.0], (copies, 1)), abs=1e-5)
    assert np.dot(canary[0], (1, 0)) == pytest.approx(math.cos(ANGLES[geometry]), abs=1e-5)


def test_unclipped_gradients_are_many_times_as_long():
    canary, _ = gradients(setting("angled"), math.inf)
    assert np.linalg.norm(canary, axis=1) == pytest.approx(RAW_NORM / CLIP_NORM, rel=1e-5)


@pytest.mark.parametrize("geometry", ["angled", "across"])
@pytest.mark.parametrize("p", [0.5, 1.0])
def test_likelihood_ratio_integrates_to_the_exact_loss_of_the_pair(geometry, p):
    case = setting(geometry, p=p)
    sigma, epsilon, step = case.noise_multiplier, 0.8, 0.05
    x, y = np.meshgrid(np.arange(-4, 8, step), np.arange(-4, 5, step))
    points = np.stack([x.ravel(), y.ravel()], axis=1)
    means = np.arange(case.d + 1)
    mass = [math.comb(case.d, i) * case.q**i * (1 - case.q) ** (case.d - i) for i in means]
    parts = [(1 - p, 0), *((p * weight, i) for weight, i in zip(mass, means, strict=True))]
    without = sum(
        weight
        * np.exp(-((points[:, 0] - mean) ** 2 + points[:, 1] ** 2) / 2 / sigma**2)
        / (2 * math.pi * sigma**2)
        for weight, mean in parts
    )
    excess = np.exp(log_likelihood_ratio(case, points)) - math.exp(epsilon)
    pair = Realised(Round(p, case.q, case.d, sigma), angle=case.angle)
    exact = pair.delta(epsilon, Direction.REMOVE)
    assert np.sum(without * np.maximum(excess, 0)) * step**2 == pytest.approx(exact, rel=2e-3)


def test_worst_data_under_a_cap_lose_exactly_what_is_charged_for_them():
    """With one other record the bound is attained: by Theorem 3 there is no worse geometry."""
    case = worst_under_cap()
    for epsilon in (0.3, 0.8, 1.6):
        charged = Certified(Round(case.p, case.q, case.d, case.noise_multiplier, case.cap))
        exact = lost_by_the_pair(case, epsilon)
        assert exact == pytest.approx(charged.delta(epsilon, Direction.REMOVE), rel=1e-3)


def test_a_capped_client_loses_as_a_whole_exactly_what_is_said():
    case = capped_client(Mode.UNTRUSTED)
    exact = lost_by_the_pair(case, 0.1)
    assert exact == pytest.approx(claimed_scheme(case).delta(0.1, Direction.REMOVE), rel=1e-3)
    uncapped = lost_by_the_pair(replace(case, cap=math.inf), 0.1)
    assert uncapped > 3 * exact


def lost_by_the_pair(case, epsilon):
    """Integrate over the line on which everything lies; across it there is only noise."""
    sigma, step = case.noise_multiplier, 0.01
    x = np.arange(-12 * sigma, case.d + 1 + 12 * sigma, step)
    mass = stats.binom.pmf(np.arange(case.d + 1), case.d, case.q)
    sums = case.sums(with_canary=False)[:, 0]
    if case.whole_client:
        sums = 0 * sums
    parts = [(1 - case.p, 0.0), *zip(case.p * mass, sums, strict=True)]
    without = sum(weight * stats.norm.pdf(x, mean, sigma) for weight, mean in parts)
    ratio = log_likelihood_ratio(case, np.stack([x, np.zeros_like(x)], axis=1))
    return np.sum(without * np.maximum(np.exp(ratio) - math.exp(epsilon), 0)) * step


def test_gradients_of_the_others_have_the_length_that_is_asked_for():
    canary, others = gradients(setting("across", copies=1, cap=1.5, length=0.25), CLIP_NORM)
    assert canary == pytest.approx(np.array([[0.0, 1.0]]), abs=1e-5)
    assert others == pytest.approx(np.array([[0.5, 0.0]]), abs=1e-5)


def test_a_client_that_is_not_there_sends_nothing():
    case = capped_client(Mode.UNTRUSTED)
    whole, nothing = gradients(case, CLIP_NORM)
    assert nothing == pytest.approx(np.zeros((1, 2)), abs=1e-9)
    assert whole == pytest.approx(np.array([[case.d + 1.0, 0.0]]), abs=1e-4)


def test_every_mode_has_a_capped_claim():
    plan = standard_plan(full=False)
    capped = [case for case in plan.settings if math.isfinite(case.cap)]
    assert {case.mode for case in capped if case.whole_client} == set(PRIVATE_MODES)
    assert any(not case.whole_client for case in capped)
    assert all(case.copies == 1 and case.terms(1).cap == case.cap for case in capped)


def test_every_mode_is_audited_in_every_geometry():
    plan = standard_plan(full=False)
    wide = {(case.mode, case.geometry) for case in plan.settings if case.copies > 1}
    private = PRIVATE_MODES
    assert wide == {(mode, geometry) for mode in private for geometry in ANGLES}
    assert {training.mode for training in plan.trainings} == set(private)


def test_claims_are_what_a_ledger_charges():
    schemes = {
        mode: claimed_scheme(setting("across", mode)).name for mode in (Mode.TRUSTED, Mode.QUIET)
    }
    assert schemes == {Mode.TRUSTED: "certified", Mode.QUIET: "wcs"}
