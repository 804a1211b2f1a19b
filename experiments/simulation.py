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
        participants: Clients that took part, over all iterations.
        samples: Samples that were used, over all iterations.
    """

    accuracy: dict[int, float] = field(default_factory=dict)
    iterations: int = 0
    seconds: float = 0.0
    participants: int = 0
    samples: int = 0


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
    """
    curve = _restore(simulator, folder)
    saved_at = time.monotonic()
    while curve.iterations < iterations and not stopped():
        started = time.monotonic()
        draw = simulator.step()
        curve.seconds += time.monotonic() - started
        curve.iterations += 1
        curve.participants += draw.participants
        curve.samples += len(draw.rows)
        if curve.iterations % evaluate_every == 0:
            curve.accuracy[curve.iterations] = _accuracy(simulator, model, data)
        if time.monotonic() - saved_at > _SAVE_SECONDS:
            _save(simulator, curve, folder)
            saved_at = time.monotonic()
        progress(curve)
    if curve.iterations and curve.iterations not in curve.accuracy:
        curve.accuracy[curve.iterations] = _accuracy(simulator, model, data)
    _save(simulator, curve, folder)
    return curve


def _accuracy(simulator: Simulator, model: nn.Module, data: Dataset) -> float:
    load_parameters(model, simulator.weights)
    return evaluate(model, data.test_inputs, data.test_targets)


def _save(simulator: Simulator, curve: Curve, folder: Path | None) -> None:
    if folder is not None:
        tensors = {"weights": simulator.weights, "velocity": simulator.velocity}
        metadata = {"curve": json.dumps(dataclasses.asdict(curve))}
        write_atomically(folder / STATE, save_tensors(tensors, metadata=metadata))


def _restore(simulator: Simulator, folder: Path | None) -> Curve:
    path = None if folder is None else folder / STATE
    if path is None or not path.exists():
        return Curve()
    try:
        with safe_open(path, "numpy") as file:
            fields = json.loads(file.metadata()["curve"])
            weights, velocity = file.get_tensor("weights"), file.get_tensor("velocity")
    except (SafetensorError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is damaged: {error}.") from None
    if weights.shape != simulator.weights.shape:
        raise ValueError(f"{path} holds another model; choose another folder.")
    simulator.weights, simulator.velocity = weights, velocity
    fields["accuracy"] = {int(key): value for key, value in fields["accuracy"].items()}
    return Curve(**fields)


def generator_of(seed: int | None) -> np.random.Generator:
    """Return a source of coins and samples: secure, or seeded if asked for."""
    if seed is not None:
        return np.random.Generator(np.random.Philox(seed))
    from randomgen import AESCounter

    return np.random.Generator(AESCounter(key=int.from_bytes(os.urandom(16), "little")))
