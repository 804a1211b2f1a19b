"""The public interface: its names, what they answer, and that importing it loads nothing heavy."""

import math
import subprocess
import sys

import dp_accounting
import pytest

import coinflower
from coinflower.accounting.analyses.certified import Certified
from coinflower.accounting.composition.compose import epsilon_after
from coinflower.accounting.composition.tightness import realised_epsilon_after
from coinflower.accounting.ledger.errors import LedgerError
from coinflower.dp_accounting import Accountant, event
from coinflower.opacus import Accountant as OpacusAccountant

ROUND = coinflower.Round(p=0.1, q=0.05, d=50, noise_multiplier=1.2)
NAMES = ("Budget", "ClientResult", "Ledger", "Round", "RunResult", "epsilon", "epsilon_at_least")
NAMES += ("load_model", "noise_multiplier", "rounds", "run")


def test_every_public_name_is_there():
    assert coinflower.__all__ == list(NAMES)
    assert all(getattr(coinflower, name) for name in coinflower.__all__)
    assert set(coinflower.__all__) <= set(dir(coinflower))
    with pytest.raises(AttributeError, match="has no attribute 'Epsilon'"):
        _ = coinflower.Epsilon


def test_importing_it_loads_nothing_heavy():
    code = (
        "import sys, coinflower\n"
        "coinflower.Round(0.1, 0.1, 10, 1.0), coinflower.Budget\n"
        "print(*{'torch', 'flwr', 'opacus', 'matplotlib', 'pydantic'} & set(sys.modules))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == ""


def test_importing_the_name_alone_loads_not_even_numpy():
    code = "import sys, coinflower; print('numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "False"


def test_the_accountants_need_no_import_of_their_own():
    code = "import coinflower; print(coinflower.opacus.Accountant, coinflower.dp_accounting.event)"
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert {"opacus", "dp_accounting"} <= set(dir(coinflower))


def test_both_bounds():
    spent = coinflower.epsilon(ROUND, rounds=100, delta=1e-5)
    assert spent == epsilon_after([(Certified(ROUND), 100)], 1e-5)
    least = coinflower.epsilon_at_least(ROUND, rounds=100, delta=1e-5)
    assert least == realised_epsilon_after(ROUND, 100, 1e-5)
    assert 0 < least <= spent
    assert coinflower.epsilon(ROUND, delta=1e-5) < spent


def test_noise_and_rounds_meet_their_target():
    target = {"epsilon": 1.0, "delta": 1e-5}
    sigma = coinflower.noise_multiplier(p=0.1, q=0.05, d=50, rounds=100, **target)
    enough = coinflower.Round(0.1, 0.05, 50, sigma)
    assert coinflower.epsilon(enough, rounds=100, delta=1e-5) <= 1.0
    assert coinflower.rounds(enough, **target) >= 100
    capped = coinflower.noise_multiplier(p=0.1, q=0.05, d=50, rounds=100, cap=1, **target)
    assert capped < sigma


def test_a_ledger_by_its_public_names(tmp_path):
    budget = coinflower.Budget(epsilon=1.0, delta=1e-5)
    with coinflower.Ledger.create(tmp_path / "ledger.db", "ward") as ledger:
        ledger.reserve("trial", ROUND, rounds=3, budget=budget)
        coins = [ledger.flip("trial", number) for number in (1, 2, 3)]
        assert [ledger.flip("trial", number) for number in (1, 2, 3)] == coins
        assert ledger.spent(1e-5) == coinflower.epsilon(ROUND, rounds=3, delta=1e-5)
        with pytest.raises(LedgerError, match="1 more are refused"):
            ledger.flip("trial", 4)
    with coinflower.Ledger.open(tmp_path / "ledger.db") as ledger:
        assert ledger.spent(1e-5) > 0


@pytest.mark.parametrize("cap", [1.0, 2.0])
def test_events_and_steps_cost_what_rounds_do(cap):
    round_ = coinflower.Round(0.1, 0.05, 50, 1.2, cap)
    spent = coinflower.epsilon(round_, rounds=10, delta=1e-5)
    assert Accountant().compose(event(round_, rounds=10)).get_epsilon(1e-5) == spent
    ten = dp_accounting.SelfComposedDpEvent(event(round_), 10)
    assert Accountant().compose(ten).get_epsilon(1e-5) == spent
    steps = OpacusAccountant(p=0.1, d=50, cap=cap)
    for _ in range(10):
        steps.step(noise_multiplier=1.2, sample_rate=0.05)
    assert steps.get_epsilon(1e-5) == spent


@pytest.mark.parametrize("cap", [0, 0.5, -1, math.nan, True, "2"])
def test_a_cap_that_is_none_is_named_before_anything_is_written(cap, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=f"cap = {cap} must be at least 1 clip norm"):
        coinflower.run(clients=2, rounds=1, epsilon=1, delta=1e-3, cap=cap)
    assert not list(tmp_path.iterdir())


def test_a_unit_that_is_none_is_named_before_anything_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="unit = 'ward' is unknown"):
        coinflower.run(unit="ward", clients=2, rounds=2, epsilon=3, delta=1e-3)
    assert not list(tmp_path.iterdir())


def test_a_run_without_privacy_is_refused():
    with pytest.raises(ValueError, match="keeps no budget"):
        coinflower.run(clients=2, rounds=1, mode="none", epsilon=1, delta=1e-3)
