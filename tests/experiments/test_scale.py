"""Participation in a federation of a million clients is what docs/scale.md says."""

import numpy as np
import pytest
from scipy import stats

from coinflower.experiments.simulator.simulator import Scenario, Simulator
from coinflower.learning import SeededRandom, Update, build_model, load_data
from coinflower.protocol.modes import Mode

CLIENTS, P, ROUNDS = 10**6, 1e-4, 400


def asked_in_rounds(p):
    simulator = Simulator(
        Scenario(
            sizes=np.ones(CLIENTS, dtype=np.int64),
            p=p,
            q=0.1,
            clip_norm=1.0,
            noise_multiplier=1.0,
            noise=Mode.TRUSTED,
            update=Update(learning_rate=0.5),
        ),
        load_data("digits").train,
        build_model("digits", classes=10),
        np.random.default_rng(1),
        SeededRandom(1),
        rows=np.arange(CLIENTS),
    )
    return [simulator.draw().participants for _ in range(ROUNDS)]


def chance(asked, p):
    """How likely so many in all, and such a spread, are if coins say yes with probability p."""
    in_all = stats.binom(CLIENTS * ROUNDS, p)
    total = sum(asked)
    spread = np.var(asked, ddof=1) / (CLIENTS * p * (1 - p)) * (ROUNDS - 1)
    low = min(in_all.cdf(total), in_all.sf(total - 1))
    return 2 * min(low, stats.chi2.cdf(spread, ROUNDS - 1), stats.chi2.sf(spread, ROUNDS - 1))


def test_the_model_and_the_simulator_agree_on_how_many_are_asked():
    asked = asked_in_rounds(P)
    # False alarm at most 1e-6.
    assert chance(asked, P) > 1e-6
    assert chance(asked, 1.1 * P) < 1e-6


@pytest.mark.parametrize(("p", "most"), [(1e-4, 152), (5e-6, 20)])
def test_the_upper_end_that_is_stated_is_passed_once_in_a_million_rounds(p, most):
    assert stats.binom(CLIENTS, p).sf(most - 1) <= 1e-6 < stats.binom(CLIENTS, p).sf(most - 2)
