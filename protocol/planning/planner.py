"""What a person knows and wishes, and the batch that serves it best."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from coinflower.accounting import validation
from coinflower.accounting.analyses.analysis import Analysis
from coinflower.accounting.composition.calibration import splits_for_batch
from coinflower.accounting.errors import UserError
from coinflower.accounting.masked import chosen_shares
from coinflower.protocol.modes import Mode
from coinflower.protocol.planning.choices import Choice, caps_for, ranked
from coinflower.protocol.unit import Unit

PRIVACY = {"strict": 1.0, "balanced": 3.0, "loose": 8.0}
"""Wishes for privacy, as ε of the whole experiment."""
ACCURACY = {"fast": 3.0, "balanced": 1.5, "accurate": 1.1}
"""Wishes for accuracy: how many times the least possible noise over signal is all right.

Larger batches leave less of it, up to a point; smaller ones are faster.
"""

USUAL_PARAMETERS = 100_000
"""Parameters of a model that is not known here."""


@dataclass(frozen=True, kw_only=True)
class Wishes:
    """What an experiment is to be.

    Attributes:
        clients: Number of clients.
        d: Records of the largest client, or persons if these are protected.
        rounds: Number of rounds.
        epsilon: What a record may lose in all.
        delta: At this δ.
        largest_p: How often a client can take part at most.
        bytes_per_round: Most that may pass through the server in a round; None for any amount.
        mode: Who adds noise.
        data: Public data that measures accuracy, and that a trial is run on.
        model: Model; chosen by the data if None.
        classes: Number of classes.
        parameters: Number of the model's trained parameters, which says how long a step's noise is.
        all_parameters: Number of all its parameters, which policies have to allow.
        unit: What is protected, and what ``d`` counts.
        subject: What else the terms say of what is learned, by their names; it comes before
            ``model`` and ``classes``.
        schema: The schema, if the data are tables.
        pretrained: The file of public weights that the model begins with, if any.
        experiment: Name of the experiment.
        notaries: Public keys of the notaries of mode masked.
        threshold: In that mode, how many clients an opened sum has at least; None chooses.
        colluders: How many of them may collude; None chooses.
    """

    clients: int
    d: int
    rounds: int
    epsilon: float
    delta: float
    largest_p: float = 1.0
    bytes_per_round: float | None = None
    mode: Mode = Mode.TRUSTED
    data: str = "digits"
    model: str | None = None
    classes: int = 10
    parameters: int = USUAL_PARAMETERS
    all_parameters: int = 0
    unit: Unit = Unit.RECORD
    subject: Mapping[str, Any] = field(default_factory=dict)
    schema: Path | None = None
    pretrained: Path | None = None
    experiment: str = "experiment-1"
    notaries: tuple[str, ...] = ()
    threshold: int | None = None
    colluders: int | None = None

    def __post_init__(self) -> None:
        """Check every field once; the terms check the others."""
        validation.require_count("clients", self.clients, least=1)
        validation.require_count("d", self.d, least=1)
        validation.require_count("rounds", self.rounds, least=1)
        validation.require_count("parameters", self.parameters, least=1)
        validation.require_epsilon(self.epsilon)
        validation.require_delta(self.delta)
        validation.require_probability("largest p", self.largest_p)
        if not self.mode.is_private:
            raise UserError("mode = 'none' protects nothing, so there is nothing to plan.")
        if not self.mode.flips_coins and self.largest_p != 1:
            raise UserError(
                f"largest p = {self.largest_p} must be 1 in mode {self.mode}: everybody takes part."
            )
        self.honest  # noqa: B018 - checks threshold and colluders
        if self.bytes_per_round is not None:
            validation.require_positive("bytes per round", self.bytes_per_round)
            self._require_affordable(self.bytes_per_round)

    def _require_affordable(self, bytes_: float) -> None:
        """Refuse fewer bytes than a round of the mode takes."""
        everybody = self.mode.answers_always or not self.mode.flips_coins
        least = (self.clients if everybody else 1) * self.bytes_per_answer
        if bytes_ < least:
            why = f"all {self.clients:,} clients answer" if everybody else "one client answers"
            raise UserError(
                f"bytes per round = {bytes_:g} must be at least {least:,} in mode {self.mode}, "
                f"where {why} with {self.bytes_per_answer:,} bytes each; allow more, or take a "
                "smaller model" + (", or mode trusted or quiet." if everybody else ".")
            )

    @property
    def has_notary(self) -> bool:
        """Whether the terms can be written down: in mode masked they name a notary."""
        return bool(self.notaries) or not self.mode.masks_sums

    @property
    def honest(self) -> int:
        """How many clients' noises make the one that is charged."""
        if not self.mode.masks_sums:
            return 1
        threshold, colluders = chosen_shares(self.clients, self.threshold, self.colluders)
        return threshold - colluders

    @property
    def bytes_per_answer(self) -> int:
        """What one client's part in a round takes: the model there and a sum back, 4 bytes each."""
        return 2 * 4 * self.parameters

    @property
    def affordable_p(self) -> float:
        """How often a client can take part, given the bytes as well."""
        if self.bytes_per_round is None or self.mode.answers_always:
            return self.largest_p
        return min(self.largest_p, self.bytes_per_round / (self.clients * self.bytes_per_answer))

    @property
    def scheme(self) -> type[Analysis]:
        """The analysis that charges these rounds."""
        scheme = self.mode.scheme
        assert scheme is not None
        return scheme

    @property
    def largest_batch(self) -> float:
        """Mean batch with all the records of everybody who takes part."""
        return self.affordable_p * self.clients * self.d


def suggested_delta(clients: int, d: int) -> float:
    """Return the largest power of ten that is at most a tenth of one over all records.

    At one over the number of records, publishing a random one of them would be allowed.
    """
    return float(f"1e-{1 + math.ceil(math.log10(clients * d))}")


def batches(wishes: Wishes) -> list[Choice]:
    """Return the best choice at the largest p for mean batches from the largest down, by halving.

    They end where the noise over signal is beyond all wishes for accuracy.
    """
    found: list[Choice] = []
    for choice in _halved_batches(wishes):
        found.append(choice)
        best = max(each.signal_to_noise for each in found)
        if best > max(ACCURACY.values()) * choice.signal_to_noise:
            break
    return found


def batch_for(found: list[Choice], accuracy: str) -> float:
    """Return the least of the `batches` whose noise over signal meets a wish for accuracy."""
    best = max(choice.signal_to_noise for choice in found)
    return min(
        choice.batch for choice in found if best <= ACCURACY[accuracy] * choice.signal_to_noise
    )


def _halved_batches(wishes: Wishes) -> Iterator[Choice]:
    batch = wishes.largest_batch
    while batch >= 1:
        yield choices(wishes, batch, count=1)[0]
        batch /= 2


def choices(
    wishes: Wishes,
    batch: float,
    *,
    scheme: type[Analysis] | None = None,
    caps: tuple[float, ...] | None = None,
    count: int = 7,
) -> list[Choice]:
    """Return ways to reach a mean batch, the best first.

    Args:
        wishes: What is wished for.
        batch: Mean number of records in a round.
        scheme: The analysis that chooses the noise; the mode's own by default.
        caps: Caps to weigh; those that are worth it by default.
        count: How many p to try, from the largest down.
    """
    kind = wishes.scheme if scheme is None else scheme
    return ranked(
        splits_for_batch(
            kind,
            batch_size=batch,
            clients=wishes.clients,
            d=wishes.d,
            epsilon=wishes.epsilon,
            delta=wishes.delta,
            rounds=wishes.rounds,
            largest_p=wishes.affordable_p,
            count=count if wishes.mode.flips_coins else 1,
            caps=caps_for(kind) if caps is None else caps,
        ),
        mode=wishes.mode,
        clients=wishes.clients,
        d=wishes.d,
        batch=batch,
        bytes_per_answer=wishes.bytes_per_answer,
        honest=wishes.honest,
    )


def with_everybody(wishes: Wishes, taken: Choice) -> Choice | None:
    """Return the same batch with everybody in every round; None if that is what was taken."""
    if taken.split.p == 1 or not wishes.mode.flips_coins:
        return None
    free = replace(wishes, largest_p=1.0, bytes_per_round=None)
    return choices(free, taken.batch, count=1)[0]
