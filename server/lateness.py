"""Rounds that do not wait for the slowest: how many answers are enough, and who is still busy."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass

from flwr.app import Message

from coinflower.accounting.errors import UserError
from coinflower.protocol.modes import Mode
from coinflower.server.clients.echoes import Echoes
from coinflower.server.grid import Pending, PromptGrid

logger = logging.getLogger("coinflower.server")

# 0.55 of 20 clients are 11, not 12.
_ROUNDING = 1e-9


@dataclass(frozen=True, kw_only=True)
class Enough:
    """When a round need not wait for everybody.

    Whose sum is left out depends on when answers come. So this is for modes in which everybody is
    asked and does the same work whatever the coin says. Where only participants are asked, a coin
    would decide whom the round waits for, and with that whose sum is in the model.

    Attributes:
        share: Part of the clients that are there whose answers are enough.
        grace_seconds: How much longer the others have then.
    """

    share: float
    grace_seconds: float

    def require_mode(self, mode: Mode) -> None:
        """Refuse a mode in which the rule would show who takes part.

        Raises:
            ValueError: With the modes that fit.
        """
        if not mode.answers_always:
            fitting = ", ".join(one for one in Mode if one.answers_always)
            raise UserError(
                f"enough_share = {self.share:g} does not go with mode {mode}, in which only "
                "participants are asked: whose answer is left out would depend on coins. Leave it "
                f"out, or choose a mode in which everybody answers: {fitting}."
            )


class Lateness:
    """Whom a round asks, how long it waits, and what becomes of those that it did not wait for.

    They stay in the run, but are not asked again before their answer has come: a client does one
    thing at a time, so it would answer a further question late as well, and be charged for it.

    Args:
        enough: When a round need not wait for everybody; None waits for all.
        echoes: What clients hand out about their ledgers, with late answers, too.
    """

    def __init__(self, enough: Enough | None, echoes: Echoes) -> None:
        self._enough = enough
        self._echoes = echoes
        self._wanted: int | None = None
        self._late: list[tuple[float, Pending]] = []

    def to_ask(self, present: dict[int, int], least: int) -> dict[int, int]:
        """Return whom to ask: all but those that are busy, unless too few would be left.

        Args:
            present: Clients that are there, with their declared sizes.
            least: Fewest answers that make a step.
        """
        if self._enough is None:
            return present
        self._wanted = max(least, math.ceil(self._enough.share * len(present) - _ROUNDING))
        busy = self._busy()
        free = {node: size for node, size in present.items() if node not in busy}
        return free if len(free) >= self._wanted else present

    def collect(self, grid: PromptGrid, pending: Pending, seconds: float) -> Iterator[Message]:
        """Yield the answers of a round as they come, until it ends."""
        if self._enough is None:
            return grid.collect(pending, seconds)
        return grid.collect(
            pending, seconds, enough=self._wanted, grace_seconds=self._enough.grace_seconds
        )

    def silent(self, pending: Pending, deadline: float) -> frozenset[int]:
        """Return the clients that nobody need wait for any longer, at the end of a round.

        Args:
            pending: The questions of the round.
            deadline: Until when, on the monotonic clock, a late answer still shows that a client is
                there.
        """
        if self._enough is None:
            return pending.outstanding
        for node in pending.outstanding:
            logger.info("Client %d is late, and the round did not wait for it.", node)
        self._late.append((deadline, pending))
        now = time.monotonic()
        overdue = [old for until, old in self._late if until <= now]
        self._late = [one for one in self._late if one[0] > now]
        return frozenset().union(*(old.outstanding for old in overdue))

    def _busy(self) -> frozenset[int]:
        for _, pending in self._late:
            # What is still being uploaded is of no use: nobody waits for it.
            for reply in pending.poll(time.monotonic()):
                self._echoes.note_answer(reply)
        self._late = [one for one in self._late if one[1].outstanding]
        return frozenset().union(*(pending.outstanding for _, pending in self._late))
