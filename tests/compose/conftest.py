"""A container engine for the whole session, and clusters that leave nothing behind."""

import os
import subprocess
from pathlib import Path

import pytest
from clusters import ComposeCluster, copy_context

from deploy.engine import Engine


def _local_wheels():
    """Return the folder that pip on this machine looks into first, if there is one."""
    done = subprocess.run(
        ["pip", "config", "get", "global.find-links"], capture_output=True, text=True, check=False
    )
    place = os.environ.get("PIP_FIND_LINKS") or done.stdout.strip()
    return Path(place) if place and Path(place).is_dir() else None


@pytest.fixture(scope="session")
def engine():
    if os.geteuid() != 0:
        pytest.skip("needs root: a container engine can only be started by root")
    with Engine(wheels=_local_wheels()) as running:
        yield running


@pytest.fixture(scope="session")
def context(tmp_path_factory):
    """Return a copy of what the images are built from, so that keys stay out of the tree."""
    return copy_context(tmp_path_factory.mktemp("coinflower"))


@pytest.fixture
def cluster(engine, context):
    """Return a function that makes clusters, which end with the test."""
    made = []

    def make(*options, **environment):
        made.append(ComposeCluster(engine, context, options, environment))
        return made[-1]

    yield make
    for one in made:
        one.compose("down", "--volumes", "--timeout", "10")
