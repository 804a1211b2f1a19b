"""Sentences for the person at the terminal: news, warnings, errors."""

from __future__ import annotations

import codecs
import io
import sys

from rich.console import Console

from coinflower.protocol.foreign import printable

console = Console()
errors = Console(stderr=True)

# For terminals and files whose encoding lacks the letters that the program writes.
_PLAIN = {
    "ε": "epsilon",
    "δ": "delta",
    "σ": "sigma",
    "√": "sqrt",
    "·": "*",
    "≤": "<=",
    "≥": ">=",
    "≠": "!=",
    "≈": "~",
    "→": "->",
    "−": "-",
    "–": "-",
    "—": "-",
    "…": "...",
    "∞": "inf",
    "’": "'",
    "‘": "'",
    "“": '"',
    "”": '"',
}
_HANDLER = "coinflower-plain"


def write_what_the_terminal_can_show() -> None:
    """Spell out letters that standard output or error cannot encode, instead of failing."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=_HANDLER)


def _spelled_out(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    letters = error.object[error.start : error.end]
    return "".join(_PLAIN.get(letter, "?") for letter in letters), error.end


codecs.register_error(_HANDLER, _spelled_out)


def as_the_terminal_shows(text: str) -> str:
    """Return text as it will be read: what is laid out in columns must know its width."""
    return text.encode(console.encoding, errors=_HANDLER).decode(console.encoding)


def say(message: str, *, style: str | None = None) -> None:
    """Print lines as they are: no markup, no folding at the edge of the window."""
    console.print(_safe(message), style=style, markup=False, highlight=False, soft_wrap=True)


def warn(message: str) -> None:
    """Print a warning to standard error, so that it never mixes with figures."""
    _tell(f"Warning: {message}", "yellow")


def complain(message: str) -> None:
    """Print what went wrong to standard error."""
    _tell(f"Error: {message}", "red")


def _tell(message: str, style: str) -> None:
    errors.print(_safe(message), style=style, markup=False, highlight=False, soft_wrap=True)


def _safe(message: str) -> str:
    """Return a message whose text cannot command the terminal, wherever it came from."""
    return "\n".join(printable(line) for line in message.split("\n"))
