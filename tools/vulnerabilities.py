"""Known vulnerabilities of what a deployment installs.

``python -m tools.vulnerabilities`` asks pip-audit about the pinned versions and exits with 1 if
there are any. pip-audit asks a service on the internet; where that cannot be reached nothing was
checked, which is said and, with ``--strict``, exits with 3. Without a network, ``--database FILE``
looks into a copy of OSV's advisories for PyPI, the archive ``PyPI/all.zip`` that osv.dev publishes.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from tools.lock import CONSTRAINTS, read_constraints

_FOUND, _UNREACHABLE = 1, 3
_NO_SERVICE = ("ConnectionError", "ServiceError", "Max retries exceeded", "Failed to establish")


def requirements(versions: dict[str, str]) -> str:
    """Return the versions as a service knows them: a local build counts as its public version."""
    return "".join(f"{name}=={Version(version).public}\n" for name, version in versions.items())


def ask_service(versions: dict[str, str], service: str) -> tuple[int, str]:
    """Run pip-audit on the pinned versions; return an exit code and what there is to say."""
    with tempfile.TemporaryDirectory() as folder:
        pinned = Path(folder) / "requirements.txt"
        pinned.write_text(requirements(versions))
        command = [sys.executable, "-m", "pip_audit", "--no-deps", "--disable-pip"]
        command += ["--progress-spinner=off", "--vulnerability-service", service]
        done = subprocess.run(
            [*command, "--requirement", str(pinned)], capture_output=True, text=True, check=False
        )
    if done.returncode != 0 and any(sign in done.stderr for sign in _NO_SERVICE):
        return _UNREACHABLE, (
            f"NOT CHECKED: the service {service!r} cannot be reached from here. With a copy of "
            "OSV's advisories, --database FILE looks into that instead."
        )
    return min(done.returncode, _FOUND), (done.stdout + done.stderr).strip()


def look_up(versions: dict[str, str], database: Path) -> tuple[int, str]:
    """Look the pinned versions up in an archive of OSV records; returns as `ask_service` does.

    Raises:
        ValueError: The file is no such archive, or has no advisory at all.
    """
    found, count = [], 0
    for record in _records(database):
        count += 1
        for affected in record.get("affected", []):
            name = canonicalize_name(affected.get("package", {}).get("name", ""))
            if name in versions and _is_affected(Version(versions[name]), affected):
                summary = record.get("summary") or "no summary"
                found.append(f"{name} {versions[name]}: {record['id']}, {summary}")
    if not count:
        raise ValueError(f"{database} holds no advisory: take OSV's archive PyPI/all.zip.")
    if found:
        return _FOUND, "\n".join(sorted(set(found)))
    return 0, f"None of {len(versions)} packages is named by {count:,} advisories in {database}."


def _records(database: Path) -> Iterator[dict[str, Any]]:
    try:
        with zipfile.ZipFile(database) as archive:
            for name in archive.namelist():
                record = json.loads(archive.read(name))
                if "withdrawn" not in record:
                    yield record
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise ValueError(f"{database} is not an archive of OSV records: {error}") from error


def _is_affected(version: Version, affected: dict[str, Any]) -> bool:
    public = Version(version.public)
    if any(_parsed(one) == public for one in affected.get("versions", [])):
        return True
    ranges = [one for one in affected.get("ranges", []) if one.get("type") == "ECOSYSTEM"]
    return any(_in_range(public, one.get("events", [])) for one in ranges)


def _in_range(version: Version, events: list[dict[str, str]]) -> bool:
    """Follow OSV's events, which stand in the order of their versions."""
    inside = False
    for event in events:
        if "introduced" in event and (first := _parsed(event["introduced"])) is not None:
            inside = inside or version >= first
        if "fixed" in event and (fixed := _parsed(event["fixed"])) is not None:
            inside = inside and version < fixed
        if "last_affected" in event and (last := _parsed(event["last_affected"])) is not None:
            inside = inside and version <= last
    return inside


def _parsed(text: str) -> Version | None:
    try:
        return Version(text)
    except InvalidVersion:
        return None


def main() -> None:
    """Print the verdict."""
    parser = argparse.ArgumentParser(description="Look for known vulnerabilities.")
    parser.add_argument("--service", choices=("osv", "pypi"), default="osv")
    parser.add_argument("--database", type=Path, help="an archive of OSV records, for no network")
    parser.add_argument("--strict", action="store_true", help="fail if nothing could be checked")
    options = parser.parse_args()
    versions = read_constraints(CONSTRAINTS.read_text())
    try:
        if options.database is None:
            code, text = ask_service(versions, options.service)
        else:
            code, text = look_up(versions, options.database)
    except ValueError as error:
        parser.error(str(error))
    print(text, file=sys.stderr if code else sys.stdout)
    sys.exit(0 if code == _UNREACHABLE and not options.strict else code)


if __name__ == "__main__":
    main()
