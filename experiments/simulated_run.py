"""From a request on the command line to a simulated training and its figures."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from accounting import validation
from accounting.schemes import SCHEMES, scheme_class
from experiments.memory import keep_freed_memory
from experiments.scenarios import (
    SETTINGS,
    Federation,
    Setting,
    analysis_of,
    calibrated_sigma,
    federate,
    load_training_data,
    upper_epsilon,
)
from experiments.simulation import STATE, Curve, generator_of, simulate
from experiments.simulator import NoiseModel, Scenario, Simulator
from learning import (
    Dataset,
    Randomness,
    SecureRandom,
    SeededRandom,
    evaluate,
    load_parameters,
    model_for,
)
from server.checkpoint import write_atomically

NO_SCHEME = "none"


@dataclass(frozen=True, kw_only=True)
class Request:
    """What is asked for.

    Attributes:
        scenario: many-small or few-large.
        data: Name or path of the data, or ``synthetic``.
        iterations: Number of iterations.
        scheme: The analysis that chooses the noise, ``none`` for no noise; by default the one that
            holds for ``noise``.
        total_epsilon: ε for all iterations; None grants each the paper's (0.015, 1e-6).
        delta: δ of the total ε.
        sigma: Noise multiplier, instead of a calibrated one.
        noise: Who adds noise.
        partition: How the data is shared out: equal, writer or dirichlet.
        clients: Number of clients; as many as the data makes by default.
        p: Participation probability, instead of a fitted one.
        q: Sampling rate, instead of the paper's.
        availability: Probability that a client is there.
        clip_norm: Clip norm.
        learning_rate: Step size; the paper's by default.
        momentum: Momentum.
        model: Model.
        evaluate_every: Iterations between two evaluations.
        split: Split of EMNIST.
        download: Whether missing data may be fetched.
        out: Folder for state and results.
        resume: Whether to go on with the state in ``out``.
        seed: Seeds everything; insecure.
    """

    scenario: str
    data: str
    iterations: int
    scheme: str | None = None
    total_epsilon: float | None = None
    delta: float = 1e-5
    sigma: float | None = None
    noise: str = NoiseModel.TRUSTED
    partition: str = "equal"
    clients: int | None = None
    p: float | None = None
    q: float | None = None
    availability: float = 1.0
    clip_norm: float = 1.0
    learning_rate: float | None = None
    momentum: float = 0.9
    model: str = "paper-cnn"
    evaluate_every: int = 50
    split: str | None = None
    download: bool = False
    out: Path | None = None
    resume: bool = False
    seed: int | None = None

    def __post_init__(self) -> None:
        """Check what can be checked before any data is read."""
        require_one_of("scenario", self.scenario, list(SETTINGS))
        require_one_of("noise", self.noise, list(NoiseModel))
        if self.scheme is not None:
            require_one_of("scheme", self.scheme, [*SCHEMES, NO_SCHEME])
        if self.sigma is not None:
            validation.require_positive("sigma", self.sigma)
        validation.require_count("iterations", self.iterations, least=1)
        validation.require_count("evaluate-every", self.evaluate_every, least=1)
        if self.out is not None and (self.out / STATE).exists() and not self.resume:
            raise ValueError(
                f"{self.out} holds a simulation; --resume it or choose another folder."
            )

    @property
    def chosen_scheme(self) -> str:
        """Name of the analysis that chooses the noise."""
        if self.scheme is not None:
            return self.scheme
        analysis = analysis_of(NoiseModel(self.noise))
        return NO_SCHEME if analysis is None else analysis.name


def require_one_of(field: str, value: str, choices: list[str]) -> None:
    """Refuse a value that is none of the choices."""
    if value not in choices:
        raise ValueError(f"{field} = {value!r} is unknown; choose one of {', '.join(choices)}.")


def run_request(
    request: Request,
    *,
    data: Dataset | None = None,
    tuning: Dataset | None = None,
    note: Callable[[str], None] = lambda _: None,
    progress: Callable[[Curve], None] = lambda _: None,
    stopped: Callable[[], bool] = lambda: False,
) -> dict[str, Any]:
    """Simulate and return the figures, which are written to ``request.out`` as well.

    Args:
        request: What is asked for.
        data: The data, if it is loaded already.
        tuning: Data whose test part measures the final model once more, as ``tuning_accuracy``.
        note: Told what a reader of the figures must know.
        progress: Called after every iteration.
        stopped: Asked before every iteration.
    """
    paper, noise = SETTINGS[request.scenario], NoiseModel(request.noise)
    if data is None:
        data = load_training_data(
            request.data, paper, split=request.split, download=request.download
        )
    federation = federate(
        paper,
        data,
        how=request.partition,
        clients=request.clients,
        noise=noise,
        p=request.p,
        q=request.q,
        seed=request.seed or 0,
    )
    sigma = _sigma(request, federation)
    rate = request.learning_rate
    if rate is None:
        rate = paper.learning_rate_of(request.chosen_scheme)
    _tell(request, paper, federation, note)
    torch.set_num_threads(1)
    keep_freed_memory()
    model = model_for(request.model, data)
    seed = request.seed
    randomness: Randomness = SecureRandom() if seed is None else SeededRandom(seed)
    simulator = Simulator(
        Scenario(
            sizes=federation.sizes,
            p=federation.p,
            q=federation.q,
            clip_norm=request.clip_norm,
            noise_multiplier=sigma,
            noise_model=noise,
            learning_rate=rate,
            momentum=request.momentum,
            availability=request.availability,
        ),
        data.train_inputs,
        data.train_targets,
        model,
        generator_of(seed),
        randomness,
        rows=federation.rows,
    )
    if request.out is not None:
        request.out.mkdir(parents=True, exist_ok=True)
    curve = simulate(
        simulator,
        model,
        data,
        iterations=request.iterations,
        evaluate_every=request.evaluate_every,
        folder=request.out,
        progress=progress,
        stopped=stopped,
        note=note,
    )
    results = _figures(request, federation, sigma, rate, curve)
    if tuning is not None:
        load_parameters(model, simulator.weights)
        results["tuning_accuracy"] = evaluate(model, tuning.test_inputs, tuning.test_targets)
    if request.out is not None:
        _write_results(request.out / "results.json", results, note)
    return results


def _sigma(request: Request, federation: Federation) -> float:
    if request.chosen_scheme == NO_SCHEME:
        return 0.0
    if request.sigma is not None:
        return request.sigma
    return calibrated_sigma(
        federation,
        scheme_class(request.chosen_scheme),
        epsilon=request.total_epsilon,
        delta=request.delta,
        iterations=request.iterations,
    )


def _tell(
    request: Request, paper: Setting, federation: Federation, note: Callable[[str], None]
) -> None:
    clients, p, q = len(federation.sizes), federation.p, federation.q
    if (clients, p, q) != (paper.clients, paper.p, paper.q):
        note(
            f"{paper.name} fitted to the data: {clients:,} clients instead of {paper.clients:,}, "
            f"p = {p:.4g} instead of {paper.p:g}, q = {q:.4g} (the paper's is {paper.q:g}), mean "
            f"batch {federation.mean_batch:.3g}."
        )
    if request.availability * federation.mean_batch < 1:
        note(
            f"an iteration has {request.availability * federation.mean_batch:.2g} samples on "
            "average: most iterations are pure noise. Raise p or q, or use more data."
        )
    if request.seed is not None:
        note("INSECURE: coins, samples and noise are seeded.")
    scheme = request.chosen_scheme
    if request.sigma is None and scheme in SCHEMES and not SCHEMES[scheme].is_upper_bound:
        note(f"scheme {scheme!r} is not an upper bound; epsilon is the one that holds.")


def _figures(
    request: Request, federation: Federation, sigma: float, rate: float, curve: Curve
) -> dict[str, Any]:
    noise = NoiseModel(request.noise)
    analysis = analysis_of(noise)
    return {
        "scenario": request.scenario,
        "accuracy": curve.accuracy.get(curve.iterations),
        "epsilon": upper_epsilon(federation, noise, sigma, curve.iterations, request.delta),
        "delta": request.delta,
        "analysis": None if analysis is None or sigma == 0 else analysis.name,
        "sigma": sigma,
        "scheme": request.chosen_scheme,
        "iterations": curve.iterations,
        "steps_per_second": curve.iterations / curve.seconds if curve.seconds else None,
        "clients": len(federation.sizes),
        "p": federation.p,
        "q": federation.q,
        "d": federation.largest,
        "smallest_d": int(federation.sizes.min()),
        "mean_batch": curve.samples / max(1, curve.iterations),
        "learning_rate": rate,
        "noise": request.noise,
        "data": request.data,
        "insecure": request.seed is not None,
        "curve": curve.accuracy,
    }


def _write_results(path: Path, results: dict[str, Any], note: Callable[[str], None]) -> None:
    try:
        write_atomically(path, (json.dumps(results, indent=1) + "\n").encode())
    except OSError as error:
        note(f"{path} could not be written ({error.strerror}); the figures are printed only.")
