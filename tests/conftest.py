"""How all tests are run: long ones first, no clock in hypothesis, with programs of Debian's."""

import hypothesis
import pytest

from coinflower.deploy.errors import DeploymentError
from tests.support.debian import install_programs

_LONG = ("system", "browser", "wire", "fuzz", "test_audit.py", "test_machines.py")

# A busy machine is no reason to fail: speed belongs in benchmarks.
hypothesis.settings.register_profile(
    "coinflower", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("coinflower")


def pytest_collection_modifyitems(items):
    """Start with what takes long, so that no process is left alone with it at the end."""
    items.sort(key=lambda item: not any(part in _LONG for part in item.path.parts))


@pytest.fixture(scope="session")
def programs():
    """Return a function that installs programs that are missing, or skips the test and says so."""

    def install(packages):
        try:
            install_programs(packages)
        except DeploymentError as error:
            pytest.skip(str(error))

    return install


@pytest.fixture(scope="session")
def nginx(programs):
    """Have nginx."""
    programs({"nginx": "nginx-light"})
