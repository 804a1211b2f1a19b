"""A container engine for the whole session, and clusters that leave nothing behind."""

import functools
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.clusters import ComposeCluster, copy_context
from tests.support.engine import Engine


@functools.cache
def _local_wheels():
    """Return the first folder that pip on this machine looks for packages in, if there is one."""
    done = subprocess.run(
        [sys.executable, "-m", "pip", "config", "get", "global.find-links"],
        capture_output=True,
        text=True,
        check=False,
    )
    # One place a word; some of them may be addresses of pages.
    places = (os.environ.get("PIP_FIND_LINKS") or done.stdout).split()
    return next((Path(place) for place in places if Path(place).is_dir()), None)


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
        wheels = _local_wheels()
        if wheels is not None and any(wheels.glob("torch-*+cpu*.whl")):
            # The image finds torch there; the index of CPU builds need not be in reach.
            environment.setdefault("COINFLOWER_EXTRA_INDEX_URL", "")
        made.append(ComposeCluster(engine, context, options, environment))
        return made[-1]

    yield make
    for one in made:
        one.compose("down", "--volumes", "--timeout", "10")
