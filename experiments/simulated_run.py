"""From a request on the command line to a simulated training and its figures."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from accounting import validation
from accounting.schemes import SCHEMES
from experiments.scenarios import (
    SETTINGS,
    Setting,
    calibrated_sigma,
    certified_epsilon,
    load_training_data,
)
from experiments.simulation import STATE, Curve, generator_of, simulate
from experiments.simulator import NoiseModel, Scenario, Simulator
from learning import Randomness, SecureRandom, SeededRandom, build_model

NO_SCHEME = "none"


@dataclass(frozen=True, kw_only=True)
class Request:
    """What is asked for.

    Attributes:
        scenario: many-small or few-large.
        data: Name or path of the data, or ``synthetic``.
        iterations: Number of iterations.
        scheme: The analysis that chooses the noise; ``none`` for no noise.
        total_epsilon: ε for all iterations; None grants each the paper's (0.015, 1e-6).
        delta: δ of the total ε.
        sigma: Noise multiplier, instead of a calibrated one.
        noise: Who adds noise.
        availability: Probability that a client is there.
        clip_norm: Clip norm.
        learning_rate: Step size.
        momentum: Momentum.
        model: Model.
        evaluate_every: Iterations between two evaluations.
        out: Folder for state and results.
        resume: Whether to go on with the state in ``out``.
        seed: Seeds everything; insecure.
    """

    scenario: str
    data: str
    iterations: int
    scheme: str
    total_epsilon: float | None
    delta: float
    sigma: float | None
    noise: str
    availability: float
    clip_norm: float
    learning_rate: float
    momentum: float
    model: str
    evaluate_every: int
    out: Path | None
    resume: bool
    seed: int | None

    def __post_init__(self) -> None:
        """Check what can be checked before any data is read."""
        _require_one_of("scenario", self.scenario, list(SETTINGS))
        _require_one_of("scheme", self.scheme, [*SCHEMES, NO_SCHEME])
        _require_one_of("noise", self.noise, list(NoiseModel))
        validation.require_count("iterations", self.iterations, least=1)
        validation.require_count("evaluate-every", self.evaluate_every, least=1)
        if self.out is not None and (self.out / STATE).exists() and not self.resume:
            raise ValueError(
                f"{self.out} holds a simulation; --resume it or choose another folder."
            )


def _require_one_of(field: str, value: str, choices: list[str]) -> None:
    if value not in choices:
        raise ValueError(f"{field} = {value!r} is unknown; choose one of {', '.join(choices)}.")


def run_request(
    request: Request,
    *,
    note: Callable[[str], None],
    progress: Callable[[Curve], None],
    stopped: Callable[[], bool],
) -> dict[str, Any]:
    """Simulate and return the figures, which are written to ``request.out`` as well.

    Args:
        request: What is asked for.
        note: Told what a reader of the figures must know.
        progress: Called after every iteration.
        stopped: Asked before every iteration.
    """
    if request.out is not None:
        request.out.mkdir(parents=True, exist_ok=True)
    paper = SETTINGS[request.scenario]
    data = load_training_data(request.data, paper)
    setting = paper.fitted(len(data.train_targets))
    sigma = request.sigma
    if sigma is None:
        sigma = calibrated_sigma(
            setting,
            request.scheme,
            epsilon=request.total_epsilon,
            delta=request.delta,
            iterations=request.iterations,
        )
    _tell(request, paper, setting, note)
    torch.set_num_threads(1)
    seed = request.seed
    model = build_model(request.model, classes=data.classes)
    randomness: Randomness = SecureRandom() if seed is None else SeededRandom(seed)
    held = np.random.default_rng(seed or 0).permutation(len(data.train_targets))
    simulator = Simulator(
        Scenario(
            sizes=np.full(setting.clients, setting.d),
            p=setting.p,
            q=setting.q,
            clip_norm=request.clip_norm,
            noise_multiplier=sigma,
            noise_model=NoiseModel(request.noise),
            learning_rate=request.learning_rate,
            momentum=request.momentum,
            availability=request.availability,
        ),
        data.train_inputs,
        data.train_targets,
        model,
        generator_of(seed),
        randomness,
        rows=held[: setting.clients * setting.d],
    )
    curve = simulate(
        simulator,
        model,
        data,
        iterations=request.iterations,
        evaluate_every=request.evaluate_every,
        folder=request.out,
        progress=progress,
        stopped=stopped,
    )
    results = _figures(request, setting, sigma, curve)
    if request.out is not None:
        (request.out / "results.json").write_text(json.dumps(results, indent=1) + "\n")
    return results


def _tell(request: Request, paper: Setting, setting: Setting, note: Callable[[str], None]) -> None:
    if setting != paper:
        note(
            f"{paper.name} fitted to the data: {setting.clients:,} clients instead of "
            f"{paper.clients:,}, p = {setting.p:.4g} instead of {paper.p:g}; d, q and the mean "
            "batch are the paper's."
        )
    if request.seed is not None:
        note("INSECURE: coins, samples and noise are seeded.")
    if request.scheme in SCHEMES and not SCHEMES[request.scheme].is_upper_bound:
        note(f"scheme {request.scheme!r} is not an upper bound; epsilon is the certified one.")


def _figures(request: Request, setting: Setting, sigma: float, curve: Curve) -> dict[str, Any]:
    return {
        "scenario": request.scenario,
        "accuracy": curve.accuracy.get(curve.iterations),
        "epsilon": certified_epsilon(setting, sigma, curve.iterations, request.delta),
        "delta": request.delta,
        "sigma": sigma,
        "scheme": request.scheme,
        "iterations": curve.iterations,
        "steps_per_second": curve.iterations / curve.seconds if curve.seconds else None,
        "clients": setting.clients,
        "p": setting.p,
        "q": setting.q,
        "d": setting.d,
        "mean_batch": curve.samples / max(1, curve.iterations),
        "noise": request.noise,
        "data": request.data,
        "insecure": request.seed is not None,
        "curve": curve.accuracy,
    }
