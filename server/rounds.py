"""One experiment's rounds: whom to ask, what they are asked, and the noisy sum of their answers.

A question carries a model; what the answers add up to, gradients or the vectors of a query, is for
whoever asks.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass

from flwr.app import Message

from coinflower.learning import Randomness
from coinflower.protocol import messages
from coinflower.protocol.terms import Terms
from coinflower.server.aggregation import RunningSum
from coinflower.server.checkpoint import CheckpointFolder, Vector
from coinflower.server.clients.attendance import Attendance
from coinflower.server.clients.echoes import Echoes
from coinflower.server.clients.invitations import Invitations
from coinflower.server.clients.roster import Roster, SizeLimits
from coinflower.server.grid import PromptGrid
from coinflower.server.journal import RoundReport
from coinflower.server.lateness import Enough, Lateness
from coinflower.server.masked.masked_sum import MaskedSum
from coinflower.server.masked.opening import Opening
from coinflower.server.pace import Pace
from coinflower.server.questions import question


@dataclass(frozen=True, kw_only=True, eq=False)
class Played:
    """What came of a round.

    Attributes:
        total: The noisy sum; None if too few clients were available, or nobody opened it.
        declared_total: Declared sizes of the available clients in all.
        report: What the server may know of it.
    """

    total: Vector | None
    declared_total: int
    report: RoundReport


class Rounds:
    """Plays the rounds of one experiment, one at a time.

    Args:
        terms: The public terms.
        grid: How to reach the clients.
        checkpoints: Where used-up rounds are recorded before anybody hears of them.
        randomness: Where central noise comes from.
        attendance: How many clients to wait for, and for how long.
        pace: When rounds begin.
        echoes: What clients handed out about their ledgers.
        timeout: Seconds that a client may take to answer.
        sizes: How much data clients may declare.
        enough: When a round need not wait for everybody; None waits for all.
        download_precision: How exactly clients are told the model.
        invites_ahead: Whether the coins of the next rounds are asked for before these begin.
    """

    def __init__(
        self,
        terms: Terms,
        *,
        grid: PromptGrid,
        checkpoints: CheckpointFolder,
        randomness: Randomness,
        attendance: Attendance,
        pace: Pace,
        echoes: Echoes,
        timeout: float,
        sizes: SizeLimits | None = None,
        enough: Enough | None = None,
        download_precision: messages.Precision = "single",
        invites_ahead: bool = True,
    ) -> None:
        self._terms = terms
        self._grid = grid
        self._checkpoints = checkpoints
        self._randomness = randomness
        self._attendance = attendance
        self._pace = pace
        self._download_precision = download_precision
        self._lateness = Lateness(enough, echoes)
        self._roster = Roster(grid, terms, timeout, sizes, echoes)
        self._invitations = Invitations(grid, terms, self._roster, checkpoints, timeout)
        self._opening = Opening(grid, terms, self._roster.notaries, timeout, self._roster.expel)
        self._invites = invites_ahead and not terms.mode.answers_always
        self._asked: dict[int, int] = {}
        self._available: dict[int, int] = {}

    def wait(self, *, gather: bool = False) -> None:
        """Return once enough clients are there; see `Attendance.wait`."""
        self._attendance.wait(self._roster, gather=gather)

    def play(self, round_: int, weights: Vector, *, length: int | None = None) -> Played:
        """Ask for the sums of a round and add them up.

        Args:
            round_: Which round; it must not be used up.
            weights: The model that the question carries.
            length: How many numbers an answer has; as many as the model if left out.
        """
        questions = self.questions(round_, weights)
        self._pace.await_tick()
        started = time.monotonic()
        for asked in questions:
            # A server that skips a slot waits longer for the tick than questions live.
            asked.metadata.created_at = time.time()
        if self._invites and self._pace.fixed:
            # Before the models, whose number would show in when invitations come.
            self._invitations.invite_ahead(round_)
        pending = self._grid.push(questions)
        if self._invites and not self._pace.fixed:
            self._invitations.invite_ahead(round_)
        replies = self._lateness.collect(self._grid, pending, self._pace.answer_seconds())
        received = self._add_up(replies, weights.size if length is None else length)
        total = None
        if self._attendance.suffices(len(self._available), round_, self._roster):
            total = self._total(round_, received)
        # On a clock, only participants can be late or fail. Others must not see that they did: if
        # the next invitation is answered all is well, and if it is not, that is not due to coins.
        if self._terms.mode.answers_always or not self._pace.fixed:
            silent = self._lateness.silent(pending, started + self._pace.reply_seconds)
            self._roster.went_silent(silent | received.dropped)
        return Played(
            total=total,
            declared_total=sum(self._available.values()),
            report=RoundReport(
                round=round_,
                available=len(self._available),
                participants=len(self._asked),
                answered=len(received.answered),
                dropped=len(received.dropped),
                expected_batch=self._expected_batch(),
                seconds=time.monotonic() - started,
                received_bytes=received.received_bytes,
            ),
        )

    def _expected_batch(self) -> float:
        share = self._terms.p if self._terms.mode.answers_always else 1.0
        return share * self._terms.q * sum(self._asked.values())

    def questions(self, round_: int, weights: Vector) -> list[Message]:
        """Return the messages of a round: the model, to those whose coin said yes.

        Rounds are used up on disk before anybody hears of them.
        """
        if self._terms.mode.answers_always:
            self._checkpoints.use_rounds_through(round_)
            self._asked = self._lateness.to_ask(self._roster.present, self._attendance.least)
            self._available = self._asked
        else:
            coins = self._invitations.coins(round_, self._pace.coin_seconds())
            # A client that failed since its coins came still counts: only participants can fail,
            # and their absence would show in the size of the step.
            online = self._roster.online
            self._available = {node: online[node] for node in coins if node in online}
            present = self._roster.present
            self._asked = {node: size for node, size in present.items() if coins.get(node)}
        told = messages.weights_to_field(weights, self._download_precision)
        content = question(self._terms, {messages.ROUND: round_}, weights=told)
        return [
            Message(
                self._roster.beside(content, node),
                dst_node_id=node,
                message_type=f"train.{messages.GRADIENT}",
                ttl=self._pace.reply_seconds,
            )
            for node in self._asked
        ]

    def _add_up(self, replies: Iterable[Message], length: int) -> RunningSum | MaskedSum:
        kind = MaskedSum if self._terms.mode.masks_sums else RunningSum
        received = kind(self._terms, length, self._asked)
        for reply in replies:
            self._roster.echoes.note_answer(reply)
            received.add(reply)
            del reply  # or it would stay while the next one comes
        self._pace.await_end_of_answers()
        self._roster.echoes.save()
        if self._terms.mode.answers_always:
            self._available = {node: self._asked[node] for node in received.answered}
        return received

    def _total(self, round_: int, received: RunningSum | MaskedSum) -> Vector | None:
        """Return the noisy sum of a round; None if it cannot be opened."""
        if isinstance(received, MaskedSum):
            return self._opening.open(round_, received)
        return received.noisy_total(self._randomness)
