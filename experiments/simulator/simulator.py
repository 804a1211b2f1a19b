"""The algorithm at the paper's scale on one machine: tens of thousands of clients, no messages.

The same pieces as the deployment (clipped sums, noise, scaling, update) around draws that cost what
the batch costs, not what the number of clients costs: the number of participants is drawn first,
then who they are, then how many of their rows are sampled, then which.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
from torch import nn

from coinflower.accounting import validation
from coinflower.accounting.errors import UserError
from coinflower.experiments.simulator.batch_sums import Batch, BatchSums
from coinflower.learning import (
    Clipping,
    FixedPoint,
    Optimizer,
    Randomness,
    Records,
    Task,
    Update,
    add_noise,
    fine_cell,
    flatten_parameters,
    load_parameters,
    make_task,
    mean_gradient,
)
from coinflower.learning.data.persons import Units
from coinflower.protocol.modes import Mode, parse_mode
from coinflower.protocol.terms import CLASSIFICATION
from coinflower.server.checkpoint import Checkpoint

Rows = npt.NDArray[np.int64]
Vector = npt.NDArray[np.float32]


CENTRAL: Literal["central"] = "central"
"""No mode of a federation: all data in one place, sampled at rate p·q; one noise of σ·C."""

Noise = Mode | Literal["central"]
NOISES = (*Mode, CENTRAL)


def parse_noise(text: str) -> Noise:
    """Return who adds noise, by name."""
    return CENTRAL if text == CENTRAL else parse_mode(text)


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """What is simulated.

    Attributes:
        sizes: Data-set size of every client, in units, which lie one after the other.
        p: Participation probability.
        q: Sampling rate.
        clip_norm: Bound on each unit's gradient.
        clipping: How it is clipped.
        noise_multiplier: Noise over clip norm.
        noise: Who adds it: a mode, or all data in one place.
        update: How the model steps.
        iterations: How many the schedule of the step size is for.
        availability: Probability that a client is there at all in an iteration.
        cap: Bound on each client's sum, in clip norms; infinite for none.
        threshold: In mode masked, how many clients must be there for a sum to be opened.
        colluders: How many of these may collude.
    """

    sizes: Rows
    p: float
    q: float
    clip_norm: float
    noise_multiplier: float
    noise: Noise
    update: Update
    iterations: int = 1
    availability: float = 1.0
    cap: float = math.inf
    clipping: Clipping = "flat"
    threshold: int = 1
    colluders: int = 0

    def __post_init__(self) -> None:
        """Check every field once."""
        validation.require_probability("p", self.p)
        validation.require_probability("q", self.q)
        validation.require_probability("availability", self.availability)
        validation.require_cap(self.cap)
        if math.isfinite(self.cap) and not math.isfinite(self.clip_norm):
            raise UserError(
                f"cap = {self.cap:g} counts clip norms, so the clip norm must be finite; leave out "
                "the cap, or set a clip norm."
            )
        if self.sizes.ndim != 1 or len(self.sizes) == 0 or self.sizes.min() < 1:
            raise UserError("sizes must name at least one client, each with at least one unit.")


@dataclass(frozen=True, kw_only=True)
class Draw:
    """The outcome of an iteration's coins and samples.

    Attributes:
        sampled: The sampled units, by their places, client after client.
        owners: The client of each.
        participants: How many clients joined.
        available: How many were there.
        available_size: How many units these have.
    """

    sampled: Rows
    owners: Rows
    participants: int
    available: int
    available_size: int


class Simulator:
    """A run, one iteration at a time.

    Args:
        scenario: What is simulated.
        records: Records to train on.
        model: The model; its weights are the state of the run.
        generator: Where coins and samples come from.
        randomness: Where noise comes from.
        rows: Which records the clients hold, client after client and unit after unit; all in order
            by default. The records themselves stay where they are.
        rows_per_person: How many of them each unit has, if these are persons; None for records.
        task: What is learned; classes, as many as the records have, by default.
        threads: How many compute at a time; the run does not depend on it.
    """

    def __init__(
        self,
        scenario: Scenario,
        records: Records,
        model: nn.Module,
        generator: np.random.Generator,
        randomness: Randomness,
        *,
        rows: Rows | None = None,
        rows_per_person: Rows | None = None,
        task: Task | None = None,
        threads: int = 1,
    ) -> None:
        self._rows = np.arange(len(records)) if rows is None else rows
        self._persons = None
        held, what = len(self._rows), "records"
        if rows_per_person is not None:
            numbers = np.repeat(np.arange(len(rows_per_person)), rows_per_person)
            self._persons = Units.numbered(numbers)
            held, what = len(rows_per_person), "persons"
        if held != int(scenario.sizes.sum()):
            raise UserError(
                f"There are {held} {what}, but clients have {int(scenario.sizes.sum())} in all."
            )
        classes = max(2, int(records.targets.max(initial=0)) + 1)
        self.task = task or make_task(CLASSIFICATION, {}, outputs=classes)
        self._scenario = scenario
        self._model = model
        self._sums = BatchSums(
            model,
            records,
            self.task,
            clip_norm=scenario.clip_norm,
            clipping=scenario.clipping,
            cap_norm=scenario.cap * scenario.clip_norm,
            threads=threads,
        )
        self._generator = generator
        self._randomness = randomness
        self._ends = np.cumsum(scenario.sizes)
        self._equal = bool((scenario.sizes == scenario.sizes[0]).all())
        self._played = 0
        self.optimizer = Optimizer(
            scenario.update, flatten_parameters(model).numpy(), rounds=scenario.iterations
        )

    def resume(self, kept: Checkpoint) -> None:
        """Continue with the model and the optimizer of an earlier run."""
        scenario = self._scenario
        self._played = kept.round
        self.optimizer = Optimizer(
            scenario.update, kept.weights, rounds=scenario.iterations, memory=kept.memory
        )

    def step(self) -> Draw:
        """Play one iteration."""
        draw = self.draw()
        scenario = self._scenario
        if draw.available < scenario.threshold:  # the round is void
            self._played += 1
            return draw
        load_parameters(self._model, self.optimizer.weights)
        std = self._noise_std(draw)
        noise = self._sums.drawn_meanwhile(self._randomness, len(self.optimizer.weights), std)
        total = self._sums.sum(self._batch(draw))
        if std > 0:
            counted = FixedPoint.of(total, fine_cell(scenario.clip_norm))
            total = add_noise(counted, std, noise)
        gradient = mean_gradient(
            total, p=scenario.p, q=scenario.q, declared_total=max(draw.available_size, 1)
        )
        self._played += 1
        self.optimizer.step(gradient, self._played)
        return draw

    def _batch(self, draw: Draw) -> Batch:
        """Return the records of the sampled units."""
        if self._persons is None:
            return Batch(rows=self._rows[draw.sampled], owners=draw.owners)
        sizes = self._persons.sizes[draw.sampled]
        return Batch(
            rows=self._rows[self._persons.rows_of(draw.sampled)],
            owners=np.repeat(draw.owners, sizes),
            persons=np.repeat(draw.sampled, sizes),
        )

    def draw(self) -> Draw:
        """Flip all coins and sample all units of an iteration."""
        scenario = self._scenario
        clients = len(scenario.sizes)
        if scenario.noise == CENTRAL:
            total = int(self._ends[-1])
            sampled = self._some_of(total, scenario.p * scenario.q)
            return Draw(
                sampled=sampled,
                owners=np.zeros_like(sampled),
                participants=1,
                available=clients,
                available_size=total,
            )
        joined = self._some_of(clients, scenario.availability * scenario.p)
        sizes = scenario.sizes[joined]
        ends = np.cumsum(sizes)
        # A Poisson sample of the participants' units, laid one after the other.
        positions = self._some_of(int(ends[-1]) if len(ends) else 0, scenario.q)
        owner = np.searchsorted(ends, positions, side="right")
        within = positions - (ends[owner] - sizes[owner])
        owners = joined[owner]
        available, size = self._available(joined)
        return Draw(
            sampled=self._ends[owners] - sizes[owner] + within,
            owners=owners,
            participants=len(joined),
            available=available,
            available_size=size,
        )

    def _available(self, joined: Rows) -> tuple[int, int]:
        """Return how many clients were there, and with how many units in total."""
        scenario = self._scenario
        clients = len(scenario.sizes)
        if scenario.availability == 1:
            return clients, int(self._ends[-1])
        # Of those who did not join, who was there all the same?
        there = scenario.availability * (1 - scenario.p)
        there /= 1 - scenario.availability * scenario.p
        if self._equal:
            idle = int(self._generator.binomial(clients - len(joined), there))
            available = len(joined) + idle
            return available, available * int(scenario.sizes[0])
        others = np.setdiff1d(self._some_of(clients, there), joined, assume_unique=True)
        both = np.concatenate([joined, others])
        return len(both), int(scenario.sizes[both].sum())

    def _some_of(self, count: int, probability: float) -> Rows:
        """Return each of 0, ..., count − 1 with the probability: how many first, then which."""
        chosen = int(self._generator.binomial(count, probability)) if count else 0
        return np.asarray(
            self._generator.choice(count, chosen, replace=False) if chosen else [], dtype=np.int64
        )

    def _noise_std(self, draw: Draw) -> float:
        scenario = self._scenario
        noises = 1.0
        if scenario.noise != CENTRAL:
            noises = scenario.noise.noises_in_sum(
                asked=draw.available,
                took_part=draw.participants,
                honest=scenario.threshold - scenario.colluders,
            )
        if noises == 0 or scenario.noise_multiplier == 0:
            return 0.0  # the clip norm may be infinite
        return scenario.noise_multiplier * scenario.clip_norm * float(np.sqrt(noises))
