"""Errors in the user's own files, reported in one sentence with the place."""

from __future__ import annotations

import contextlib
import sysconfig
import traceback
from collections.abc import Iterator
from pathlib import Path

import coinflower
from coinflower.accounting.errors import UserError

_LIBRARIES = tuple(
    str(Path(sysconfig.get_path(name)).resolve()) for name in ("stdlib", "purelib", "platlib")
)
# In a clone the packages are links to folders beside the user's own files.
_THIS_PROGRAM = tuple(
    str(folder.resolve())
    for folder in Path(coinflower.__file__).parent.iterdir()
    if folder.is_dir()
)


class OwnCodeError(UserError):
    """A file that the user wrote raised something."""


@contextlib.contextmanager
def blamed_on_its_author(what: str) -> Iterator[None]:
    """Turn whatever the user's code raises into one sentence with file and line.

    Args:
        what: The code, as a sentence's subject: "model 'own:net'".

    Raises:
        OwnCodeError: The code raised; its trace is the cause.
    """
    try:
        yield
    except (UserError, MemoryError):
        raise
    except Exception as error:  # whatever a stranger's code raises
        text = " ".join(str(error).split())
        said = f"{type(error).__name__}: {text}" if text else type(error).__name__
        raise OwnCodeError(f"{what} fails{place_of(error)}: {said}") from error


def place_of(error: BaseException | None) -> str:
    """Return where the user's code was when it failed, as half a sentence."""
    if isinstance(error, SyntaxError) and error.filename is not None:
        return f" in {error.filename}, line {error.lineno}"
    trace = None if error is None else error.__traceback__
    for frame in reversed(traceback.extract_tb(trace)):
        if _is_the_users(frame.filename):
            return f" in {frame.filename}, line {frame.lineno}"
    return ""


def _is_the_users(filename: str) -> bool:
    path = Path(filename)
    if not path.is_absolute() or not path.exists():  # <frozen importlib>, <string>
        return False
    return not str(path.resolve()).startswith(_LIBRARIES + _THIS_PROGRAM)
