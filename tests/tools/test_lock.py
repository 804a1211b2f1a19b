"""The lock with hashes belongs to the versions that are pinned, and to what the project needs."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from tools.lock import (
    CONSTRAINTS,
    hashes_in_page,
    hashes_of_wheels,
    read_constraints,
    render_requirement,
)

ROOT = Path(__file__).parents[2]
AGAIN = "make it anew: python -m tools.lock --wheels FOLDER > deploy/lock.txt"


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
    versions = {name: version for name, (version, _) in locked().items()}
    assert versions == read_constraints(CONSTRAINTS.read_text()), AGAIN


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


def test_a_page_gives_the_hashes_of_the_wanted_version_alone() -> None:
    page = (
        '<a href="../a_b-1.0-py3-none-any.whl#sha256=aa">x</a>'
        '<a href="https://x/a_b-1.0.tar.gz#sha256=bb">x</a>'
        '<a href="a_b-1.0.1-py3-none-any.whl#sha256=cc">x</a>'
        '<a href="a_b-1.0.zip.asc#sha256=dd">x</a>'
        '<a href="a_b-1.0-py2-none-any.whl#md5=ee">x</a>'
    )
    assert hashes_in_page(page, "1.0") == ["aa", "bb"]


def test_a_version_that_the_index_lacks_is_an_error_and_not_an_open_door() -> None:
    with pytest.raises(ValueError, match=r"no file of a-b==1\.0"):
        render_requirement("a-b", "1.0", [])


def test_a_wheel_is_hashed_as_it_lies_there(tmp_path: Path) -> None:
    (tmp_path / "a.whl").write_bytes(b"abc")
    digest = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert hashes_of_wheels([tmp_path / "a.whl"]) == [digest]
