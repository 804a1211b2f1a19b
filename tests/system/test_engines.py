"""The same app under stock SuperNodes and in Flower's simulation engine."""

import pytest

from coinflower.deploy.local.nodes import NodeKind
from tests.support.federations import check_ledgers


def test_stock_supernodes_run_the_same_app(federation):
    run = federation(kind=NodeKind.STOCK, waits_for_all=True, clients=2, rounds=2, p=1.0)
    assert run.finish() is None
    charged = check_ledgers(run.cluster)
    assert [len(charges) for charges in charged.values()] == [2, 2]


def test_flowers_simulation_engine_runs_the_same_app(federation):
    pytest.importorskip("ray", reason="needs the extra 'simulation'")
    run = federation(kind=NodeKind.SIMULATED, waits_for_all=True, rounds=2, p=1.0)
    assert run.finish() is None
    charged = check_ledgers(run.cluster)
    assert [len(charges) for charges in charged.values()] == [2, 2, 2]
