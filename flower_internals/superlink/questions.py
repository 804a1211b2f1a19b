"""Flower's state in memory, with the questions to each node at hand.

A node that looks for its next question makes ``InMemoryLinkState`` go through those to everybody,
and check each of them. Where a thousand nodes are asked at once, these looks take longer than all
else that the SuperLink does.
"""

from __future__ import annotations

from itertools import islice
from typing import Any

from flwr.app import Message
from flwr.server.superlink.linkstate import InMemoryLinkState
from flwr.supercore.date import now

_CHECKED_IN_PASSING = 8


class OrderedLinkState(InMemoryLinkState):
    """The same state; a look goes through the questions to one node only."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._undelivered: dict[int, list[str]] = {}

    def store_message_ins(self, message: Message) -> str | None:
        """Store a question, once."""
        with self.lock:
            known = message.metadata.message_id in self.message_ins_store
            name = super().store_message_ins(message)
            if name is not None and not known:
                self._undelivered.setdefault(message.metadata.dst_node_id, []).append(name)
            return name

    def get_message_ins(
        self, node_id: int, limit: int | None, *, run_id: int | None = None
    ) -> list[Message]:
        """Return the oldest questions to a node that were not delivered yet.

        Flower deletes all that have expired. Here it is those to this node, and some of the oldest,
        so that what nobody looks for does not stay.
        """
        with self.lock:
            names = self._undelivered.pop(node_id, [])
            oldest = islice(self.message_ins_store, _CHECKED_IN_PASSING)
            self._check_stored_messages({*names, *oldest})
            there = [
                self.message_ins_store[name] for name in names if name in self.message_ins_store
            ]
            due = [one for one in there if run_id in (None, one.metadata.run_id)][:limit]
            for question in due:
                question.metadata.delivered_at = now().isoformat()
            left = [one.metadata.message_id for one in there if not one.metadata.delivered_at]
            if left:
                self._undelivered[node_id] = left
            return due
