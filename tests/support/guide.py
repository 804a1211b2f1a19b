"""The operator's guide, taken apart: what it tells each machine to run and to write."""

from __future__ import annotations

import re
from pathlib import Path

GUIDE = Path(__file__).parents[2] / "deploy" / "README.md"
_BLOCK = re.compile(r"^```(sh|toml) ([a-z. ]+)\n(.*?)^```", re.M | re.S)


def blocks() -> dict[str, str]:
    """Return the marked blocks of the guide by their mark, as in "server run"."""
    found = {mark: text for _, mark, text in _BLOCK.findall(GUIDE.read_text())}
    assert len(found) == len(_BLOCK.findall(GUIDE.read_text())), "a mark is used twice"
    return found


def block(mark: str, client: str = "ward-7", index: int = 0) -> str:
    """Return a block as it is written, for a client of another name than the guide's."""
    text = blocks()[mark].strip()
    return text.replace("ward-7", client).replace("index = 0", f"index = {index}")
