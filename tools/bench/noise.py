"""What noise on a lattice costs, against the round of a client that it protects.

The round is what a client does for one: draw a Poisson sample, sum its clipped gradients through
the paper's network, draw noise and add it. Measured in turns with the same sum without a lattice.

Run with ``python -m tools.bench.noise``.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from coinflower.learning import (
    FixedPoint,
    SecureRandom,
    add_noise,
    build_model,
    clipped_gradient_sum,
    fine_cell,
    flatten_parameters,
    load_parameters,
    to_tensor,
)

MOST_SHARE = 0.1
SAMPLES, RATE, CLASSES, CLIP_NORM, STD = 700, 0.1, 62, 1.0, 1.5
_TURNS = 30


def run() -> list[dict[str, Any]]:
    """Measure everything; see ``tools.bench.table`` for what the rows mean."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        whole, lattice, plain = _measure()
    finally:
        torch.set_num_threads(threads)
    share = (lattice - plain) / whole
    return [
        {
            "measure": "noise on a lattice, CPU ms more than a plain sum",
            "value": 1e3 * (lattice - plain),
            "limit": None,
            "met": None,
        },
        {
            "measure": "the same / a client's round, batch of 70",
            "value": share,
            "limit": MOST_SHARE,
            "met": share <= MOST_SHARE,
        },
    ]


def _measure() -> tuple[float, float, float]:
    """Return the CPU seconds of a round, of drawing and adding noise on a lattice, and plainly."""
    generator = np.random.default_rng(1)
    inputs = generator.random((SAMPLES, 1, 28, 28)).astype(np.float32)
    targets = generator.integers(0, CLASSES, SAMPLES)
    model = build_model("paper-cnn", classes=CLASSES)
    weights = flatten_parameters(model).numpy()
    randomness = SecureRandom()
    total = np.zeros_like(weights)

    def play_round() -> None:
        load_parameters(model, weights)
        rows = randomness.sample_indices(SAMPLES, RATE)
        sampled = to_tensor(inputs[rows])
        summed = clipped_gradient_sum(model, sampled, torch.from_numpy(targets[rows]), CLIP_NORM)
        protect(summed.numpy())

    def protect(summed: npt.NDArray[np.float32]) -> None:
        add_noise(FixedPoint.of(summed, fine_cell(CLIP_NORM)), STD, randomness)

    def protect_plainly() -> None:
        (total + randomness.normal(total.size, STD)).astype(np.float32)

    tasks = (play_round, lambda: protect(total), protect_plainly)
    for task in tasks:
        task()
    times = [[_cpu_seconds(task) for task in tasks] for _ in range(_TURNS)]
    whole, lattice, plain = (statistics.median(column) for column in zip(*times, strict=True))
    return whole, lattice, plain


def _cpu_seconds(task: Callable[[], object]) -> float:
    started = time.process_time()
    task()
    return time.process_time() - started


if __name__ == "__main__":
    for row in run():
        print(row)
