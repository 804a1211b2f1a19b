"""Where a ledger lies: one file, under one name, that stays there while it is in use.

SQLite undoes a half-written change with a journal that lies beside the file and is named after it.
A file with two names, or mounted by itself somewhere else, has two places for it; one that was
moved, replaced or deleted under a running client is not the file that the next client will open.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from coinflower.accounting.ledger.errors import NOTHING_CHARGED, LedgerError
from coinflower.accounting.ledger.file import require_there

_MOUNTS = Path("/proc/self/mountinfo")


@dataclass(frozen=True)
class Place:
    """The place of a ledger that is open for writing.

    Attributes:
        path: The name it was opened by.
        real: Where it lies, with symbolic links followed.
        file: Device and number of the file.
    """

    path: Path
    real: Path
    file: tuple[int, int]

    @classmethod
    def of(cls, path: Path) -> Place:
        """Return the place of a ledger before it is opened.

        Raises:
            LedgerError: There is none, or no charge could be kept safe there.
        """
        require_there(path)
        real = path.resolve()
        if _is_mounted_alone(real):
            raise LedgerError(
                f"The ledger {path} is mounted as a single file, apart from its journal; mount "
                f"its folder instead. {NOTHING_CHARGED}"
            )
        found = real.stat()
        place = cls(path, real, (found.st_dev, found.st_ino))
        place.require(NOTHING_CHARGED)
        return place

    def require(self, consequence: str) -> None:
        """Refuse if the file is not what its name stands for, or has another name as well.

        Args:
            consequence: What follows from a refusal, in a sentence.
        """
        for name in {self.path, self.real}:
            try:
                found = os.stat(name)
            except OSError:
                found = None
            if found is None or (found.st_dev, found.st_ino) != self.file:
                raise LedgerError(
                    f"The ledger {self.path} was moved, deleted or replaced while it was in use; "
                    f"put it back and restart this client. {consequence}"
                )
            if found.st_nlink != 1:
                raise LedgerError(
                    f"The ledger {self.path} has {found.st_nlink} names (hard links), but its "
                    f"journal has only one; delete the others. {consequence}"
                )


def _is_mounted_alone(path: Path) -> bool:
    try:
        lines = _MOUNTS.read_bytes().splitlines()
    except OSError:  # not Linux
        return False
    points = (line.split(b" ")[4].decode("unicode_escape").encode("latin-1") for line in lines)
    return os.fsencode(path) in points
