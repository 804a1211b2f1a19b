"""Data of every form in a run: shares at clients, test data at the server; and in a simulation."""

from __future__ import annotations

import numpy as np
import pytest

from coinflower.client.participant import Participant
from coinflower.deploy.local.cluster import prepare
from coinflower.experiments.simulator.request import Request
from coinflower.experiments.simulator.simulated_run import run_request
from coinflower.learning import flatten_parameters
from coinflower.learning.vision import torchvision_datasets
from coinflower.protocol.messages import vector_to_bytes
from coinflower.protocol.modes import Mode
from coinflower.server.app import require_ready
from coinflower.server.settings import load_settings
from tests.support.federations import plan
from tests.support.sources import SOURCES


@pytest.fixture(params=SOURCES)
def source(request, tmp_path, monkeypatch):
    """Write the data and return its name and what goes with it."""
    # Files of the test's own are none of torchvision's, whose sums it checks.
    monkeypatch.setattr(torchvision_datasets().cifar, "check_integrity", lambda *_: True)
    (tmp_path / "data").mkdir()
    return SOURCES[request.param](tmp_path / "data")


def test_every_client_learns_from_its_share_and_the_server_can_measure(source, tmp_path):
    data, options = source
    fields = {"clients": 2, "data": data, "mode": Mode.LOCAL_ONLY, "p": 1.0, "q": 1.0, **options}
    cluster = prepare(plan(**fields), tmp_path / "run")
    test, model = require_ready(load_settings(cluster.settings))[:2]
    assert len(test) > 0
    weights = vector_to_bytes(flatten_parameters(model).numpy())
    assert len(cluster.policies) == (3 if options.get("how") == "files" else 2)
    for policy in cluster.policies:
        participant = Participant.open(policy)
        participant.enrol(cluster.terms)
        total = participant.gradient_sum(cluster.terms, 1, weights)
        assert np.isfinite(total).all()
        assert total.any()
        participant.ledger.close()


def test_a_simulation_learns_from_it(source):
    data, options = source
    found = run_request(
        Request(
            scenario="many-small",
            data=data,
            iterations=2,
            schema=options.get("schema"),
            partition=options.get("how", "equal"),
            clients=None if "how" in options else 5,
            p=1.0,
            q=1.0,
            sigma=1.0,
            model=options.get("model"),
        )
    )
    assert found["iterations"] == 2
    assert found["metrics"]
