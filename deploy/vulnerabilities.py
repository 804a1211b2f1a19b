"""Known vulnerabilities of what a deployment installs, asked of pip-audit.

``python -m deploy.vulnerabilities`` exits with 1 if there are any. pip-audit asks a service on the
internet; where that cannot be reached nothing was checked, which is said and, with ``--strict``,
exits with 3.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from packaging.version import Version

from deploy.lock import CONSTRAINTS, read_constraints

_FOUND, _UNREACHABLE = 1, 3
_NO_SERVICE = ("ConnectionError", "ServiceError", "Max retries exceeded", "Failed to establish")


def requirements(versions: dict[str, str]) -> str:
    """Return the versions as a service knows them: a local build counts as its public version."""
    return "".join(f"{name}=={Version(version).public}\n" for name, version in versions.items())


def audit(service: str) -> tuple[int, str]:
    """Run pip-audit on the pinned versions; return an exit code and what there is to say."""
    with tempfile.TemporaryDirectory() as folder:
        pinned = Path(folder) / "requirements.txt"
        pinned.write_text(requirements(read_constraints(CONSTRAINTS.read_text())))
        command = [sys.executable, "-m", "pip_audit", "--no-deps", "--disable-pip"]
        command += ["--progress-spinner=off", "--vulnerability-service", service]
        done = subprocess.run(
            [*command, "--requirement", str(pinned)], capture_output=True, text=True, check=False
        )
    if done.returncode != 0 and any(sign in done.stderr for sign in _NO_SERVICE):
        return _UNREACHABLE, f"NOT CHECKED: the service {service!r} cannot be reached from here."
    return min(done.returncode, _FOUND), (done.stdout + done.stderr).strip()


def main() -> None:
    """Print the verdict."""
    parser = argparse.ArgumentParser(description="Look for known vulnerabilities.")
    parser.add_argument("--service", choices=("osv", "pypi"), default="osv")
    parser.add_argument("--strict", action="store_true", help="fail if nothing could be checked")
    options = parser.parse_args()
    code, text = audit(options.service)
    print(text, file=sys.stderr if code else sys.stdout)
    sys.exit(0 if code == _UNREACHABLE and not options.strict else code)


if __name__ == "__main__":
    main()
