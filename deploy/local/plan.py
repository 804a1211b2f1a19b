"""What `coinflower run` is asked for."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path

from coinflower.accounting import validation
from coinflower.accounting.errors import UserError
from coinflower.learning import (
    Clipping,
    FineTuning,
    Update,
)
from coinflower.learning.models.handed import ModelSource
from coinflower.protocol.messages import Precision
from coinflower.protocol.modes import Mode
from coinflower.protocol.query import MetricName
from coinflower.protocol.strict import Options
from coinflower.protocol.unit import Unit
from coinflower.server.settings import TrackerName


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What `coinflower run` is asked for.

    Attributes:
        clients: Number of clients; None takes as many as there are files.
        data: Name or path of the data set that is shared out.
        download: Whether public data may be fetched.
        schema: Path of the schema, if the data is a table.
        how: Partition: equal, writer, dirichlet or files.
        alpha: Concentration of the Dirichlet partition.
        unit: What is protected, and what declared sizes count.
        mode: Privacy mode.
        p: Participation probability.
        q: Sampling rate.
        clip_norm: Clip norm.
        clipping: How gradients are clipped.
        cap: Largest norm of a client's whole sum, in clip norms; infinite for none.
        sigma: Noise multiplier; calibrated from ``epsilon`` if None.
        epsilon: Budget of every client, which is never raised; None grants what ``sigma`` costs.
        delta: At this δ.
        rounds: Number of rounds.
        rounds_per_invitation: Coins per invitation.
        model: Name of the model, the model itself, or what makes it from the number of its outputs;
            chosen by the data if None.
        model_options: Its options.
        tuning: What the model begins with, and which of its parts are trained.
        device: Where gradients are computed.
        task: What is learned; if None, classes or else numbers, whichever the targets are.
        task_options: Its options.
        update: How the model steps.
        evaluate_every: Rounds between two evaluations.
        evaluation_epsilon: What evaluations on clients' own records may cost of the budget, on
            their own; None makes none.
        evaluation_metrics: What these measure; the metric to look at first if empty.
        poll_seconds: Pause of the server between two looks for replies.
        round_seconds: From the beginning of a round to that of the next; None starts it at once.
        download_precision: How exactly clients are told the model: ``single`` or ``half``.
        trackers: Who else is told the figures of each round.
        insecure_seed: Seeds everything; for tests only.
        threshold: In mode masked, how many clients an opened sum has at least; None chooses.
        colluders: How many of them may collude; None chooses.
        waits_for_all: Whether a round waits for every client, however slow. For clients that are
            never away, such as those of Flower's simulation engine, which plays them in turns.
    """

    clients: int | None
    data: str
    download: bool = False
    schema: Path | None = None
    how: str = "equal"
    alpha: float = 0.5
    unit: Unit = Unit.RECORD
    mode: Mode
    p: float
    q: float = 0.2
    clip_norm: float = 1.0
    clipping: Clipping = "flat"
    cap: float = math.inf
    sigma: float | None = None
    epsilon: float | None
    delta: float
    rounds: int
    rounds_per_invitation: int
    model: str | ModelSource | None = None
    model_options: Options = field(default_factory=dict)
    tuning: FineTuning = field(default_factory=FineTuning)
    device: str = "cpu"
    task: str | None = None
    task_options: Options = field(default_factory=dict)
    update: Update = field(default_factory=Update)
    evaluate_every: int = 5
    evaluation_epsilon: float | None = None
    evaluation_metrics: tuple[MetricName, ...] = ()
    poll_seconds: float = 0.05
    round_seconds: float | None = None
    download_precision: Precision = "single"
    trackers: tuple[TrackerName, ...] = ()
    insecure_seed: int | None = None
    threshold: int | None = None
    colluders: int | None = None
    waits_for_all: bool = False

    def __post_init__(self) -> None:
        """Check the budget; the terms check the others."""
        validation.require_delta(self.delta)
        if self.epsilon is not None:
            validation.require_epsilon(self.epsilon)
        if self.evaluation_epsilon is not None:
            self._check_evaluation(self.evaluation_epsilon)
        for name in ("threshold", "colluders"):
            if getattr(self, name) is not None and not self.mode.masks_sums:
                raise UserError(f"{name} goes with mode masked, not with mode {self.mode}.")
        if self.mode.masks_sums and self.waits_for_all:
            raise UserError(
                "Flower's simulation engine plays clients only, and mode masked needs a notary, "
                "too; choose other --nodes."
            )

    def _check_evaluation(self, epsilon: float) -> None:
        validation.require_positive("evaluation_epsilon", epsilon)
        if not self.mode.is_private:
            raise UserError("Evaluations on clients' records need a mode that protects them.")
        if self.epsilon is not None and not epsilon < self.epsilon:
            raise UserError(
                f"evaluation_epsilon = {epsilon:g} must be below epsilon = {self.epsilon:g}, of "
                "which it is a part: nothing would be left for training."
            )
