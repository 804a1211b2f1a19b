"""Errors in the user's own files, reported in one sentence with the place."""

from __future__ import annotations

import contextlib
import importlib
import sysconfig
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import coinflower
from coinflower.accounting.errors import UserError
from coinflower.learning.vision import mending_torchvision

# A package there may itself be a link.
_LIBRARIES = tuple(
    str(folder)
    for name in ("stdlib", "purelib", "platlib")
    for folder in (Path(sysconfig.get_path(name)), Path(sysconfig.get_path(name)).resolve())
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


def own_function(what: str, name: str, wanted: str) -> Callable[..., Any]:
    """Return the user's function of the name ``package.module:function``.

    Args:
        what: The code, as a sentence's subject: "model 'own:net'".
        name: Its name.
        wanted: What the function has to be, as the end of a sentence.

    Raises:
        UserError: There is none, or its module fails.
    """
    module_name, _, function_name = name.partition(":")
    try:
        with blamed_on_its_author(what):
            module = mending_torchvision(lambda: importlib.import_module(module_name))
        function = getattr(module, function_name)
    except (OwnCodeError, AttributeError) as error:
        if isinstance(error, OwnCodeError) and place_of(error.__cause__):
            raise
        raise UserError(
            f"{what} cannot be loaded: {error.__cause__ or error}; it must be "
            "package.module:function, importable where the program runs"
        ) from error
    if not callable(function):
        raise UserError(f"{what} is not a function: give {wanted}")
    own: Callable[..., Any] = function
    return own


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
    known = _LIBRARIES + _THIS_PROGRAM
    return not any(str(one).startswith(known) for one in (path, path.resolve()))
