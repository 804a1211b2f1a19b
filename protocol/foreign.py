"""Text from the other side, made safe to show: no line, colour or command of a terminal is its own.

A server chooses names and errors that a client logs, and a client chooses reasons that a server
logs. With a line break such a text could forge a line of the log, with an escape sequence it could
repaint or command the terminal of whoever reads it.
"""

from __future__ import annotations

MOST_CHARACTERS = 200
"""How much of a quoted text is shown."""


def printable(text: str, most: int | None = None) -> str:
    """Return a text as one line of printable characters; all others are written as escapes.

    Args:
        text: Any text.
        most: How many of its characters are shown; all by default.
    """
    shown = text if most is None else text[:most]
    if not shown.isprintable():
        shown = "".join(one if one.isprintable() else _escaped(one) for one in shown)
    return shown if len(text) <= len(text[:most]) else f"{shown}… ({len(text)} characters)"


def quoted(text: object, most: int = MOST_CHARACTERS) -> str:
    """Return foreign text in quotation marks, printable and shortened, for a sentence of ours."""
    whole = str(text)
    rest = f"… ({len(whole)} characters)" if len(whole) > most else ""
    return f"{whole[:most]!r}{rest}"


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
