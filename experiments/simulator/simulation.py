"""A simulated training from beginning to end: progress, checkpoints, and its curve."""

from __future__ import annotations

import dataclasses
import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from coinflower.accounting.errors import UserError
from coinflower.experiments.simulator.simulator import Simulator
from coinflower.learning import (
    Dataset,
    Metrics,
    Randomness,
    SecureRandom,
    SeededRandom,
    load_parameters,
    measure,
)
from coinflower.server.checkpoint import Checkpoint

STATE = "simulation.safetensors"
_SAVE_SECONDS = 20.0


@dataclass(kw_only=True)
class Curve:
    """Metrics by iteration, and how they came about.

    Attributes:
        measured: Metrics on the test part by iteration, the headline first.
        iterations: How many were played.
        seconds: Time that the iterations took, evaluation left out.
        draws: How many clients took part in each iteration, and with how many units.
    """

    measured: dict[int, Metrics] = field(default_factory=dict)
    iterations: int = 0
    seconds: float = 0.0
    draws: list[tuple[int, int]] = field(default_factory=list)

    @property
    def accuracy(self) -> dict[int, float]:
        """Accuracy by iteration, where the task has one."""
        found = {at: metrics.get("accuracy") for at, metrics in self.measured.items()}
        return {at: value for at, value in found.items() if value is not None}

    @property
    def records(self) -> int:
        """Records or persons that were sampled, over all iterations."""
        return sum(records for _, records in self.draws)


Terms = dict[str, Any]
"""All that a simulation's cost and its training depend on, by name, as JSON has it."""
TOTAL_EPSILON = "total_epsilon"
"""The target that chose the noise: the only term that may change, because the noise stays."""


@dataclass(frozen=True, kw_only=True, eq=False)
class State:
    """A simulation as it was kept.

    Attributes:
        path: The file.
        checkpoint: Weights and optimizer.
        curve: What it came to so far.
        terms: How it began.
    """

    path: Path
    checkpoint: Checkpoint
    curve: Curve
    terms: Terms

    def require_same(self, terms: Terms) -> None:
        """Refuse to continue with other terms: one ε could not state what both cost together.

        Raises:
            ValueError: A term differs.
        """
        for name in {**terms, **self.terms}:
            began, asked = self.terms.get(name), terms.get(name)
            if name != TOTAL_EPSILON and began != asked:
                raise UserError(
                    f"{self.path} began with {_said(name, began)}, but {_said(name, asked)} is "
                    "asked for; resume it as it began, or choose another folder."
                )


def _said(name: str, value: object) -> str:
    return f"no {name}" if value is None else f"{name} = {value}"


def simulate(
    simulator: Simulator,
    model: nn.Module,
    data: Dataset,
    *,
    iterations: int,
    evaluate_every: int,
    folder: Path | None = None,
    begun: State | None = None,
    terms: Terms | None = None,
    progress: Callable[[Curve], None] = lambda _: None,
    stopped: Callable[[], bool] = lambda: False,
    note: Callable[[str], None] = lambda _: None,
) -> Curve:
    """Play the iterations that are missing and return the curve.

    Args:
        simulator: The run.
        model: Takes the weights when it is measured.
        data: Whose test part measures it.
        iterations: Where to stop.
        evaluate_every: Iterations between two measurements.
        folder: Where the state is kept.
        begun: A state to continue from.
        terms: How the run began; kept with its state.
        progress: Called after every iteration.
        stopped: Asked before every iteration; what was reached is kept.
        note: Called if the state cannot be saved; the run continues, and tries again later.
    """
    curve = Curve() if begun is None else _restore(simulator, begun)
    state = None if folder is None else folder / STATE
    saved_at = time.monotonic()
    while curve.iterations < iterations and not stopped():
        started = time.monotonic()
        draw = simulator.step()
        curve.seconds += time.monotonic() - started
        curve.iterations += 1
        curve.draws.append((draw.participants, len(draw.sampled)))
        if curve.iterations % evaluate_every == 0:
            curve.measured[curve.iterations] = _metrics(simulator, model, data)
        if time.monotonic() - saved_at > _SAVE_SECONDS:
            _save(simulator, curve, terms or {}, state, note)
            saved_at = time.monotonic()
        progress(curve)
    if curve.iterations and curve.iterations not in curve.measured:
        curve.measured[curve.iterations] = _metrics(simulator, model, data)
    _save(simulator, curve, terms or {}, state, note)
    return curve


def _metrics(simulator: Simulator, model: nn.Module, data: Dataset) -> Metrics:
    load_parameters(model, simulator.optimizer.kept)
    return measure(model, data.test, simulator.task)


def _save(
    simulator: Simulator,
    curve: Curve,
    terms: Terms,
    path: Path | None,
    note: Callable[[str], None],
) -> None:
    if path is None:
        return
    checkpoint = Checkpoint(
        weights=simulator.optimizer.weights,
        memory=simulator.optimizer.memory,
        round=curve.iterations,
        notes={"curve": json.dumps(dataclasses.asdict(curve)), "terms": json.dumps(terms)},
    )
    try:
        checkpoint.write(path)
    except OSError as error:
        note(
            f"iteration {curve.iterations} could not be kept in {path.parent} ({error.strerror}); "
            "what was kept before is still there. Make room."
        )


def _restore(simulator: Simulator, begun: State) -> Curve:
    kept = begun.checkpoint
    if kept.weights.shape != simulator.optimizer.weights.shape:
        raise UserError(f"{begun.path} holds another model; choose another folder.")
    simulator.resume(kept)
    return begun.curve


def read_state(folder: Path) -> State:
    """Return a simulation that was kept in a folder.

    Raises:
        ValueError: Its state is damaged, or does not say how it began.
    """
    path = folder / STATE
    # Earlier versions kept the number of iterations with the curve only, counted samples, and
    # measured nothing but accuracy.
    checkpoint = Checkpoint.read(
        path, round_in=lambda notes: json.loads(notes["curve"])["iterations"]
    )
    try:
        fields = json.loads(checkpoint.notes["curve"])
        alone = {at: {"accuracy": value} for at, value in fields.pop("accuracy", {}).items()}
        measured = fields.get("measured", alone)
        fields["measured"] = {int(at): metrics for at, metrics in measured.items()}
        fields["draws"] = [(participants, records) for participants, records in fields["draws"]]
        curve = Curve(**fields)
        terms = json.loads(checkpoint.notes.get("terms", "null"))
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"{path} is damaged: {error}.") from None
    if not isinstance(terms, dict):
        raise UserError(
            f"{path} does not say how its simulation began, so nobody can tell what it costs; "
            "choose another folder."
        )
    if "data" in terms:
        terms["data"] = str(terms["data"]).replace(" samples (", " records (")
    return State(path=path, checkpoint=checkpoint, curve=curve, terms=terms)


def sources_of(seed: int | None, start: int) -> tuple[np.random.Generator, Randomness]:
    """Return where coins and samples come from, and where noise: secure, or seeded if asked for.

    Args:
        seed: Seeds both; insecure.
        start: Iterations that were played before. A simulation that continues has streams of its
            own, for coins that were played once must not come again.
    """
    if seed is None:
        return generator_of(None), SecureRandom()
    coins, noise = np.random.SeedSequence([seed, start]).generate_state(2, np.uint64).tolist()
    return generator_of(coins), SeededRandom(noise)


def generator_of(seed: int | None) -> np.random.Generator:
    """Return a source of coins and samples: secure, or seeded if asked for."""
    if seed is not None:
        return np.random.Generator(np.random.Philox(seed))
    from randomgen import AESCounter

    return np.random.Generator(AESCounter(key=int.from_bytes(os.urandom(16), "little")))
