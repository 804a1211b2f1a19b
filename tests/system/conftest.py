"""Fixtures that start real federations and leave nothing running."""

import pytest

from coinflower.deploy.local.cluster import prepare
from coinflower.deploy.local.local_run import reopen
from coinflower.deploy.local.nodes import NodeKind
from tests.support.federations import Federation, plan


@pytest.fixture
def federation(tmp_path):
    """Return a function that starts federations and stops them at the end of the test."""
    started = []

    def start(cluster=None, *, kind=NodeKind.THREADS, **changes):
        cluster = cluster or prepare(plan(**changes), tmp_path / "run")
        started.append(Federation(cluster, kind))
        return started[-1]

    yield start
    for one in started:
        one.close()


@pytest.fixture
def resumed(federation):
    """Return a function that goes on with a federation that stopped."""

    def start(stopped, **options):
        return federation(reopen(stopped.cluster.folder), **options)

    return start
