"""Flower's store of a SuperLink's objects, which also takes names that are no hashes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar

from flwr.supercore.inflatable.inflatable_utils import validate_object_content
from flwr.supercore.object_store.in_memory_object_store import InMemoryObjectStore

from coinflower.flower_internals.long_records import is_record

_free: ContextVar[str] = ContextVar("free", default="")


@contextlib.contextmanager
def taking(name: str) -> Iterator[None]:
    """Let `NamedStore` take a record under this name in this context, whatever its hash."""
    token = _free.set(name)
    try:
        yield
    finally:
        _free.reset(token)


class NamedStore(InMemoryObjectStore):
    """Takes a record under the name that `taking` says; all else goes by its hash."""

    def __init__(self, verify: bool = True) -> None:
        super().__init__(verify)
        self._unverified = InMemoryObjectStore(verify=False)
        self._unverified.store = self.store
        self._unverified.lock_store = self.lock_store

    def put(self, object_id: str, object_content: bytes) -> None:
        """Store an object that was announced; one that is there already stays as it is."""
        if object_id == _free.get() and is_record(object_content):
            validate_object_content(object_content)
            self._unverified.put(object_id, object_content)
        else:
            super().put(object_id, object_content)
