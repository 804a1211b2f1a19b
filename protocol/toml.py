"""Reading TOML files strictly: a key that is not known is a typo, and the nearest one is named."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from coinflower.accounting.errors import UserError


def read_toml(path: Path) -> dict[str, Any]:
    """Return the file's content.

    Raises:
        ValueError: The file is missing, not readable, or not TOML.
    """
    try:
        return tomllib.loads(path.read_text())
    except FileNotFoundError:
        raise UserError(f"There is no file {path}.") from None
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}.") from None
    except (ValueError, RecursionError) as error:  # numbers of thousands of digits, deep nesting
        raise UserError(f"{path} is not TOML: {error}.") from None


def require_known_keys(
    table: Mapping[str, Any], known: Iterable[str], required: Iterable[str], where: str
) -> None:
    """Refuse unknown keys, naming the nearest right one, and missing ones."""
    known = list(known)
    for key in table:
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(known)}."
            raise UserError(f"{where} has an unknown key {key!r}; {hint}")
    missing = [key for key in required if key not in table]
    if missing:
        raise UserError(f"{where} lacks {', '.join(map(repr, missing))}.")
