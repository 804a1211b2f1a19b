"""Coins, samples and noise have the agreed distributions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from coinflower.client.gradient_sums import GradientSums
from coinflower.client.model import ModelRules
from coinflower.learning import Records
from coinflower.protocol.modes import Mode
from tests.support.participants import (
    LENGTH,
    Make,
    Recorder,
    enrolled,
    exact_sum,
    variance_p_value,
)

# Statistics: each fails falsely less than once in 10⁶ runs, and must reject what is 10 % off.

LEVEL = 1e-7


def binomial_p_value(successes: int, trials: int, p: float) -> float:
    from scipy import stats

    return float(stats.binomtest(successes, trials, p).pvalue)


def test_participation_follows_p_and_no_other_probability(owner: Any, make_terms: Make) -> None:
    rounds = 16_000
    terms = make_terms(
        Mode.TRUSTED, rounds=rounds, rounds_per_invitation=rounds, noise_multiplier=50.0
    )
    owner.change(most_rounds_per_invitation=rounds)
    participant = enrolled(owner.open(), terms)
    joined = sum(participant.flip(terms, range(1, rounds + 1)))
    assert binomial_p_value(joined, rounds, 0.5) > LEVEL
    assert binomial_p_value(joined, rounds, 0.45) < LEVEL
    assert binomial_p_value(joined, rounds, 0.55) < LEVEL


def test_batch_sizes_follow_q_and_no_other_rate(
    owner: Any, make_terms: Make, weights: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    from scipy import stats

    rounds, copies = 60, 10
    recorder = Recorder()
    owner.change(declared_size=30 * copies)
    terms = make_terms(rounds=rounds, noise_multiplier=3.0)
    participant = enrolled(owner.open_with(True, False, randomness=recorder), terms)
    data = participant._gradients.data
    more = Records(
        inputs=np.concatenate([data.inputs] * copies), targets=np.tile(data.targets, copies)
    )
    sums = GradientSums(more, recorder, ModelRules(most_parameters=LENGTH))
    monkeypatch.setattr(participant, "_gradients", sums)
    for round_ in range(1, rounds + 1):
        participant.gradient_sum(terms, round_, weights)
    sizes, trials = np.array(recorder.batches), 30 * copies
    total = int(sizes.sum())
    assert len(sizes) == rounds
    assert binomial_p_value(total, rounds * trials, 0.5) > LEVEL
    assert binomial_p_value(total, rounds * trials, 0.45) < LEVEL
    assert binomial_p_value(total, rounds * trials, 0.55) < LEVEL
    spread = float(((sizes - trials / 2) ** 2).sum() / (trials / 4))
    assert LEVEL < stats.chi2(rounds).cdf(spread) < 1 - LEVEL


@pytest.mark.parametrize("falls", [True, False])
def test_the_noise_of_untrusted_answers_has_the_agreed_variance(
    owner: Any, make_terms: Make, weights: bytes, falls: bool
) -> None:
    terms = make_terms(q=1.0, noise_multiplier=2.0, clip_norm=0.5)
    participant = enrolled(owner.open_with(falls), terms)
    under = exact_sum(owner, weights, 0.5) if falls else np.zeros(LENGTH, np.float32)
    noise = np.concatenate(
        [participant.gradient_sum(terms, round_, weights) - under for round_ in range(1, 6)]
    )
    std = 2.0 * 0.5
    assert variance_p_value(noise, std) > LEVEL
    assert variance_p_value(noise, 0.9 * std) < LEVEL
    assert variance_p_value(noise, 1.1 * std) < LEVEL


def test_a_participant_and_its_absence_differ_by_the_gradient_alone(
    owner: Any, make_terms: Make, weights: bytes
) -> None:
    from scipy import stats

    terms = make_terms(q=1.0)
    participant = enrolled(owner.open_with(True, False), terms)
    joined = participant.gradient_sum(terms, 1, weights) - exact_sum(owner, weights)
    sat_out = participant.gradient_sum(terms, 2, weights)
    assert stats.ks_2samp(joined, sat_out).pvalue > LEVEL
