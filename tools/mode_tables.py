"""The tables of modes in the documents, written from `coinflower.protocol.modes`.

Run as ``python -m tools.mode_tables``; it replaces each table where its heading stands.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from coinflower.protocol.modes import Mode

ROOT = Path(__file__).parents[1]

Column = tuple[str, Callable[[Mode], str]]


def _name(mode: Mode) -> str:
    return f"`{mode}`"


def _charged(mode: Mode) -> str:
    return f"`{mode.charged_as}`" if mode.is_private else mode.charged_as


_NOISE: Column = ("who adds the noise", lambda mode: mode.facts.noise)
_AGAINST: tuple[Column, ...] = (
    ("everybody who gets the model, other clients too", lambda mode: mode.facts.against_readers),
    ("someone watching a client's network", lambda mode: mode.facts.against_network),
    ("the server", lambda mode: mode.facts.against_server),
)

TABLES: dict[str, tuple[Column, ...]] = {
    "README.md": (("`--mode`", _name), _NOISE, *_AGAINST, ("charged as", _charged)),
    "SECURITY.md": (
        ("mode", _name),
        _NOISE,
        *_AGAINST,
        ("if the trust is misplaced", lambda mode: mode.facts.if_misplaced),
    ),
    "docs/wire.md": (
        ("mode", _name),
        ("the server sees", lambda mode: mode.facts.server_sees),
        ("a listener on a client's line sees", lambda mode: mode.facts.network_sees),
        ("another client sees", lambda mode: mode.facts.clients_see),
    ),
    "docs/data-owners.md": (
        ("mode", _name),
        ("choose it if", lambda mode: mode.facts.choose_if),
    ),
    "docs/mathematics.md": (
        ("mode", _name),
        _NOISE,
        ("charged as", _charged),
        ("the charge holds against", lambda mode: mode.facts.against),
    ),
    "deploy/README.md": (
        ("mode", _name),
        ("the server sees of the coins and the data", lambda mode: mode.facts.server_sees),
    ),
}
"""The columns of each document's table."""


def table(columns: tuple[Column, ...]) -> list[str]:
    """Return the lines of a table, one row per mode."""
    rows = [
        [heading for heading, _ in columns],
        *[[cell(mode) for _, cell in columns] for mode in Mode],
    ]
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return [lines[0], "|" + "---|" * len(columns), *lines[1:]]


def with_table(text: str, lines: list[str]) -> str:
    """Return a document with its table, found by the heading, replaced by these lines.

    Raises:
        ValueError: No line of the document is the heading.
    """
    before = text.splitlines()
    starts = [at for at, line in enumerate(before) if line.strip() == lines[0]]
    if len(starts) != 1:
        raise ValueError(f"{len(starts)} lines are {lines[0]!r}, and one must be.")
    start = end = starts[0]
    while end < len(before) and before[end].lstrip().startswith("|"):
        end += 1
    margin = before[start][: len(before[start]) - len(before[start].lstrip())]
    return "\n".join([*before[:start], *(margin + line for line in lines), *before[end:], ""])


def main() -> None:
    """Write all tables."""
    for name, columns in TABLES.items():
        path = ROOT / name
        path.write_text(
            with_table(path.read_text(encoding="utf-8"), table(columns)), encoding="utf-8"
        )


if __name__ == "__main__":
    main()
