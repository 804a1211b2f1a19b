"""How fast the simulator is at the batches that good plans need, and on two threads.

CPU time of steps that take turns, one thread each, against bare steps without privacy on as many
records: one on the model as torch makes it, and one in the faster layout of memory that has the
channels last. Threads are compared by the clock, so that row means something on a machine with two
free cores only. The paper's full size is played for a while and extrapolated.

Run with ``python -m tools.bench.large_batches``.
"""

from __future__ import annotations

import math
import time
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from coinflower.experiments.simulator.scenarios import MEAN_BATCH, SETTINGS, synthetic_data
from coinflower.experiments.simulator.simulation import generator_of
from coinflower.experiments.simulator.simulator import Scenario, Simulator
from coinflower.learning import Dataset, SecureRandom, Update, build_model
from coinflower.learning.freed_memory import keep_freed_memory
from coinflower.protocol.modes import Mode
from tools.bench.simulator import Step, at_least, figure, take_turns

BATCHES = (1000, 6000)
CLIENTS = 2000
CAP = 3.0
LEAST_SHARE_OF_A_BARE_STEP = 0.8
LEAST_SPEEDUP_ON_TWO_THREADS = 1.7
PAPER_ITERATIONS = 10_000
MOST_MINUTES = 10.0
SETTING = SETTINGS["many-small"]
RATE = 0.1
MOMENTUM = 0.9

_WARM_UP = 2


def run(*, repetitions: int = 30) -> list[dict[str, Any]]:
    """Measure everything; see ``tools.bench.table`` for what the rows mean.

    Args:
        repetitions: Turns of every step at the smaller batch; a third of it at the larger one.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    keep_freed_memory()
    try:
        data = synthetic_data(CLIENTS * SETTING.d, classes=10)
        return [
            *_ratios(data, BATCHES[0], repetitions),
            *_ratios(data, BATCHES[1], repetitions // 3),
            _threads(data, repetitions // 3),
            _full_size(10 * repetitions),
        ]
    finally:
        torch.set_num_threads(threads)


def _ratios(data: Dataset, batch: int, repetitions: int) -> list[dict[str, Any]]:
    steps: dict[str, Step] = {
        "simulator": _simulator(data, batch).step,
        "capped": _simulator(data, batch, cap=CAP).step,
        "bare": _bare(data, batch, torch.contiguous_format),
        "channels last": _bare(data, batch, torch.channels_last),
    }
    seconds = take_turns(steps, repetitions, warm_up=_WARM_UP)
    ours = seconds["simulator"]
    name = "simulator's steps per second / those of a bare step"
    return [
        figure(f"simulator, batch of {batch:,}, steps per CPU second", 1 / ours),
        at_least(
            f"{name} without privacy, batch of {batch:,}",
            seconds["bare"] / ours,
            LEAST_SHARE_OF_A_BARE_STEP,
        ),
        figure(f"{name} with channels last, batch of {batch:,}", seconds["channels last"] / ours),
        figure(f"capped steps over uncapped, batch of {batch:,}", ours / seconds["capped"]),
    ]


def _threads(data: Dataset, repetitions: int) -> dict[str, Any]:
    batch = BATCHES[-1]
    steps: dict[str, Step] = {
        str(count): _simulator(data, batch, threads=count).step for count in (1, 2)
    }
    seconds = take_turns(steps, repetitions, warm_up=_WARM_UP, clock=time.perf_counter)
    return at_least(
        f"simulator's steps per second on two threads / on one, batch of {batch:,}",
        seconds["1"] / seconds["2"],
        LEAST_SPEEDUP_ON_TWO_THREADS,
    )


def _full_size(repetitions: int) -> dict[str, Any]:
    """Return how long the paper's full size takes on one thread, from a part of it."""
    data = synthetic_data(SETTING.clients * SETTING.d, classes=62)
    step = _simulator(data, MEAN_BATCH, clients=SETTING.clients).step
    minutes = take_turns({"step": step}, repetitions)["step"] * PAPER_ITERATIONS / 60
    size = f"{SETTING.clients:,} clients, {PAPER_ITERATIONS:,} iterations"
    return {
        "measure": f"{size}, CPU minutes, from {repetitions} of them",
        "value": minutes,
        "limit": MOST_MINUTES,
        "met": minutes <= MOST_MINUTES,
    }


def _simulator(
    data: Dataset, batch: float, *, clients: int = CLIENTS, cap: float = math.inf, threads: int = 1
) -> Simulator:
    rows = clients * SETTING.d
    p = min(0.5, 10 * batch / rows)
    return Simulator(
        Scenario(
            sizes=np.full(clients, SETTING.d),
            p=p,
            q=batch / (p * rows),
            clip_norm=1.0,
            noise_multiplier=1.0,
            noise=Mode.TRUSTED,
            cap=cap,
            update=Update(learning_rate=RATE, momentum=MOMENTUM),
        ),
        data.train,
        build_model("paper-cnn", classes=data.classes),
        generator_of(None),
        SecureRandom(),
        threads=threads,
    )


def _bare(data: Dataset, batch: int, layout: torch.memory_format) -> Step:
    """Return a step of plain SGD on as many random rows, in a layout of images and kernels."""
    model = build_model("paper-cnn", classes=data.classes)
    model = model.to(memory_format=layout)  # type: ignore[call-overload]
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=MOMENTUM)
    generator = np.random.default_rng(0)

    def step() -> None:
        (images,), classes = data.train.batch(generator.integers(0, len(data.train), batch))
        optimizer.zero_grad()
        logits = model(images.contiguous(memory_format=layout))
        functional.cross_entropy(logits, classes).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return step


if __name__ == "__main__":
    for row in run():
        print(row)
