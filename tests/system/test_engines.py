"""The same app under stock SuperNodes and in Flower's simulation engine."""

import pytest

from coinflower.deploy.local.nodes import NodeKind
from tests.support.federations import check_ledgers

# One invitation for both rounds: these engines start a process for every message, or nearly so.
EVERYBODY = {"waits_for_all": True, "rounds": 2, "rounds_per_invitation": 2, "p": 1.0}


def test_stock_supernodes_run_the_same_app(federation):
    run = federation(kind=NodeKind.STOCK, clients=2, **EVERYBODY)
    assert run.finish() is None
    charged = check_ledgers(run.cluster)
    assert [len(charges) for charges in charged.values()] == [2, 2]


def test_flowers_simulation_engine_runs_the_same_app(federation):
    pytest.importorskip("ray", reason="needs the extra 'simulation'")
    run = federation(kind=NodeKind.SIMULATED, **EVERYBODY)
    assert run.finish() is None
    charged = check_ledgers(run.cluster)
    assert [len(charges) for charges in charged.values()] == [2, 2, 2]
