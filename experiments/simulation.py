"""A simulated training from beginning to end: progress, checkpoints, and its curve."""

from __future__ import annotations

import dataclasses
import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save as save_tensors
from torch import nn

from experiments.simulator import Simulator
from learning import Dataset, evaluate, load_parameters
from server.checkpoint import write_atomically

STATE = "simulation.safetensors"
_SAVE_SECONDS = 20.0


@dataclass(kw_only=True)
class Curve:
    """Test accuracy by iteration, and how it came about.

    Attributes:
        accuracy: Test accuracy by iteration.
        iterations: How many were played.
        seconds: Time that the iterations took, evaluation left out.
        draws: How many clients took part in each iteration, and with how many samples.
    """

    accuracy: dict[int, float] = field(default_factory=dict)
    iterations: int = 0
    seconds: float = 0.0
    draws: list[tuple[int, int]] = field(default_factory=list)

    @property
    def samples(self) -> int:
        """Samples that were used, over all iterations."""
        return sum(samples for _, samples in self.draws)


def simulate(
    simulator: Simulator,
    model: nn.Module,
    data: Dataset,
    *,
    iterations: int,
    evaluate_every: int,
    folder: Path | None = None,
    progress: Callable[[Curve], None] = lambda _: None,
    stopped: Callable[[], bool] = lambda: False,
    note: Callable[[str], None] = lambda _: None,
) -> Curve:
    """Play the iterations that are missing and return the curve.

    Args:
        simulator: The run.
        model: Takes the weights when accuracy is measured.
        data: Whose test part measures it.
        iterations: Where to stop.
        evaluate_every: Iterations between two measurements.
        folder: Where the state is kept; a state in it is gone on with.
        progress: Called after every iteration.
        stopped: Asked before every iteration; what was reached is kept.
        note: Told when the state cannot be kept; the run goes on, and tries again later.
    """
    curve = _restore(simulator, folder)
    saved_at = time.monotonic()
    while curve.iterations < iterations and not stopped():
        started = time.monotonic()
        draw = simulator.step()
        curve.seconds += time.monotonic() - started
        curve.iterations += 1
        curve.draws.append((draw.participants, len(draw.rows)))
        if curve.iterations % evaluate_every == 0:
            curve.accuracy[curve.iterations] = _accuracy(simulator, model, data)
        if time.monotonic() - saved_at > _SAVE_SECONDS:
            _save(simulator, curve, folder, note)
            saved_at = time.monotonic()
        progress(curve)
    if curve.iterations and curve.iterations not in curve.accuracy:
        curve.accuracy[curve.iterations] = _accuracy(simulator, model, data)
    _save(simulator, curve, folder, note)
    return curve


def _accuracy(simulator: Simulator, model: nn.Module, data: Dataset) -> float:
    load_parameters(model, simulator.weights)
    return evaluate(model, data.test_inputs, data.test_targets)


def _save(
    simulator: Simulator, curve: Curve, folder: Path | None, note: Callable[[str], None]
) -> None:
    if folder is None:
        return
    tensors = {"weights": simulator.weights, "velocity": simulator.velocity}
    metadata = {"curve": json.dumps(dataclasses.asdict(curve))}
    try:
        write_atomically(folder / STATE, save_tensors(tensors, metadata=metadata))
    except OSError as error:
        note(
            f"iteration {curve.iterations} could not be kept in {folder} ({error.strerror}); what "
            "was kept before is still there. Make room."
        )


def _restore(simulator: Simulator, folder: Path | None) -> Curve:
    path = None if folder is None else folder / STATE
    if path is None or not path.exists():
        return Curve()
    curve = read_curve(path.parent)
    with safe_open(path, "numpy") as file:
        weights, velocity = file.get_tensor("weights"), file.get_tensor("velocity")
    if weights.shape != simulator.weights.shape:
        raise ValueError(f"{path} holds another model; choose another folder.")
    simulator.weights, simulator.velocity = weights, velocity
    return curve


def read_curve(folder: Path) -> Curve:
    """Return the curve of a simulation that was kept in a folder.

    Raises:
        ValueError: Its state is damaged.
    """
    path = folder / STATE
    try:
        with safe_open(path, "numpy") as file:
            fields = json.loads(file.metadata()["curve"])
            file.get_tensor("weights"), file.get_tensor("velocity")
        fields["accuracy"] = {int(key): value for key, value in fields["accuracy"].items()}
        fields["draws"] = [(participants, samples) for participants, samples in fields["draws"]]
        return Curve(**fields)
    except (SafetensorError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is damaged: {error}.") from None


def generator_of(seed: int | None) -> np.random.Generator:
    """Return a source of coins and samples: secure, or seeded if asked for."""
    if seed is not None:
        return np.random.Generator(np.random.Philox(seed))
    from randomgen import AESCounter

    return np.random.Generator(AESCounter(key=int.from_bytes(os.urandom(16), "little")))
