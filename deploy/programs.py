"""Programs that a server needs besides Python: where they lie."""

from __future__ import annotations

import os
import shutil

_SYSTEM_FOLDERS = "/usr/local/sbin:/usr/sbin:/sbin"


def search_path() -> str:
    """Return this process's path and the folders that only root has in it."""
    return f"{os.environ.get('PATH', os.defpath)}:{_SYSTEM_FOLDERS}"


def find_program(name: str) -> str | None:
    """Return where a program lies, also one of those that only root has in its path."""
    return shutil.which(name, path=search_path())
