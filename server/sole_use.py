"""A folder that one process uses at a time: two servers of one experiment would ask twice."""

from __future__ import annotations

import contextlib
import fcntl
import time
from collections.abc import Iterator
from pathlib import Path

from coinflower.accounting.errors import UserError

_LOCK = "lock"
_LOOK_SECONDS = 0.1
# One that was told to end, or whose owner was killed, takes some seconds to.
_PATIENCE_SECONDS = 30.0


def is_in_use(folder: Path) -> bool:
    """Return whether a process keeps others out of a folder now."""
    try:
        with sole_use(folder, patience_seconds=0):
            return False
    except UserError:
        return True


@contextlib.contextmanager
def sole_use(folder: Path, *, patience_seconds: float = _PATIENCE_SECONDS) -> Iterator[None]:
    """Keep other processes out of a folder as long as the block lasts, or this process lives.

    Args:
        folder: The folder; made if missing.
        patience_seconds: How long to wait for another process to leave it.

    Raises:
        ValueError: Another process is still using it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + patience_seconds
    with (folder / _LOCK).open("a") as lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise UserError(
                        f"Another process is at work in {folder}; stop it, or choose another "
                        "folder."
                    ) from None
                time.sleep(_LOOK_SECONDS)
        yield
