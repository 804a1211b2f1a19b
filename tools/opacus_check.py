"""Train one cell of a comparison by Opacus itself, beside what the simulator came to.

The line of all data in one place adds Opacus' noise to clipped sums that this project computes,
which is several times as fast. This trains the same with Opacus' own engine: its sampler, its
gradients, its clipping and its noise, with the same step sizes and averaging.

Run with ``python -m tools.opacus_check PATH/TO/MNIST [EPSILON [RATE]]``.
"""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import numpy as np
import torch
from opacus import PrivacyEngine
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from coinflower.experiments.comparison.comparisons import COMPARISONS, UPDATE, Comparison
from coinflower.experiments.comparison.lines import LINES, cell_of
from coinflower.experiments.comparison.sources import load_source
from coinflower.experiments.studies.trainings import two_test_parts
from coinflower.learning import (
    build_model,
    evaluate,
    flatten_parameters,
    load_parameters,
    to_tensor,
)
from coinflower.protocol.planning.choices import CLIP_NORM


def train(comparison: Comparison, folder: Path, epsilon: float, rate: float) -> float:
    """Return the accuracy that Opacus reaches on the part of the test records that is reported."""
    data = load_source(comparison, {comparison.source: folder})
    update = dataclasses.replace(UPDATE, learning_rate=rate)
    plain = build_model(
        comparison.model, classes=data.classes, options=comparison.model_options, seed=0
    )
    records = TensorDataset(to_tensor(data.train.inputs), torch.from_numpy(data.train.targets))
    model, optimizer, loader = PrivacyEngine().make_private(
        module=plain,
        optimizer=torch.optim.SGD(plain.parameters(), lr=rate, momentum=update.momentum or 0.0),
        data_loader=DataLoader(records, batch_size=int(comparison.batch)),
        noise_multiplier=cell_of(comparison, LINES[1], epsilon).sigma,
        max_grad_norm=CLIP_NORM,
    )
    averaged, played = flatten_parameters(plain).numpy().copy(), 0
    while played < comparison.rounds:
        for inputs, targets in loader:
            played += 1
            optimizer.param_groups[0]["lr"] = update.rate(played, comparison.rounds)
            optimizer.zero_grad()
            functional.cross_entropy(model(inputs), targets).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            decay = np.float32(min(update.averaging or 0.0, played / (10 + played)))
            averaged = decay * averaged + (1 - decay) * flatten_parameters(plain).numpy()
            if played == comparison.rounds:
                break
    load_parameters(plain, averaged)
    reported, _ = two_test_parts(data, len(data.test))
    return evaluate(plain, reported.test.arrays, reported.test.targets)


if __name__ == "__main__":
    torch.manual_seed(0)
    epsilon_, rate_ = (float(word) for word in [*sys.argv[2:], "2", "6.4"][:2])
    found = train(COMPARISONS["mnist"], Path(sys.argv[1]), epsilon_, rate_)
    print(f"Opacus at ε = {epsilon_:g}, learning rate {rate_:g}: {found:.2%}")
