"""DP-SGD with random participation as a Flower strategy (the paper's Algorithm 1).

In each round the model goes to the clients whose coin said yes (to all where everybody always
answers; invitations ask for the coins of a block of rounds). Their sums are added up as they
arrive, noise is added (or, in mode ``masked``, notaries take the masks off), the total is scaled by
1/(p·q·Σd) over the available clients, and the optimizer takes a step.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import replace

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from coinflower.accounting.errors import UserError
from coinflower.learning import Optimizer, Randomness, Update, mean_gradient
from coinflower.protocol import messages
from coinflower.protocol.terms import Terms
from coinflower.server.checkpoint import Checkpoint, CheckpointFolder, Vector
from coinflower.server.clients.attendance import Attendance
from coinflower.server.clients.echoes import Echoes
from coinflower.server.clients.roster import SizeLimits
from coinflower.server.evaluations import Evaluations
from coinflower.server.grid import PromptGrid
from coinflower.server.journal import RoundReport
from coinflower.server.lateness import Enough
from coinflower.server.pace import Pace
from coinflower.server.rounds import Rounds

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
        evaluations: Measures the model on clients' records now and then; None never does.
        download_precision: How exactly clients are told the model; the server keeps all of it.
        on_round: Called after every round with the model to keep.
    """

    _rounds: Rounds  # this and what follows: from `start` on
    _model: Optimizer

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
        evaluations: Evaluations | None = None,
        download_precision: messages.Precision = "single",
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
        self._evaluations = evaluations
        self._download_precision = download_precision
        self._update = update_of(terms, update)
        self._round = 0

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
            evaluate_config: Not used, as well.
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
        pace, echoes = Pace(self._round_seconds, timeout), Echoes(self._checkpoints)
        self._rounds = Rounds(
            self._terms,
            grid=prompt,
            checkpoints=self._checkpoints,
            randomness=self._randomness,
            attendance=self._attendance,
            pace=pace,
            echoes=echoes,
            timeout=timeout,
            sizes=self._sizes,
            enough=self._enough,
            download_precision=self._download_precision,
        )
        self._restore(initial_arrays)
        del initial_arrays  # as large as the model
        result = Result()
        last = min(num_rounds, self._terms.rounds)
        first = max(self._round, self._checkpoints.used_through()) + 1
        if first <= last:  # a run that is complete needs nobody
            self._rounds.wait(gather=True)
            if self._evaluations is not None:
                self._evaluations.begin(prompt, pace, echoes, timeout)
        for round_ in range(first, last + 1):
            self._rounds.wait()
            self._on_round(self._measured(self._play(round_)), self._model.kept)
        result.arrays = _arrays(self._model.kept)
        return result

    def _play(self, round_: int) -> RoundReport:
        """Play a round and take its step; nothing as large as the model stays but the model."""
        played = self._rounds.play(round_, self._model.weights)
        if played.total is not None:
            self._step(round_, played.total, played.declared_total)
        return played.report

    def _measured(self, report: RoundReport) -> RoundReport:
        """Return the report of a round with what clients' records say of the model, if it's due."""
        if self._evaluations is None or not self._evaluations.is_due(report.round):
            return report
        return replace(report, private_metrics=self._evaluations.measure(self._model.kept))

    def configure_train(
        self,
        server_round: int,
        arrays: ArrayRecord,
        config: ConfigRecord,
        grid: Grid | PromptGrid,
    ) -> Iterable[Message]:
        """Return the messages of a round; `start` plays rounds without it."""
        del arrays, config, grid
        return self._rounds.questions(server_round, self._model.weights)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Return nothing: `start` adds up what comes, and the model is the strategy's own."""
        del server_round, replies
        return None, None

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return nothing: clients evaluate only as a query (`coinflower.server.evaluations`)."""
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

    def _step(self, round_: int, total: Vector, declared_total: int) -> None:
        gradient = mean_gradient(
            total, p=self._terms.p, q=self._terms.q, declared_total=declared_total
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
