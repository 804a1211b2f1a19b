"""The lock with hashes belongs to the versions that are pinned, and to what the project needs."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[2]
AGAIN = "make it anew: make lock"


def locked() -> dict[str, tuple[str, list[str]]]:
    """Versions and hashes by name."""
    text = (ROOT / "deploy" / "lock.txt").read_text().replace("\\\n", " ")
    found = {}
    for line in text.splitlines():
        if line and not line.startswith("#"):
            name, _, rest = line.partition("==")
            version, *options = rest.split()
            assert all(re.fullmatch(r"--hash=sha256:[0-9a-f]{64}", one) for one in options)
            found[name] = version, options
    return found


def test_the_lock_holds_exactly_the_versions_that_are_pinned() -> None:
    pinned = [f"{name}=={version}" for name, (version, _) in locked().items()]
    made_by, *constraints = (ROOT / "deploy" / "constraints.txt").read_text().splitlines()
    assert made_by.startswith("#")
    assert constraints == pinned, AGAIN


def test_every_package_of_the_lock_has_a_hash() -> None:
    assert [name for name, (_, hashes) in locked().items() if not hashes] == []


def test_the_lock_meets_what_the_project_asks_for() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lock = locked()
    for text in project["dependencies"]:
        requirement = Requirement(text)
        version, _ = lock[canonicalize_name(requirement.name)]
        public = Version(version).public
        assert requirement.specifier.contains(public, prereleases=True), f"{text}: {AGAIN}"
