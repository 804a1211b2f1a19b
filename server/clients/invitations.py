"""Invitations: the coins of blocks of rounds, asked for one block ahead."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field

from flwr.app import Message

from coinflower.protocol import messages
from coinflower.protocol.terms import Terms
from coinflower.server.checkpoint import CheckpointFolder
from coinflower.server.clients.roster import Roster
from coinflower.server.grid import Pending, PromptGrid
from coinflower.server.questions import answer_of, question

logger = logging.getLogger("coinflower.server")


@dataclass(kw_only=True)
class _Block:
    """The rounds of one invitation and the coins that have come in for them."""

    first: int
    count: int
    pending: Pending
    coins: dict[int, list[bool]] = field(default_factory=dict)

    def covers(self, round_: int) -> bool:
        return self.first <= round_ < self.first + self.count

    def note(self, reply: Message) -> bool:
        """Keep the coins of a reply; return False if it has none."""
        node = reply.metadata.src_node_id
        coins = answer_of(reply).get(messages.COINS)
        if isinstance(coins, list) and len(coins) == self.count:
            booleans = [coin for coin in coins if isinstance(coin, bool)]
            if len(booleans) == self.count:
                self.coins[node] = booleans
                return True
        logger.warning("Client %d gave no coins for the rounds from %d on.", node, self.first)
        return False


class Invitations:
    """Asks the roster's clients for their coins and keeps the answers.

    Args:
        grid: How to reach them.
        terms: The public terms.
        roster: Who is there.
        checkpoints: Where used-up rounds are recorded before anybody hears of them.
        reply_seconds: How long clients may take to answer.
    """

    def __init__(
        self,
        grid: PromptGrid,
        terms: Terms,
        roster: Roster,
        checkpoints: CheckpointFolder,
        reply_seconds: float,
    ) -> None:
        self._grid = grid
        self._terms = terms
        self._roster = roster
        self._checkpoints = checkpoints
        self._reply_seconds = reply_seconds
        self._block: _Block | None = None

    def coins(self, round_: int, patience: float) -> dict[int, bool]:
        """Return the coins of a round by client.

        Args:
            round_: The round.
            patience: Seconds to wait in the first round of a block; in others only for answers that
                have begun to come.
        """
        if self._block is None or not self._block.covers(round_):
            self._block = self._invite(round_)
        block, deadline = self._block, time.monotonic() + patience
        if round_ == block.first:
            replies = list(self._grid.collect(block.pending, patience))
            for _ in range(-(-len(block.pending.outstanding) // self._grid.batch)):
                # What has arrived by now is not late.
                replies += block.pending.poll(deadline)
            useless = {reply.metadata.src_node_id for reply in replies if not self._note(reply)}
            self._roster.went_silent(useless | block.pending.outstanding)
        else:
            for reply in block.pending.poll(deadline):
                self._note(reply)
        return {node: coins[round_ - block.first] for node, coins in block.coins.items()}

    def _note(self, reply: Message) -> bool:
        assert self._block is not None
        self._roster.echoes.note_answer(reply)
        return self._block.note(reply)

    def invite_ahead(self, round_: int) -> None:
        """In the last round of a block, send the invitations of the next block."""
        following = round_ + 1
        if self._block is None or self._block.covers(following):
            return
        if following <= self._terms.rounds:
            self._block = self._invite(following)

    def _invite(self, first: int) -> _Block:
        count = min(self._terms.rounds_per_invitation, self._terms.rounds - first + 1)
        self._checkpoints.use_rounds_through(first + count - 1)
        content = question(self._terms, {messages.ROUND: first, messages.COUNT: count})
        pending = self._grid.push(
            Message(
                self._roster.echoes.beside(content, node),
                dst_node_id=node,
                message_type=f"query.{messages.INVITE}",
                # It is sent ahead, and waits until the client has answered the current round.
                ttl=2 * self._reply_seconds,
            )
            for node in self._roster.present
        )
        return _Block(first=first, count=count, pending=pending)
