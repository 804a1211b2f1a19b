"""What a simulation depends on, so that nobody resumes it with anything else."""

from __future__ import annotations

import hashlib
import math
from typing import Any

import numpy as np
import numpy.typing as npt

from coinflower.accounting.masked import chosen_shares
from coinflower.experiments.simulator.request import Request
from coinflower.experiments.simulator.scenarios import Federation
from coinflower.experiments.simulator.simulation import Terms
from coinflower.learning import (
    Dataset,
    FineTuning,
    Records,
    Update,
    hash_of_weights,
    usual_model_for,
    usual_task,
)
from coinflower.protocol.modes import Mode
from coinflower.protocol.terms import CLASSIFICATION
from coinflower.protocol.unit import Unit

_ROWS_AT_ONCE = 10_000


def shares_of(request: Request, federation: Federation) -> dict[str, int]:
    """Return threshold and colluders of masked noise; nothing for other noise."""
    if request.noise != Mode.MASKED:
        return {}
    clients = len(federation.sizes)
    threshold, colluders = chosen_shares(clients, request.threshold, request.colluders)
    return {"threshold": threshold, "colluders": colluders}


def terms_of(
    request: Request, data: Dataset, federation: Federation, sigma: float, update: Update
) -> Terms:
    """Return all that cost and training depend on, so that nobody resumes with other terms."""
    records = len(data.train)
    shares = (federation.sizes, federation.rows, federation.rows_per_person)
    return {
        "scenario": request.scenario,
        "data": f"{records:,} records ({_digest(*_values(data.train))})",
        "partition": request.partition,
        "unit": None if request.unit is Unit.RECORD else str(request.unit),
        "clients": len(federation.sizes),
        "seed": request.seed,
        "shares": _digest(*(one for one in shares if one is not None)),
        "noise": str(request.noise),
        "scheme": request.chosen_scheme,
        "q": federation.q,
        "p": federation.p,
        "availability": request.availability,
        "sigma": sigma,
        "delta": request.delta,
        **shares_of(request, federation),
        "clip norm": request.clip_norm,
        **({"clipping": request.clipping} if request.clipping != "flat" else {}),
        "cap": request.cap if math.isfinite(request.cap) else None,
        **_stated(update, request.iterations),
        "model": model_name(request, data),
        **({"model options": request.model_options} if request.model_options else {}),
        **_tuning(request.tuning),
        **_learned(request, data),
    }


def task_name(request: Request, data: Dataset) -> str:
    """Return the task of a request on its data."""
    return request.task or usual_task(data)


def model_name(request: Request, data: Dataset) -> str:
    """Return the model of a request on its data."""
    return request.model or usual_model_for(data.train)


def _values(records: Records) -> list[npt.NDArray[Any]]:
    """Return all arrays that a training depends on."""
    values = [*records.arrays, records.targets]
    return values if records.weights is None else [*values, records.weights]


def _tuning(tuning: FineTuning) -> Terms:
    """Return what is trained, in terms that say nothing where all of a model is."""
    weights = tuning.pretrained
    stated = {
        "pretrained": None if weights is None else hash_of_weights(weights),
        "trained parts": list(tuning.trained_parts),
        "lora rank": tuning.lora_rank,
    }
    return {name: value for name, value in stated.items() if value}


def _learned(request: Request, data: Dataset) -> Terms:
    """Return what is learned, if it is not what simulations of earlier versions learned."""
    stated: Terms = {}
    if task_name(request, data) != CLASSIFICATION:
        stated["task"] = task_name(request, data)
    if request.task_options:
        stated["task options"] = request.task_options
    return stated


def _stated(update: Update, iterations: int) -> Terms:
    """Return what the training depends on, which a schedule makes the number of iterations."""
    usual = Update().to_fields()
    stated = {
        name.replace("_", " "): value
        for name, value in update.to_fields().items()
        if usual.get(name) != value
    }
    return stated | ({"iterations": iterations} if update.schedule != "constant" else {})


def _digest(*arrays: npt.NDArray[Any]) -> str:
    found = hashlib.sha256()
    for array in arrays:
        for start in range(0, len(array), _ROWS_AT_ONCE):  # few of a mapped file are in memory
            found.update(np.ascontiguousarray(array[start : start + _ROWS_AT_ONCE]).data)
    return found.hexdigest()[:12]
