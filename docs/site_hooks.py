"""Lets the site show pages that live elsewhere in the repository, with links that lead there.

Texts stay where people look for them in a repository, and are written so that they read well there;
MkDocs knows the folder docs/ only.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
ELSEWHERE = {
    "deploy/README.md": "deployment.md",
    "deploy/kubernetes/README.md": "kubernetes.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security.md",
    "README.md": "index.md",
}
"""Where a file of the repository stands on the site; the site has an index of its own."""

_SOURCE = re.compile(r"\[([^]]+)\]\((?:\.\./)*(tests/[^)\s]+\.py)\)")
_LINK = re.compile(r"(\]\()([^)\s:#]+)(#[^)\s]*)?(\))")
_FENCE = re.compile(r"^( *```\w+) .*$", re.MULTILINE)


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that live elsewhere."""
    for source, page in ELSEWHERE.items():
        if page != "index.md" and (ROOT / source).exists():
            files.append(File.generated(config, page, content=(ROOT / source).read_text()))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Point links to where files stand on the site, and drop the marks that tests read."""
    here = page.file.src_uri
    sources = {page: source for source, page in ELSEWHERE.items() if page != "index.md"}
    folder = posixpath.dirname(sources.get(here, f"docs/{here}"))

    def moved(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(folder, link[2]))
        place = ELSEWHERE.get(target)
        if place is None and target.startswith("docs/"):
            place = target.removeprefix("docs/")
        if place is None:
            return link[0]
        relative = posixpath.relpath(place, posixpath.dirname(here) or ".")
        return f"{link[1]}{relative}{link[3] or ''}{link[4]}"

    # The site has no tests to link to: it names the file.
    markdown = _SOURCE.sub(r"\1 (`\2`)", markdown)
    return _FENCE.sub(r"\1", _LINK.sub(moved, markdown))
