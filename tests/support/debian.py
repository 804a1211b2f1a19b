"""Programs from Debian's packages, for those who need a real nginx, browser or container engine."""

from __future__ import annotations

import contextlib
import fcntl
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from coinflower.deploy.errors import DeploymentError
from coinflower.deploy.programs import find_program, search_path

_POLICY = Path("/usr/sbin/policy-rc.d")
# Debian's packages ask this program before they start a service; 101 says no.
_START_NOTHING = "#!/bin/sh\nexit 101\n"
_LOCK = Path("/var/cache/coinflower-packages.lock")
# What is lost in a crash is made anew; syncing every file takes most of the time.
_OPTIONS = ("-qq", "-o", "DPkg::Lock::Timeout=300", "-o", "Dpkg::Options::=--force-unsafe-io")
_INSTALL_SECONDS = 900.0


def install_programs(packages: Mapping[str, str]) -> None:
    """Install what is missing; of several processes that want to, one does and the others wait.

    Args:
        packages: The Debian package of each program.

    Raises:
        DeploymentError: Something is missing and cannot be installed; says what and why.
    """
    if not _missing(packages):
        return
    if os.geteuid() != 0 or find_program("apt-get") is None:
        raise DeploymentError(
            f"This needs Debian's {', '.join(_missing(packages))}; as root it would be installed."
        )
    with _LOCK.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if missing := _missing(packages):
            _apt_get("update")
            with _no_services():
                _apt_get("install", "-y", "--no-install-recommends", *missing)


@contextlib.contextmanager
def _no_services() -> Iterator[None]:
    """Keep packages from starting what they hold: who installs a program wants no service.

    A policy that the machine has already stays in force.
    """
    if _POLICY.exists():
        yield
        return
    _POLICY.write_text(_START_NOTHING)
    _POLICY.chmod(0o755)
    try:
        yield
    finally:
        _POLICY.unlink(missing_ok=True)


def _missing(packages: Mapping[str, str]) -> Sequence[str]:
    return sorted({package for name, package in packages.items() if find_program(name) is None})


def _apt_get(*arguments: str) -> None:
    command = ["apt-get", *_OPTIONS, *arguments]
    # dpkg wants root's folders in the path, which a slim shell may lack.
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "PATH": search_path()}
    try:
        done = subprocess.run(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_INSTALL_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise DeploymentError(f"apt-get {' '.join(arguments)}: {error}") from error
    if done.returncode != 0:
        last = (done.stdout + done.stderr).strip().splitlines()[-1:]
        raise DeploymentError(f"apt-get {' '.join(arguments)} failed: {''.join(last)}")
