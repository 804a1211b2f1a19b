"""What the nodes of one process share, to spare the SuperLink that all of them call."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator

from coinflower.flower_internals.long_fields import Buffer

_POLLS_PER_SECOND = 25.0
_NEWS_SECONDS = 0.2
_COURTESY_SECONDS = 1.0
_TURN_PATIENCE_SECONDS = 0.5
_TURN_SECONDS = 0.02
_NODES_PER_SPEAKER = 100
_MOST_SPEAKERS = 4
_JOINING_AT_ONCE = 4
_BEATS_PER_SECOND = 5.0
_WAITS_PER_SECOND = 10.0
# Gateways take a connection on which nothing came for a minute for dead.
_LONGEST_WAIT_SECONDS = 50.0


class PollingGroup:
    """A cache of downloaded objects, a turn to speak, and the news that there are messages.

    Args:
        cache_bytes: Most that the cache may hold beside its longest object, which is the model that
            all of them are asked about.
        handlers: How many messages are handled at once; bounds memory when fifty nodes are asked
            for a gradient together. None allows one for each processor.
    """

    def __init__(self, *, cache_bytes: int = 32 << 20, handlers: int | None = None) -> None:
        self._cache: OrderedDict[str, Buffer] = OrderedDict()
        self._cache_bytes = cache_bytes
        self._size = 0
        self._slot = 0.0
        self._news = 0
        self._news_at = float("-inf")
        self._changed = threading.Condition()
        self._floor = threading.Condition()
        self._speakers = 0
        self._turn_began = 0.0
        self._joining = threading.BoundedSemaphore(_JOINING_AT_ONCE)
        self._handlers = threading.BoundedSemaphore(handlers or os.cpu_count() or 1)

    @contextlib.contextmanager
    def membership(self) -> Iterator[None]:
        """Belong to the group for as long as the block lasts."""
        with self._changed:
            self._size += 1
        try:
            yield
        finally:
            with self._changed:
                self._size -= 1

    @contextlib.contextmanager
    def turn(self) -> Iterator[None]:
        """Wait until nobody else in the group calls the SuperLink, or few do in a large group.

        The SuperLink needs longer for two requests at once than for one after the other, and far
        longer for dozens. A turn is a courtesy, not a lock: if none has begun for half a second, or
        for longer in a large group, one of those who wait calls anyway, so that requests that hang
        do not silence the rest.
        """
        with self._floor:
            patience = max(_TURN_PATIENCE_SECONDS, _TURN_SECONDS * self._size)
            while self._speakers >= min(1 + self._size // _NODES_PER_SPEAKER, _MOST_SPEAKERS):
                came = self._floor.wait(timeout=patience)
                if not came and time.monotonic() - self._turn_began > patience:
                    break
            self._turn_began = time.monotonic()
            self._speakers += 1
        try:
            yield
        finally:
            with self._floor:
                self._speakers -= 1
                self._floor.notify()

    @contextlib.contextmanager
    def joining(self) -> Iterator[None]:
        """Wait until only a few others join: a thousand at once would all run out of time."""
        with self._joining:
            yield

    def heartbeat_seconds(self, least: float) -> float:
        """Return what members promise between heartbeats, so that the SuperLink can keep up."""
        return max(least, self._size / _BEATS_PER_SECOND)

    def wait_seconds(self, least: float) -> float:
        """Return for how long a poll may wait, so that the SuperLink can keep up."""
        return max(least, min(self._size / _WAITS_PER_SECOND, _LONGEST_WAIT_SECONDS))

    @contextlib.contextmanager
    def handling(self) -> Iterator[None]:
        """Wait until a message may be handled."""
        with self._handlers:
            yield

    def tell(self, *, urgent: bool = False) -> None:
        """Wake the others: a message has come, so there may be some for them too.

        A server sends to many at once. Not every message of one batch is news; ``urgent`` says that
        it is.
        """
        with self._changed:
            if urgent or time.monotonic() - self._news_at > _NEWS_SECONDS:
                self._news_at = time.monotonic()
                self._news += 1
                self._changed.notify_all()

    @property
    def news(self) -> int:
        """How often there has been news so far."""
        return self._news

    def await_poll(self, interval: float, *, news: int) -> None:
        """Wait until it is time to poll, or there is more news than ``news``.

        Members poll in turn, evenly spread over ``interval``, and all together at most 25 times per
        second: a poll costs the SuperLink some 4 ms, and one that finds a message is news to the
        others. They do not poll while others still send their replies, because a server tends to
        wait for those, unless that takes longer than a second.
        """
        with self._changed:
            started = time.monotonic()
            while True:
                moment = time.monotonic()
                spacing = max(interval / max(self._size, 1), 1 / _POLLS_PER_SECOND)
                self._slot = max(self._slot, moment) + spacing
                self._changed.wait_for(lambda: self._news != news, timeout=self._slot - moment)
                if self._news != news or not self._speakers or moment - started > _COURTESY_SECONDS:
                    return

    def cached(self, name: str) -> Buffer | None:
        """Return the object of that name, if it is in the cache."""
        with self._changed:
            if name in self._cache:
                self._cache.move_to_end(name)
            return self._cache.get(name)

    def cache(self, name: str, content: Buffer) -> None:
        """Keep an object for the others, if any; those unused for longest make room for it."""
        with self._changed:
            if name in self._cache or self._size < 2:
                return
            self._cache[name] = content
            sizes = [len(kept) for kept in self._cache.values()]
            room = self._cache_bytes + max(sizes)
            while sum(sizes) > room:
                self._cache.popitem(last=False)
                del sizes[0]
