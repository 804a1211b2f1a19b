"""DP-SGD with random participation as a Flower strategy (the paper's Algorithm 1).

In each round the model goes to the clients whose coin said yes (to all where everybody always
answers; invitations ask for the coins of a block of rounds). Their sums are added up as they
arrive, noise is added (or, in mode ``masked``, notaries take the masks off), the total is scaled by
1/(p·q·Σd) over the available clients, and the optimizer takes a step.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from coinflower.accounting.errors import UserError
from coinflower.learning import Optimizer, Randomness, Update, mean_gradient
from coinflower.protocol import messages
from coinflower.protocol.terms import Terms
from coinflower.server.aggregation import RunningSum
from coinflower.server.attendance import Attendance
from coinflower.server.checkpoint import Checkpoint, CheckpointFolder, Vector
from coinflower.server.echoes import Echoes
from coinflower.server.grid import PromptGrid
from coinflower.server.invitations import Invitations
from coinflower.server.journal import RoundReport
from coinflower.server.lateness import Enough, Lateness
from coinflower.server.masked.masked_sum import MaskedSum
from coinflower.server.masked.opening import Opening
from coinflower.server.pace import Pace
from coinflower.server.questions import question
from coinflower.server.roster import Roster, SizeLimits

logger = logging.getLogger("coinflower.server")


class DivergedError(RuntimeError):
    """The model has values that are not finite; the last checkpoint is the round before."""


class RandomParticipation(Strategy):
    """The parameter server.

    Args:
        terms: The public terms.
        checkpoints: Where the state lives; also the source of the next unused round.
        randomness: Where central noise comes from.
        attendance: How many clients to wait for, and for how long.
        sizes: How much data clients may declare.
        update: How the model steps.
        round_seconds: From the beginning of a round to that of the next; see
            `coinflower.server.pace`.
        enough: When a round need not wait for everybody; None waits for all.
        on_round: Called after every round with the model to keep.
    """

    _roster: Roster  # this and what follows: from `start` on
    _invitations: Invitations
    _pace: Pace
    _lateness: Lateness
    _model: Optimizer
    _received: RunningSum | MaskedSum
    _opening: Opening

    def __init__(
        self,
        terms: Terms,
        *,
        checkpoints: CheckpointFolder,
        randomness: Randomness,
        attendance: Attendance | None = None,
        sizes: SizeLimits | None = None,
        update: Update | None = None,
        round_seconds: float | None = None,
        enough: Enough | None = None,
        on_round: Callable[[RoundReport, Vector], None] = lambda _, __: None,
    ) -> None:
        self._terms = terms
        self._checkpoints = checkpoints
        self._randomness = randomness
        self._attendance = attendance or Attendance()
        self._attendance.require_at_least(terms.threshold or 1)
        self._sizes = sizes
        self._on_round = on_round
        self._round_seconds = round_seconds
        if enough is not None:
            enough.require_mode(terms.mode)
        self._enough = enough
        self._update = update_of(terms, update)
        self._round = 0
        self._asked: dict[int, int] = {}
        self._available: dict[int, int] = {}

    def start(
        self,
        grid: Grid | PromptGrid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Run from the first unused round to the last; see Flower's ``Strategy.start``.

        Args:
            grid: The grid of the ServerApp.
            initial_arrays: The model to begin with; a checkpoint takes precedence.
            num_rounds: Last round; never beyond the terms.
            timeout: Seconds that a client may take to answer.
            train_config: Not used: what clients need is in the terms.
            evaluate_config: Not used: clients never evaluate.
            evaluate_fn: Not used: ``on_round`` is given the weights.

        Returns:
            The final model.

        Raises:
            TooFewClientsError: Too few clients for longer than the patience.
            DivergedError: A step led to values that are not finite.
            NotaryError: A notary will not open the sums of this run.
            ValueError: The checkpoint is damaged, of other terms or of another model.
        """
        del train_config, evaluate_config, evaluate_fn
        prompt = grid if isinstance(grid, PromptGrid) else PromptGrid(grid)
        self._pace = Pace(self._round_seconds, timeout)
        echoes = Echoes(self._checkpoints)
        self._lateness = Lateness(self._enough, echoes)
        self._roster = Roster(prompt, self._terms, timeout, self._sizes, echoes)
        self._invitations = Invitations(
            prompt, self._terms, self._roster, self._checkpoints, timeout
        )
        self._opening = Opening(
            prompt, self._terms, self._roster.notaries, timeout, self._roster.expel
        )
        self._restore(initial_arrays)
        result = Result()
        last = min(num_rounds, self._terms.rounds)
        first = max(self._round, self._checkpoints.used_through()) + 1
        if first <= last:  # a run that is complete needs nobody
            self._attendance.wait(self._roster, gather=True)
        for round_ in range(first, last + 1):
            self._attendance.wait(self._roster)
            self._on_round(self._play(round_, prompt), self._model.kept)
        result.arrays = _arrays(self._model.kept)
        return result

    def _play(self, round_: int, grid: PromptGrid) -> RoundReport:
        asks_for_coins = not self._terms.mode.answers_always
        models = self.configure_train(round_, ArrayRecord(), ConfigRecord(), grid)
        self._pace.await_tick()
        started = time.monotonic()
        if asks_for_coins and self._pace.fixed:
            # Before the models, whose number would show in when invitations come.
            self._invitations.invite_ahead(round_)
        pending = grid.push(models)
        if asks_for_coins and not self._pace.fixed:
            self._invitations.invite_ahead(round_)
        replies = self._lateness.collect(grid, pending, self._pace.answer_seconds())
        self.aggregate_train(round_, replies)
        # On a clock, only participants can be late or fail. Others must not see that they did: if
        # the next invitation is answered all is well, and if it is not, that is not due to coins.
        if not (asks_for_coins and self._pace.fixed):
            silent = self._lateness.silent(pending, started + self._pace.reply_seconds)
            self._roster.went_silent(silent | self._received.dropped)
        return RoundReport(
            round=round_,
            available=len(self._available),
            participants=len(self._asked),
            answered=len(self._received.answered),
            dropped=len(self._received.dropped),
            expected_batch=self._expected_batch(),
            seconds=time.monotonic() - started,
            received_bytes=self._received.received_bytes,
        )

    def _expected_batch(self) -> float:
        share = self._terms.p if self._terms.mode.answers_always else 1.0
        return share * self._terms.q * sum(self._asked.values())

    def configure_train(
        self,
        server_round: int,
        arrays: ArrayRecord,
        config: ConfigRecord,
        grid: Grid | PromptGrid,
    ) -> Iterable[Message]:
        """Return the messages of a round: the model, to those whose coin said yes.

        Rounds are used up on disk before anybody hears of them. The model is the strategy's own.
        """
        del arrays, config, grid
        if self._terms.mode.answers_always:
            self._checkpoints.use_rounds_through(server_round)
            self._asked = self._lateness.to_ask(self._roster.present, self._attendance.least)
            self._available = self._asked
        else:
            coins = self._invitations.coins(server_round, self._pace.coin_seconds())
            # A client that failed since its coins came still counts: only participants can fail,
            # and their absence would show in the size of the step.
            online = self._roster.online
            self._available = {node: online[node] for node in coins if node in online}
            present = self._roster.present
            self._asked = {node: size for node, size in present.items() if coins.get(node)}
        weights = messages.vector_to_view(self._model.weights)
        content = question(self._terms, {messages.ROUND: server_round}, weights=weights)
        return [
            Message(
                self._roster.beside(content, node),
                dst_node_id=node,
                message_type=f"train.{messages.GRADIENT}",
                ttl=self._pace.reply_seconds,
            )
            for node in self._asked
        ]

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Add up the replies as they come; with enough clients, add noise, scale and step.

        Returns nothing: the model is the strategy's own.
        """
        kind = MaskedSum if self._terms.mode.masks_sums else RunningSum
        received = self._received = kind(self._terms, self._model.weights.size, self._asked)
        for reply in replies:
            self._roster.echoes.note_answer(reply)
            received.add(reply)
            del reply  # or it would stay while the next one comes
        self._pace.await_end_of_answers()
        self._roster.echoes.save()
        if self._terms.mode.answers_always:
            self._available = {node: self._asked[node] for node in received.answered}
        if self._attendance.suffices(len(self._available), server_round, self._roster):
            total = self._total(server_round, received)
            if total is not None:
                self._step(server_round, total)
        return None, None

    def _total(self, round_: int, received: RunningSum | MaskedSum) -> Vector | None:
        """Return the noisy sum of a round; None if it cannot be opened."""
        if isinstance(received, MaskedSum):
            return self._opening.open(round_, received)
        return received.noisy_total(self._randomness)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return nothing: clients never evaluate, because accuracy would reveal their data."""
        del server_round, arrays, config, grid
        return []

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Return nothing; see `configure_evaluate`."""
        del server_round, replies
        return None

    def summary(self) -> None:
        """Log the terms, and a warning if nothing is protected."""
        if not self._terms.mode.is_private:
            logger.warning("NO PRIVACY: mode none protects nothing.")
        logger.info("Terms %s: %s", self._terms.hash[:16], self._terms.to_json())

    def _restore(self, initial: ArrayRecord) -> None:
        saved = self._checkpoints.load()
        weights = initial[messages.VECTOR].numpy().astype(np.float32)
        if saved is not None and saved.weights.shape != weights.shape:
            raise UserError(
                f"The checkpoint has {saved.weights.size} parameters, but the model has "
                f"{weights.size}; has the model changed since the run began?"
            )
        if saved is None:
            self._model = Optimizer(self._update, weights, rounds=self._terms.rounds)
            self._save()
        else:
            self._model = Optimizer(
                self._update, saved.weights, rounds=self._terms.rounds, memory=saved.memory
            )
            self._round = saved.round

    def _save(self) -> None:
        model = self._model
        self._checkpoints.save(
            Checkpoint(weights=model.weights, memory=model.memory, round=self._round)
        )

    def _step(self, round_: int, total: Vector) -> None:
        gradient = mean_gradient(
            total,
            p=self._terms.p,
            q=self._terms.q,
            declared_total=sum(self._available.values()),
        )
        self._model.step(gradient, round_)
        if not np.isfinite(self._model.weights).all():
            raise DivergedError(
                f"Round {round_} led to a model with values that are not finite; a smaller "
                "learning rate, or a finite clip norm, may help."
            )
        self._round = round_
        self._save()


def update_of(terms: Terms, update: Update | None) -> Update:
    """Return how the model steps: as the settings say, or as terms of earlier versions do.

    Raises:
        ValueError: Both say it.
    """
    if terms.learning_rate is None:
        return update or Update()
    if update not in (None, Update()):
        raise UserError(
            f"[terms] has learning_rate = {terms.learning_rate:g}, but [update] says how the model "
            "steps; leave it out of [terms]."
        )
    return Update(learning_rate=terms.learning_rate, momentum=terms.momentum or 0.0)


def _arrays(weights: Vector) -> ArrayRecord:
    return ArrayRecord({messages.VECTOR: Array(weights)})
