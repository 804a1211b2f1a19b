"""Requests that wait in a SuperLink until there is a message for whoever sent them."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Hashable, Iterable


class Bell:
    """Wakes one request that waits; rung from any thread.

    Attributes:
        replaced: Whether a later request of the same caller has taken its place.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._rung = asyncio.Event()
        self.replaced = False

    def ring(self) -> None:
        """Wake the request."""
        with contextlib.suppress(RuntimeError):  # the SuperLink ends
            self._loop.call_soon_threadsafe(self._rung.set)

    async def wait(self) -> None:
        """Wait until it is rung, once more if it was before."""
        await self._rung.wait()
        self._rung.clear()


class Bells:
    """By caller, the bell of the request that waits for it: always the latest.

    A caller whose line broke asks again, and what is for it must not go to the request of which it
    will never see the answer.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._bells: dict[Hashable, Bell] = {}

    def hang(self, caller: Hashable, bell: Bell) -> None:
        """Let a request wait from now on."""
        with self._lock:
            before, self._bells[caller] = self._bells.get(caller), bell
        if before is not None and before is not bell:
            before.replaced = True
            before.ring()

    def take_down(self, caller: Hashable, bell: Bell) -> None:
        """Let a request wait no longer."""
        with self._lock:
            if self._bells.get(caller) is bell:
                del self._bells[caller]

    def ring(self, callers: Iterable[Hashable]) -> None:
        """Wake the requests of some callers."""
        with self._lock:
            found = [self._bells[caller] for caller in callers if caller in self._bells]
        for bell in found:
            bell.ring()

    def dismiss(self, caller: Hashable) -> None:
        """Let the request of a caller that leaves wait no longer, and find nothing."""
        with self._lock:
            bell = self._bells.pop(caller, None)
        if bell is not None:
            bell.replaced = True
            bell.ring()
