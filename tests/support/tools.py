"""Programs that some tests need besides Python: whether they are there, and how to get them.

Tests never install anything themselves: they say what is missing and are skipped. As root,
``make test-tools`` installs all of it from Debian's packages.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from coinflower.deploy.errors import DeploymentError
from coinflower.deploy.programs import find_program
from tests.support.debian import install_programs
from tests.support.engine import CACHE, install_plugins

PACKAGES = {
    "kubectl": {"kubectl": "kubernetes-client"},
    "browser": {"chromium": "chromium", "chromedriver": "chromium-driver"},
    "nginx": {"nginx": "nginx-light"},
}
"""For each marker of tests, its programs and the Debian package of each."""

_PLUGIN_FOLDERS = (
    CACHE / "docker-config" / "cli-plugins",
    Path.home() / ".docker" / "cli-plugins",
    *(Path(f"/usr/{place}/docker/cli-plugins") for place in ("libexec", "lib", "local/lib")),
)


def require_programs(marker: str) -> None:
    """Skip the test that asks for it if a program of this marker is missing."""
    packages = PACKAGES[marker]
    if missing := [packages[name] for name in packages if find_program(name) is None]:
        _skip_without(", ".join(missing))


def require_docker_compose() -> Path:
    """Return the program ``docker-compose``, or skip the test that asks for it."""
    found = (folder / "docker-compose" for folder in _PLUGIN_FOLDERS)
    program = next((path for path in found if path.exists()), None)
    if program is None:
        _skip_without("docker-compose")
    assert program is not None
    return program


def _skip_without(packages: str) -> None:
    pytest.skip(f"needs Debian's {packages}; as root, `make test-tools` installs what is missing")


def main() -> None:
    """Install everything that tests of ``make test`` look for."""
    try:
        install_programs(
            {name: package for one in PACKAGES.values() for name, package in one.items()}
        )
        install_plugins(CACHE)
    except DeploymentError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
