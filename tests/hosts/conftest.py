"""One network of hosts for each file of tests."""

import os

import pytest

from tests.hosts.network import PACKAGES, Network
from tests.support.debian import install_programs


@pytest.fixture(scope="module")
def network(tmp_path_factory):
    if os.geteuid() != 0:
        pytest.skip("network namespaces need root")
    install_programs(PACKAGES)
    made = Network(tmp_path_factory.mktemp("hosts"))
    try:
        yield made
    finally:
        made.remove()
