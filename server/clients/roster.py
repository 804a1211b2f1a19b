"""Who is in the experiment: nodes that enrolled, refused, or have not been heard of."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from flwr.app import Message, RecordDict

from coinflower.protocol import messages
from coinflower.protocol.foreign import quoted
from coinflower.protocol.policy import Refusal
from coinflower.protocol.terms import Terms
from coinflower.server.clients.echoes import Echoes
from coinflower.server.clients.room import Room
from coinflower.server.grid import PromptGrid
from coinflower.server.masked.notaries import Notaries
from coinflower.server.masked.vouching import Vouching
from coinflower.server.questions import answer_of, question

logger = logging.getLogger("coinflower.server")

LARGEST_TOTAL_SIZE = 500_000_000
"""The most records whose clipped gradients a round's sum is sure to hold (learning/noise.py)."""
_LOOK_SECONDS = 1.0
_ASK_AGAIN_SECONDS = 5.0
_SENTENCES = frozenset(refusal.value for refusal in Refusal)
# What may be over soon: an owner resumes, a full disk gets some space.
_NOT_ALLOWED = "A notary does not allow this client's key."
_PASSING = frozenset(
    {Refusal.PAUSED.value, Refusal.LEDGER.value, Refusal.SET_BACK.value, _NOT_ALLOWED}
)
_BAD_TICKET = "A notary refused this client's ticket."


@dataclass(frozen=True, kw_only=True)
class SizeLimits:
    """How much data clients may declare.

    A declared size cannot be checked. It bounds what a client may send and scales the model's steps
    down, so it is not accepted without limit.

    Attributes:
        each: Largest size of one client.
        together: Largest sum of the sizes of all clients of a round.
    """

    each: int = 10_000_000
    together: int = 100_000_000


class Roster:
    """The nodes of a grid, and how they answered the terms.

    Args:
        grid: How to reach them.
        terms: What they are asked to agree to.
        reply_seconds: How long they may take to answer.
        sizes: How much data they may declare.
        echoes: What they handed out about their ledgers.

    Attributes:
        echoes: The same.
        notaries: Which nodes are notaries, and no clients.
    """

    def __init__(
        self,
        grid: PromptGrid,
        terms: Terms,
        reply_seconds: float,
        sizes: SizeLimits | None = None,
        echoes: Echoes | None = None,
    ) -> None:
        self._grid = grid
        self._terms = terms
        self._reply_seconds = reply_seconds
        self._sizes = sizes or SizeLimits()
        self.echoes = echoes or Echoes()
        self.notaries = Notaries(terms)
        self._vouching = Vouching(grid, terms, self.notaries, reply_seconds)
        self._declared: dict[int, int] = {}
        self._declared_together = 0
        self._refusals: dict[int, str] = {}
        self._online: set[int] = set()
        self._silent: set[int] = set()
        self._asked_at: dict[int, float] = {}
        # All in one: each that is apart would be a request in each look.
        self._pending = grid.push([])
        self._looked_at = 0.0

    @property
    def present(self) -> dict[int, int]:
        """Declared sizes of the enrolled nodes that are there and fit into the limit.

        The node that enrolled first comes first. In mode masked notaries have vouched for them; as
        long as a notary is missing, nobody can be asked for anything.
        """
        return self._split()[0]

    @property
    def online(self) -> dict[int, int]:
        """Declared sizes of all enrolled nodes that are there, including those that went silent."""
        return {node: size for node, size in self._declared.items() if node in self._online}

    @property
    def refusals(self) -> dict[int, str]:
        """What the nodes that refuse said, or why they are kept out."""
        return {**self._refusals, **dict.fromkeys(self._split()[1], self._no_room)}

    @property
    def refused_for_good(self) -> int:
        """How many nodes refused for a reason that does not pass by itself."""
        return sum(reason not in _PASSING for reason in self.refusals.values())

    def told_refusals(self) -> str:
        """Return who stays away and why, in a sentence; empty if nobody does."""
        refusals = self.refusals
        if not refusals:
            return ""
        counts = Counter(refusals.values())
        several = len(counts) > 1
        reasons = [f"{times} × {reason}" if several else reason for reason, times in counts.items()]
        heard = len(self.present) + len(refusals)
        word = "client refuses" if heard == 1 else "clients refuse"
        return f"{len(refusals)} of {heard} {word}: {' '.join(reasons)}"

    @property
    def _no_room(self) -> str:
        ring = ", or than the ring of the terms holds" if self._terms.mode.masks_sums else ""
        return (
            "The declared sizes of all clients add up to more than largest_total_size = "
            f"{self._sizes.together}{ring}."
        )

    def _split(self) -> tuple[dict[int, int], list[int]]:
        """Return the sizes of the nodes that are there and fit, and the nodes that do not."""
        fitting: dict[int, int] = {}
        left_over, room = [], Room(self._terms, self._sizes.together)
        if self.notaries.missing:
            return {}, []
        for node, size in self._declared.items():
            if node not in self._online or node in self._silent:
                continue
            if not self._vouching.is_complete(node):
                continue
            if room.takes(size):
                fitting[node] = size
            else:
                left_over.append(node)
        return fitting, left_over

    def refresh(self) -> None:
        """Check who is there and ask those that have not answered; return at once."""
        now = time.monotonic()
        if now - self._looked_at >= _LOOK_SECONDS:
            self._looked_at = now
            self._online = self.notaries.online = set(self._grid.get_node_ids())
            self._ask(now)
        for reply in self._pending.poll():
            self._note(reply)
        for node in self._vouching.refresh():
            self._keep_out(node, _NOT_ALLOWED)

    def beside(self, content: RecordDict, node: int) -> RecordDict:
        """Return a question of a round with what is for this client alone beside it."""
        return self.echoes.beside(content, node, self._vouching.vouchers(node))

    def expel(self, nodes: Iterable[int]) -> None:
        """Never ask these nodes again: their tickets keep everybody's sum from being opened."""
        for node in nodes:
            self._declared_together -= self._declared.pop(node, 0)
            self._keep_out(node, _BAD_TICKET)

    def went_silent(self, nodes: Iterable[int]) -> None:
        """Do not count on these nodes until they enrol again."""
        for node in nodes:
            logger.warning("Client %d gave no usable answer; continuing without it.", node)
            self._silent.add(node)

    def _ask(self, now: float) -> None:
        known = self._declared.keys() | self._refusals.keys() | self.notaries.nodes
        waiting = self._pending.outstanding
        due = [
            node
            for node in ((self._online - known) | (self._silent & self._online)) - waiting
            if now - self._asked_at.get(node, -_ASK_AGAIN_SECONDS) >= _ASK_AGAIN_SECONDS
        ]
        if not due:
            return
        self._asked_at.update(dict.fromkeys(due, now))
        self._pending.add(
            [
                Message(
                    self.echoes.beside(question(self._terms), node),
                    dst_node_id=node,
                    message_type=f"query.{messages.ENROL}",
                    ttl=self._reply_seconds,
                )
                for node in due
            ]
        )

    def _note(self, reply: Message) -> None:
        node = reply.metadata.src_node_id
        if reply.has_error():
            logger.warning("Client %d could not enrol (error %d).", node, reply.error.code)
            return
        try:
            answer = answer_of(reply)
            if messages.NOTARY in answer:
                self.notaries.note(node, answer[messages.NOTARY])
                return
            enrolled, size = answer[messages.ENROLLED], answer[messages.DECLARED_SIZE]
            reason = str(answer[messages.REASON])
            if reason not in _SENTENCES:  # not one of ours, so the client's own text
                reason = quoted(reason)
        except KeyError:
            logger.warning("Client %d answered something other than what was asked.", node)
            return
        if enrolled is True and type(size) is int and size > self._sizes.each:
            enrolled = False
            reason = f"It declares more records than largest_declared_size = {self._sizes.each}."
        if enrolled is True and type(size) is int and size > 0:
            if node not in self._declared:
                logger.info("Client %d enrolled with declared size %d.", node, size)
            # Fixed for the run, so that one record more or less does not change the scale.
            if node not in self._declared:
                self._declared[node] = size
                self._declared_together += size
            self.echoes.note_enrolment(reply)
            if self._terms.mode.masks_sums:
                self._vouching.request(node, answer.get(messages.REQUEST))
            self._silent.discard(node)
            self._refusals.pop(node, None)
            # Looking through all of them for each would take a while where there are many.
            if self._declared_together > self._sizes.together and node in self._split()[1]:
                logger.warning("Client %d is left out: %s", node, self._no_room)
        else:
            self._keep_out(node, reason)

    def _keep_out(self, node: int, reason: str) -> None:
        if self._refusals.get(node) != reason:
            logger.warning("Client %d stays away: %s", node, reason)
        self._refusals[node] = reason
        if reason in _PASSING:
            self._silent.add(node)  # asked again
