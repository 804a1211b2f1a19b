"""How fast the simulator is: against Opacus, a bare step, more clients, a cap, and Flower's Ray.

CPU time on one thread at the paper's mean batch of 70 and on its network; what is compared takes
turns. Opacus' standard loop (``PrivacyEngine``, its Poisson loader and hooks) gets the smaller data
set, on which its loader is fastest.

Run with ``python -m tools.bench.simulator``.
"""

from __future__ import annotations

import math
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from coinflower.experiments.simulator.scenarios import MEAN_BATCH, SETTINGS, synthetic_data
from coinflower.experiments.simulator.simulation import generator_of
from coinflower.experiments.simulator.simulator import Scenario, Simulator
from coinflower.learning import Dataset, SecureRandom, Update, build_model, to_tensor
from coinflower.learning.freed_memory import keep_freed_memory
from coinflower.protocol.modes import Mode
from tools.compare_simulators import measure, watch

LEAST_SPEEDUP_OVER_OPACUS = 4.0
LEAST_SHARE_OF_A_BARE_STEP = 0.8
LEAST_SHARE_AT_SCALE = 0.9
LEAST_SHARE_WITH_CAP = 0.7
CAP = 2.0
FEW_CLIENTS = 232
RAY_CLIENTS = 1000
MOST_MEMORY_MB = 2000.0
SETTING = SETTINGS["many-small"]
CLIP_NORM = 1.0
SIGMA = 1.0
RATE = 0.002
MOMENTUM = 0.9
# Torch compiles a convolution anew for every batch size that it has not seen.
_WARM_UP = 100

Step = Callable[[], object]


def run(*, repetitions: int = 150) -> list[dict[str, Any]]:
    """Measure everything; see ``tools.bench.table`` for what the rows mean.

    Args:
        repetitions: Turns of every step that is compared.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    keep_freed_memory()
    try:
        rows = _ratios(repetitions)
    finally:
        torch.set_num_threads(threads)
    memory = _memory()
    simulator, ray = measure(RAY_CLIENTS)
    return [
        *rows,
        {
            "measure": f"simulator, {SETTING.clients} clients, peak memory, MB",
            "value": memory,
            "limit": MOST_MEMORY_MB,
            "met": memory <= MOST_MEMORY_MB,
        },
        figure(f"Ray at {RAY_CLIENTS} clients, rounds per second", 1 / ray.seconds),
        figure(
            f"simulator at {RAY_CLIENTS} clients, rounds per second / Ray's",
            ray.seconds / simulator.seconds,
        ),
    ]


def _ratios(repetitions: int) -> list[dict[str, Any]]:
    data = synthetic_data(SETTING.clients * SETTING.d, classes=62)
    few = slice(FEW_CLIENTS * SETTING.d)
    steps = {
        "few": _simulator(data, FEW_CLIENTS).step,
        "many": _simulator(data, SETTING.clients).step,
        "capped": _simulator(data, SETTING.clients, cap=CAP).step,
        "bare": _bare(data),
        "opacus": _opacus(data.train.inputs[few], data.train.targets[few]),
    }
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="opacus")
        warnings.filterwarnings("ignore", message="Full backward hook is firing")
        seconds = take_turns(steps, repetitions)
    batch = f"batch of {MEAN_BATCH:g}"
    return [
        figure(
            f"simulator, {SETTING.clients} clients, {batch}, steps per CPU second",
            1 / seconds["many"],
        ),
        at_least(
            f"simulator's steps per second / those of Opacus' loop, {batch}",
            seconds["opacus"] / seconds["many"],
            LEAST_SPEEDUP_OVER_OPACUS,
        ),
        at_least(
            f"simulator's steps per second / those of a bare step without privacy, {batch}",
            seconds["bare"] / seconds["many"],
            LEAST_SHARE_OF_A_BARE_STEP,
        ),
        at_least(
            f"simulator's steps per second, {SETTING.clients} clients / {FEW_CLIENTS}, {batch}",
            seconds["few"] / seconds["many"],
            LEAST_SHARE_AT_SCALE,
        ),
        at_least(
            f"capped steps per second over uncapped, {SETTING.clients} clients, {batch}",
            seconds["many"] / seconds["capped"],
            LEAST_SHARE_WITH_CAP,
        ),
    ]


def _memory() -> float:
    with tempfile.TemporaryDirectory() as name:
        command = ["simulate", SETTING.name, "--data", "synthetic", "--iterations", "50", "--json"]
        return watch([*command, "--out", f"{name}/run"], Path(name) / "output")[1]


def take_turns(
    steps: dict[str, Step],
    repetitions: int,
    *,
    warm_up: int = _WARM_UP,
    clock: Callable[[], float] = time.process_time,
) -> dict[str, float]:
    """Return the median CPU seconds of each step; they take turns on a machine that may be busy."""
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for turn in range(warm_up + repetitions):
        for name, step in steps.items():
            started = clock()
            step()
            if turn >= warm_up:
                seconds[name].append(clock() - started)
    return {name: statistics.median(values) for name, values in seconds.items()}


def figure(measure: str, value: float) -> dict[str, Any]:
    """Return a row that has nothing to meet."""
    return {"measure": measure, "value": value, "limit": None, "met": None}


def at_least(measure: str, value: float, limit: float) -> dict[str, Any]:
    """Return a row whose value may not be less."""
    measure = f"{measure} (at least)"
    return {"measure": measure, "value": value, "limit": limit, "met": value >= limit}


def _simulator(data: Dataset, clients: int, *, cap: float = math.inf) -> Simulator:
    rows = clients * SETTING.d
    return Simulator(
        Scenario(
            sizes=np.full(clients, SETTING.d),
            p=MEAN_BATCH / (SETTING.q * rows),
            q=SETTING.q,
            clip_norm=CLIP_NORM,
            noise_multiplier=SIGMA,
            noise=Mode.TRUSTED,
            cap=cap,
            update=Update(learning_rate=RATE, momentum=MOMENTUM),
        ),
        data.train.take(slice(rows)),
        build_model("paper-cnn", classes=data.classes),
        generator_of(None),
        SecureRandom(),
    )


def _bare(data: Dataset) -> Step:
    """Return a step of plain SGD on as many random rows."""
    model = build_model("paper-cnn", classes=data.classes)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=MOMENTUM)
    generator = np.random.default_rng(0)

    def step() -> None:
        rows = generator.integers(0, len(data.train.targets), int(MEAN_BATCH))
        optimizer.zero_grad()
        logits = model(to_tensor(data.train.inputs[rows]))
        functional.cross_entropy(logits, torch.from_numpy(data.train.targets[rows])).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return step


def _opacus(inputs: Any, targets: Any) -> Step:
    """Return a step of Opacus' standard loop."""
    from opacus import PrivacyEngine

    model = build_model("paper-cnn", classes=62)
    model, optimizer, loader = PrivacyEngine().make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=RATE, momentum=MOMENTUM),
        data_loader=DataLoader(
            TensorDataset(to_tensor(inputs), torch.from_numpy(targets)),
            batch_size=int(MEAN_BATCH),
        ),
        noise_multiplier=SIGMA,
        max_grad_norm=CLIP_NORM,
        poisson_sampling=True,
    )
    batches = _endless(loader)

    def step() -> None:
        images, classes = next(batches)
        optimizer.zero_grad()
        functional.cross_entropy(model(images), classes).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return step


def _endless(loader: Any) -> Iterator[Any]:
    while True:
        yield from loader


if __name__ == "__main__":
    for row in run():
        print(row)
