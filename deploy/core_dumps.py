"""No file and no other process gets to see this process's memory.

A client's memory holds its data and, for a moment, sums without noise; a server's holds the sums. A
core dump would leave them on disk.
"""

from __future__ import annotations

import ctypes
import resource
import sys

_PR_SET_DUMPABLE = 4


def forbid_core_dumps() -> None:
    """Have no core dumped of this process, nor of those it starts.

    The limit is inherited. Where the kernel pipes cores into a program the limit is up to that
    program, so on Linux this process is made undumpable, too: then no core is made at all, and
    other processes of the same user cannot read its memory.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
