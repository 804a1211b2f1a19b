"""What a deployment installs, by hash: a file that was swapped on its way is refused.

``python -m tools.lock > deploy/lock.txt`` writes the hashes of every file that the index offers
for the versions in ``deploy/constraints.txt``, for all platforms. A build with a local version, as
the CPU build of torch, is not on PyPI: its hash is taken from the wheel in ``--wheels FOLDER``, and
the lock says so. To install:

    pip install --no-deps --require-hashes --requirement deploy/lock.txt
"""

from __future__ import annotations

import argparse
import hashlib
from collections.abc import Iterable
from html.parser import HTMLParser
from pathlib import Path

import httpx
from packaging.utils import (
    InvalidSdistFilename,
    InvalidWheelFilename,
    parse_sdist_filename,
    parse_wheel_filename,
)
from packaging.version import Version

CONSTRAINTS = Path(__file__).parents[1] / "deploy" / "constraints.txt"
_HEADER = """\
# Made by: python -m tools.lock --wheels FOLDER
# Install with: pip install --no-deps --require-hashes --requirement deploy/lock.txt
"""
_LOCAL_BUILD = """\
# Not on PyPI: this is the hash of the wheel {wheels} as it lay on the machine that made the lock.
# Compare it with what https://download.pytorch.org/whl/cpu offers before you trust it; on another
# platform, make the lock anew.
"""


class _Links(HTMLParser):
    """The targets of all links of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "a":
            self.found += [value for key, value in attrs if key == "href" and value]


def read_constraints(text: str) -> dict[str, str]:
    """Return the versions by name."""
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return {name: version for name, _, version in (line.partition("==") for line in lines)}


def hashes_in_page(page: str, version: str) -> list[str]:
    """Return the SHA-256 of every file of that version on an index page (PEP 503)."""
    links = _Links()
    links.feed(page)
    found = set()
    for link in links.found:
        url, _, fragment = link.partition("#")
        kind, _, digest = fragment.partition("=")
        if kind == "sha256" and _version_of(url.rpartition("/")[2]) == Version(version):
            found.add(digest)
    return sorted(found)


def _version_of(file_name: str) -> Version | None:
    name = file_name.replace("%2B", "+")
    try:
        if name.endswith(".whl"):
            return parse_wheel_filename(name)[1]
        return parse_sdist_filename(name)[1]
    except (InvalidWheelFilename, InvalidSdistFilename):
        return None


def hashes_of_wheels(wheels: Iterable[Path]) -> list[str]:
    """Return the SHA-256 of these files."""
    return sorted(hashlib.sha256(wheel.read_bytes()).hexdigest() for wheel in wheels)


def render_requirement(name: str, version: str, hashes: list[str]) -> str:
    """Return a requirement that only these files meet.

    Raises:
        ValueError: There is no file.
    """
    if not hashes:
        raise ValueError(f"The index offers no file of {name}=={version}.")
    return " \\\n".join([f"{name}=={version}", *(f"    --hash=sha256:{one}" for one in hashes)])


def render_lock(versions: dict[str, str], *, index: str, wheels: Path | None) -> str:
    """Return the text of ``deploy/lock.txt``.

    Args:
        versions: What is pinned, by name.
        index: URL of a simple index (PEP 503).
        wheels: Where builds with a local version lie.

    Raises:
        ValueError: A file is nowhere to be found.
        httpx.HTTPError: The index cannot be reached.
    """
    parts = [_HEADER]
    with httpx.Client(follow_redirects=True, timeout=60.0) as client:
        for name, version in versions.items():
            if Version(version).local is None:
                page = client.get(f"{index}/{name}/").raise_for_status().text
                parts.append(render_requirement(name, version, hashes_in_page(page, version)))
            else:
                local = sorted(wheels.glob(f"{name}-{version}-*.whl")) if wheels else []
                names = ", ".join(wheel.name for wheel in local)
                parts.append(_LOCAL_BUILD.format(wheels=names).rstrip())
                parts.append(render_requirement(name, version, hashes_of_wheels(local)))
    return "\n".join(part.rstrip("\n") for part in parts) + "\n"


def main() -> None:
    """Print the lock."""
    parser = argparse.ArgumentParser(description="Print a lock with hashes.")
    parser.add_argument("--index", default="https://pypi.org/simple")
    parser.add_argument("--wheels", type=Path, help="folder with builds of a local version")
    options = parser.parse_args()
    versions = read_constraints(CONSTRAINTS.read_text())
    print(render_lock(versions, index=options.index.rstrip("/"), wheels=options.wheels), end="")


if __name__ == "__main__":
    main()
