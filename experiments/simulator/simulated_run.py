"""From a request on the command line to a simulated training and its figures."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from coinflower.accounting.analyses.names import scheme_class
from coinflower.accounting.errors import UserError
from coinflower.experiments.simulator.request import NO_SCHEME, Request
from coinflower.experiments.simulator.scenarios import (
    SETTINGS,
    Federation,
    analysis_of,
    calibrated_sigma,
    federate,
    load_training_data,
    upper_epsilon,
)
from coinflower.experiments.simulator.simulated_notes import (
    chosen_by_a_bound,
    excess_over,
    notes_on,
)
from coinflower.experiments.simulator.simulated_terms import (
    model_name,
    shares_of,
    task_name,
    terms_of,
)
from coinflower.experiments.simulator.simulation import (
    STATE,
    TOTAL_EPSILON,
    Curve,
    State,
    Terms,
    read_state,
    simulate,
    sources_of,
)
from coinflower.experiments.simulator.simulator import CENTRAL, Scenario, Simulator, parse_noise
from coinflower.learning import (
    Dataset,
    Update,
    device_of,
    evaluate,
    flatten_parameters,
    load_parameters,
    model_for,
    task_for,
)
from coinflower.learning.freed_memory import keep_freed_memory
from coinflower.protocol.modes import Mode
from coinflower.protocol.planning.choices import learning_rates, noise_share
from coinflower.server.checkpoint import write_atomically


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
    paper, noise = SETTINGS[request.scenario], parse_noise(request.noise)
    if data is None:
        data = load_training_data(
            request.data,
            paper,
            schema=request.schema,
            split=request.split,
            download=request.download,
        )
    begun = _begun(request)
    federation = federation_of(request, data)
    sigma = sigma_of(request, federation) if begun is None else _kept_sigma(request, begun)
    torch.set_num_threads(1)
    keep_freed_memory()
    task = task_for(data, task_name(request, data), request.task_options)
    model = model_for(
        model_name(request, data),
        data,
        task,
        options=request.model_options,
        tuning=request.tuning,
        device=device_of(request.device),
    )
    update = _update(request, federation, sigma, flatten_parameters(model).numel(), begun)
    terms: Terms = {TOTAL_EPSILON: request.total_epsilon}
    if request.out is not None:
        terms |= terms_of(request, data, federation, sigma, update)
    if begun is not None:
        begun.require_same(terms)
        if request.total_epsilon is None:
            terms[TOTAL_EPSILON] = begun.terms[TOTAL_EPSILON]
    for line in notes_on(request, federation):
        note(line)
    played = 0 if begun is None else begun.curve.iterations
    if begun is not None or request.sigma is not None:
        last, total = max(played, request.iterations), terms[TOTAL_EPSILON]
        excess = excess_over(request, federation, sigma, last, total)
        if excess is not None and (request.sigma is not None or chosen_by_a_bound(request)):
            raise UserError(
                f"{excess}; play fewer, choose more noise, or state a larger total epsilon."
            )
        if excess is not None:  # chosen by an analysis that is known to understate
            note(f"{excess}.")
    generator, randomness = sources_of(request.seed, played)
    simulator = Simulator(
        Scenario(
            sizes=federation.sizes,
            p=federation.p,
            q=federation.q,
            clip_norm=request.clip_norm,
            clipping=request.clipping,
            noise_multiplier=sigma,
            noise=noise,
            update=update,
            iterations=request.iterations,
            availability=request.availability,
            cap=request.cap,
            **shares_of(request, federation),
        ),
        data.train,
        model,
        generator,
        randomness,
        rows=federation.rows,
        rows_per_person=federation.rows_per_person,
        task=task,
        threads=request.threads or os.cpu_count() or 1,
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
        begun=begun,
        terms=terms,
        progress=progress,
        stopped=stopped,
        note=note,
    )
    results = _figures(request, federation, sigma, update, curve)
    results["task"] = task_name(request, data)
    if tuning is not None:
        load_parameters(model, simulator.optimizer.kept)
        results["tuning_accuracy"] = evaluate(model, tuning.test.arrays, tuning.test.targets)
    if request.out is not None:
        _write_results(request.out / "results.json", results, note)
    return results


def _begun(request: Request) -> State | None:
    """Return the state to continue from, if there is one."""
    if request.out is None or not (request.out / STATE).exists():
        return None
    return read_state(request.out)


def federation_of(request: Request, data: Dataset) -> Federation:
    """Return the clients of a request on its data."""
    setting = SETTINGS[request.scenario]
    return federate(
        setting if request.d is None else replace(setting, d=request.d),
        data,
        how=request.partition,
        clients=request.clients,
        noise=parse_noise(request.noise),
        p=request.p,
        q=request.q,
        cap=request.cap,
        seed=request.seed or 0,
        unit=request.unit,
    )


def sigma_of(request: Request, federation: Federation) -> float:
    """Return the noise of a request that begins: none, as given, or calibrated."""
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


def _update(
    request: Request, federation: Federation, sigma: float, parameters: int, begun: State | None
) -> Update:
    """Return how the model steps, with the step size that it began with or a chosen one."""
    update = request.update
    if update.learning_rate is not None or update.optimizer != "sgd":
        return update
    rate = None if begun is None else begun.terms.get("learning rate")
    if rate is None:
        rate = _learning_rate(request, federation, sigma, parameters)
    return replace(update, learning_rate=rate)


def _learning_rate(
    request: Request, federation: Federation, sigma: float, parameters: int
) -> float:
    """Return SGD's step size where nobody says: the paper's, or a plan's if ε is for all of it."""
    if request.total_epsilon is None or sigma == 0:
        return SETTINGS[request.scenario].learning_rate_of(request.chosen_scheme)
    mode = parse_noise(request.noise)
    shares = shares_of(request, federation)
    noise = noise_share(
        Mode.TRUSTED if mode == CENTRAL else mode,
        clients=len(federation.sizes),
        p=federation.p,
        sigma=sigma,
        batch=federation.mean_batch,
        honest=shares.get("threshold", 1) - shares.get("colluders", 0),
    )
    _, first, _ = learning_rates(noise, parameters, clip_norm=request.clip_norm)
    return first


def _kept_sigma(request: Request, begun: State) -> float:
    """Return the noise of a request that resumes: past iterations cannot be noised again."""
    return float(begun.terms.get("sigma", 0.0) if request.sigma is None else request.sigma)


def _figures(
    request: Request, federation: Federation, sigma: float, update: Update, curve: Curve
) -> dict[str, Any]:
    noise = parse_noise(request.noise)
    analysis = analysis_of(noise)
    return {
        "scenario": request.scenario,
        "unit": str(request.unit),
        "accuracy": curve.accuracy.get(curve.iterations),
        "metrics": curve.measured.get(curve.iterations),
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
        "cap": federation.cap if math.isfinite(federation.cap) else None,
        "d": federation.largest,
        "smallest_d": int(federation.sizes.min()),
        "mean_batch": curve.records / max(1, curve.iterations),
        "learning_rate": update.step_size,
        "optimizer": update.optimizer,
        "update": update.describe(),
        "noise": request.noise,
        **shares_of(request, federation),
        "data": request.data,
        "insecure": request.seed is not None,
        "curve": {at: next(iter(found.values()), None) for at, found in curve.measured.items()},
    }


def _write_results(path: Path, results: dict[str, Any], note: Callable[[str], None]) -> None:
    try:
        write_atomically(path, (json.dumps(results, indent=1) + "\n").encode())
    except OSError as error:
        note(f"{path} could not be written ({error.strerror}); the figures are printed only.")
