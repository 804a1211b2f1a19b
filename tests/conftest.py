"""How all tests are run: long ones first, no clock in hypothesis, nothing installed on the way.

Which tests a plain run leaves out is said in pyproject.toml, by their markers. A test whose marker
is named in ``COINFLOWER_REQUIRE`` (as in ``browser,nginx``) must not be skipped: that fails it.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Callable, Generator
from pathlib import Path
from typing import TYPE_CHECKING

import hypothesis
import pytest

from tests.support.tools import require_docker_compose, require_programs

if TYPE_CHECKING:
    from coinflower.server.settings import Settings

# Those that take longest, in this order; a file is run by one process.
_LONGEST = (
    "test_audit.py",
    "test_federation.py",
    "test_fuzz.py",
    "test_killed.py",
    "test_engines.py",
    "test_refusals.py",
    "test_co_client.py",
    "test_set_back.py",
    "test_machines.py",
)
_LONG = ("system", "browser", "wire", "fuzz")
_REQUIRED = frozenset(re.findall(r"\w+", os.environ.get("COINFLOWER_REQUIRE", "")))
# Whoever asks for one of these fixtures bears the marker.
_MARKERS = {
    "chromium": "browser",
    "docker_compose": "docker_compose",
    "kubectl": "kubectl",
    "nginx": "nginx",
}

# Models of tests are so small that a second thread of torch or numpy mostly waits, at the full
# expense of a core that another test could use. Processes of tests inherit it.
os.environ["OMP_NUM_THREADS"] = "1"

# Ledgers write through to the disk, for which tests would wait most of the time. No test takes the
# power away, so memory does as well; what passed leaves nothing there (pyproject.toml).
_MEMORY = Path("/dev/shm")
_LEAST_FREE_BYTES = 4 << 30
if (
    os.access(_MEMORY, os.W_OK)
    and not os.statvfs(_MEMORY).f_flag & os.ST_NOEXEC
    and shutil.disk_usage(_MEMORY).free >= _LEAST_FREE_BYTES
):
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(_MEMORY))

# A busy machine is no reason to fail: speed belongs in benchmarks. Nor is luck: everywhere the same
# examples are tried, and `pytest --hypothesis-profile=explore` looks for others.
hypothesis.settings.register_profile(
    "explore", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.register_profile(
    "coinflower", hypothesis.settings.get_profile("explore"), derandomize=True
)
hypothesis.settings.load_profile("coinflower")


def _markers(config: pytest.Config) -> dict[str, str]:
    """Return what pyproject.toml says of each marker of ours."""
    lines = (line.partition(": ") for line in config.getini("markers"))
    return {name: text for name, _, text in lines if re.fullmatch(r"\w+", name)}


def pytest_configure(config: pytest.Config) -> None:
    """Refuse to require what no test is marked with."""
    if unknown := _REQUIRED - set(_markers(config)):
        raise pytest.UsageError(f"COINFLOWER_REQUIRE names no marker: {', '.join(unknown)}")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests by what they ask for; start with the long ones, to leave none for the end."""
    for item in items:
        for fixture in getattr(item, "fixturenames", ()):
            if fixture in _MARKERS:
                item.add_marker(_MARKERS[fixture])
    items.sort(key=_place_in_line)


def _place_in_line(item: pytest.Item) -> int:
    if item.path.name in _LONGEST:
        return _LONGEST.index(item.path.name)
    is_long = any(part in _LONG for part in item.path.parts)
    return len(_LONGEST) + (0 if is_long else 1)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Fail a test that was skipped although it is required."""
    report = yield
    if report.skipped and any(item.get_closest_marker(name) for name in _REQUIRED):
        reason = report.longrepr[-1] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome = "failed"
        report.longrepr = f"{reason}\nCOINFLOWER_REQUIRE wants this test to run."
    return report


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Say what was left out, and which command runs it."""
    for name, text in _markers(config).items():
        if re.search(rf"not {name}\b", config.option.markexpr):
            terminalreporter.write_line(f"Left out: {name}: {text}")


@pytest.fixture
def program(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """Return a function that runs our program in this process: exit code, output and errors."""

    def run(*arguments: object) -> tuple[int, str, str]:
        from coinflower.cli import main as cli

        monkeypatch.setattr(sys, "argv", ["coinflower", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        code = ended.value.code or 0
        assert isinstance(code, int)
        return code, *capsys.readouterr()

    return run


@pytest.fixture(scope="session")
def nginx() -> None:
    """Have nginx."""
    require_programs("nginx")


@pytest.fixture(scope="session")
def kubectl() -> None:
    """Have kubectl, which renders manifests without any cluster."""
    require_programs("kubectl")


@pytest.fixture(scope="session")
def docker_compose() -> Path:
    """The program docker-compose."""
    return require_docker_compose()


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    """Settings of a server whose run, of four rounds, has not begun."""
    from coinflower.deploy.local.cluster import prepare
    from coinflower.server.settings import load_settings
    from tests.support.federations import plan

    folder = tmp_path_factory.mktemp("prepared")
    return load_settings(prepare(plan(clients=2), folder / "run").settings)
