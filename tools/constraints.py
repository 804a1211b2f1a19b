"""The exact versions that the container image is built from.

``python -m tools.constraints`` prints them for what is installed here: the product's own
dependencies and theirs, without development tools.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import distribution

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

_PRODUCT = "coinflower"


def _required(name: str, extras: frozenset[str]) -> Iterator[Requirement]:
    for text in distribution(name).requires or []:
        requirement = Requirement(text)
        marker = requirement.marker
        if marker is None or any(marker.evaluate({"extra": extra}) for extra in {"", *extras}):
            yield requirement


def pinned() -> dict[str, str]:
    """Return the version of every package that the product needs to run, by canonical name."""
    versions: dict[str, str] = {}
    seen: set[tuple[str, frozenset[str]]] = set()
    waiting = list(_required(_PRODUCT, frozenset()))
    while waiting:
        requirement = waiting.pop()
        name, extras = canonicalize_name(requirement.name), frozenset(requirement.extras)
        if (name, extras) in seen:
            continue
        seen.add((name, extras))
        versions[name] = distribution(name).version
        waiting += _required(name, extras)
    return dict(sorted(versions.items()))


def render_constraints() -> str:
    """Return the text of ``deploy/constraints.txt``."""
    lines = [f"{name}=={version}" for name, version in pinned().items()]
    return "# Made by: python -m tools.constraints\n" + "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(render_constraints(), end="")
