"""A notary's public key as people hand it around: one line of text in a ``.pub`` file."""

from __future__ import annotations

import re
from pathlib import Path

from coinflower.accounting.errors import UserError

_KIND = "coinflower-notary"
_KEY = re.compile(r"[0-9a-f]{64}")
_LINE = re.compile(rf"{_KIND} ({_KEY.pattern})( .*)?\n?")
_MOST_CHARACTERS = 1000


def notary_line(key: bytes) -> str:
    """Return what a ``.pub`` file of a notary holds."""
    return f"{_KIND} {key.hex()}\n"


def notary_key(text: str, folder: Path) -> str:
    """Return the key that somebody names: 64 hexadecimal digits, or a file that holds them.

    Args:
        text: The digits, or the file's path.
        folder: Where a relative path starts.

    Raises:
        ValueError: It is neither.
    """
    if _KEY.fullmatch(text):
        return text
    path = folder / text
    try:
        with path.open(encoding="ascii") as file:
            found = _LINE.fullmatch(file.read(_MOST_CHARACTERS))
    except FileNotFoundError:
        raise UserError(
            f"notaries names {text!r}, which is neither a file nor a key of 64 hexadecimal digits."
        ) from None
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}.") from None
    except ValueError:
        found = None
    if found is None:
        raise UserError(
            f"{path} is not a notary's public key; its operator has it as notary.pub "
            "(coinflower notary create)."
        )
    return found[1]
