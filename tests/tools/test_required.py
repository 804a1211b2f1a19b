"""Tests that need a program which is missing: skipped with a reason, or failed if required."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BROWSER_TESTS = "tests/browser/test_report.py"


def run_without_browser(**environment):
    """Run tests of the browser on a machine that has none."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-x", "-p", "no:cacheprovider", BROWSER_TESTS],
        env={**os.environ, "PATH": str(Path(sys.executable).parent), **environment},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def test_what_is_skipped_or_left_out_is_said_with_the_command_that_helps():
    code, told = run_without_browser(COINFLOWER_REQUIRE="nginx")
    assert code == 0, told
    assert "needs Debian's chromium, chromium-driver; as root, `make test-tools`" in told
    assert "passed" not in told
    for name, command in (("compose", "test-compose"), ("hosts", "test-hosts"), ("soak", "soak")):
        (line,) = (line for line in told.splitlines() if line.startswith(f"Left out: {name}:"))
        assert f"`make {command}`" in line


def test_a_required_test_that_is_skipped_fails():
    code, told = run_without_browser(COINFLOWER_REQUIRE="browser,nginx")
    assert code == 1, told
    assert "needs Debian's chromium" in told


@pytest.mark.parametrize("unknown", ["chromium", "browser nginks"])
def test_a_requirement_that_no_test_bears_is_refused(unknown):
    code, told = run_without_browser(COINFLOWER_REQUIRE=unknown)
    assert code == 4, told
    assert f"COINFLOWER_REQUIRE names no marker: {unknown.split()[-1]}" in told
