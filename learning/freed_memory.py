"""Memory that was freed: who may have it next."""

from __future__ import annotations

import contextlib
import ctypes

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _MOST_ARENAS = -1, -3, -8  # glibc's names for mallopt(3)
_KEPT_BYTES = 1 << 28
_LARGEST_BYTES = 1 << 25


def keep_freed_memory() -> None:
    """Let this process keep the memory that a step frees: the next step needs it again.

    Batches differ in size, so glibc would return pages in every step and have the kernel clear new
    ones, a tenth of the step's time. Without glibc there is nothing to do.
    """
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL("libc.so.6").mallopt
        mallopt(_MMAP_THRESHOLD, _LARGEST_BYTES)
        mallopt(_TRIM_THRESHOLD, _KEPT_BYTES)


def share_freed_memory() -> None:
    """Let what one thread frees be there for the others, where threads take turns at large work.

    Otherwise glibc keeps it for the thread that freed it. To be called before the threads begin.
    Without glibc there is nothing to do.
    """
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").mallopt(_MOST_ARENAS, 1)


def hand_back_freed_memory() -> None:
    """Hand back what is free between the pieces in use, after work that will not come again soon.

    Trying a model out leaves holes of twice its size. Without glibc there is nothing to do.
    """
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)
