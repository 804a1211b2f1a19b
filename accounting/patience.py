"""A limit on how long a price may take to compute.

Terms come from the wire, and some take minutes. Whoever prices them says how long that may last;
accounting looks at the clock between steps, each of which is bounded.
"""

from __future__ import annotations

import contextlib
import contextvars
import time
from collections.abc import Iterator

from coinflower.accounting import validation

_until: contextvars.ContextVar[float] = contextvars.ContextVar("until", default=float("inf"))


class OutOfPatienceError(Exception):
    """The price took longer to compute than was allowed."""


@contextlib.contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Let `require` raise once this thread has computed for so long; inner limits only tighten.

    Time of the processor, so that a busy machine refuses nothing that an idle one agrees to.
    """
    validation.require_positive("seconds", seconds)
    token = _until.set(min(_until.get(), time.thread_time() + seconds))
    try:
        yield
    finally:
        _until.reset(token)


def require() -> None:
    """Go on if there is time left.

    Raises:
        OutOfPatienceError: There is none.
    """
    if time.thread_time() > _until.get():
        raise OutOfPatienceError("computing the price took too long")
