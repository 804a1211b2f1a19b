"""What a split of the batch between p and q is worth: its signal, its noise and its messages.

At the same batch the largest p needs the least noise (docs/when-does-a-coin-pay.md), and a smaller
one sends fewer messages. A cap lowers the noise and cuts some of the signal.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from coinflower.accounting.analyses.analysis import Analysis
from coinflower.accounting.analyses.binomial import binomial_window
from coinflower.accounting.composition.calibration import Split
from coinflower.protocol.modes import Mode

CAPS = (1.0, 1.5, 2.0, 3.0, 5.0, math.inf)
"""Caps that a plan weighs, in clip norms; ∞ is none."""
CLIP_NORM = 0.3
"""Of planned experiments: below what gradients begin with, so that all records count to the end."""
_MOMENTUM = 0.9
_FOR_FEWER_MESSAGES = 1.05
"""How much more noise over signal fewer messages are worth."""
# The best learning rates of docs/results/mnist, times the length of a step's noise and over
# 1 − momentum, lie around this, within a factor of 3; beyond the largest rate, here for a clip norm
# of 1, networks no longer learn from the first rounds.
_NOISE_OF_A_STEP = 3.0
_MOST_LEARNING_RATE = 1.5
_AROUND = 3.0


@dataclass(frozen=True, kw_only=True)
class Choice:
    """A split, and what it means for learning.

    Attributes:
        split: p, q, cap and noise.
        batch: Mean number of records in a round.
        messages: Mean number of messages to the server in a round.
        bytes_per_round: What they and the models that they answer take.
        signal: Share of the mean gradient that the cap leaves.
        noise_share: Noise on each coordinate of the mean gradient, in clip norms.
    """

    split: Split
    batch: float
    messages: float
    bytes_per_round: float
    signal: float
    noise_share: float

    @property
    def signal_to_noise(self) -> float:
        """Longest mean gradient that the cap leaves, over the noise on each coordinate."""
        return self.signal / self.noise_share

    def figures(self) -> dict[str, Any]:
        """Return the choice for programs."""
        told = {"batch": self.batch, "messages": self.messages}
        told |= {"bytes_per_round": self.bytes_per_round, "signal": self.signal}
        return {**vars(self.split), **told, "signal_to_noise": self.signal_to_noise}


def caps_for(scheme: type[Analysis]) -> tuple[float, ...]:
    """Return the caps that are worth weighing: where coins are seen a cap changes no price."""
    return CAPS if scheme.hides_coin and scheme.takes_cap else (math.inf,)


def signal_left(d: int, q: float, cap: float) -> float:
    """Return the share of a client's sum that a cap leaves if gradients are at right angles.

    A sum of i clipped gradients then has length √i, and those of different records nearly are: in a
    training on MNIST without privacy the mean inner product of two was 0.043 at most.
    """
    if math.isinf(cap):
        return 1.0
    counts, mass, cut = binomial_window(d, q)
    left = np.sqrt(counts) * np.minimum(np.sqrt(counts), cap)
    return min(1.0, float(left @ mass) / (d * q) + cut)


def noise_share(
    mode: Mode, *, clients: int, p: float, sigma: float, batch: float, honest: int = 1
) -> float:
    """Return the noise on each coordinate of the mean gradient, in clip norms."""
    took_part = max(1.0, p * clients)
    noises = mode.noises_in_sum(asked=clients, took_part=took_part, honest=honest)
    return sigma * math.sqrt(noises) / batch


def ranked(
    splits: list[Split],
    *,
    mode: Mode,
    clients: int,
    d: int,
    batch: float,
    bytes_per_answer: float,
    honest: int = 1,
) -> list[Choice]:
    """Return the best cap for every p, by signal to noise, the best first."""
    best: dict[float, Choice] = {}
    for split in splits:
        messages = clients if mode.answers_always else split.p * clients
        choice = Choice(
            split=split,
            batch=batch,
            messages=messages,
            bytes_per_round=messages * bytes_per_answer,
            signal=signal_left(d, split.q, split.cap),
            noise_share=noise_share(
                mode,
                clients=clients,
                p=split.p,
                sigma=split.sigma,
                batch=batch,
                honest=honest,
            ),
        )
        held = best.get(split.p)
        if held is None or choice.signal_to_noise > held.signal_to_noise:
            best[split.p] = choice
    return sorted(best.values(), key=lambda each: -each.signal_to_noise)


def chosen(choices: list[Choice]) -> Choice:
    """Return the choice with the fewest messages among those about as good as the best."""
    best = choices[0].signal_to_noise
    good = [each for each in choices if each.signal_to_noise * _FOR_FEWER_MESSAGES >= best]
    return min(good, key=lambda each: (each.messages, -each.signal_to_noise))


def weighing(choices: list[Choice], taken: Choice) -> str | None:
    """Return a sentence on messages against noise; None where there is nothing to weigh."""
    best = choices[0]
    if taken.messages < best.messages:
        price = best.signal_to_noise / taken.signal_to_noise
        return (
            f"The coin pays: {taken.messages:.4g} messages per round instead of "
            f"{best.messages:.4g} for {price:.3g} times the noise over signal."
        )
    fewer = [each for each in choices if each.messages < taken.messages]
    if not fewer:
        return None
    other = max(fewer, key=lambda each: each.signal_to_noise)
    price = taken.signal_to_noise / other.signal_to_noise
    return (
        f"A smaller p does not pay here: {_named(other)} would send {other.messages:.4g} "
        f"messages per round instead of {taken.messages:.4g}, for {price:.3g} times the noise over "
        "signal."
    )


def _named(choice: Choice) -> str:
    split = choice.split
    cap = "" if math.isinf(split.cap) else f" and cap = {split.cap:g}"
    return f"p = {split.p:.3g}{cap}"


def update_for(rounds: int) -> dict[str, Any]:
    """Return how planned experiments step, beside the learning rate.

    It costs no ε: steps grow over the first tenth of the rounds, then fall to zero, and the model
    that is kept is an average of the last ones.
    """
    return {
        "momentum": _MOMENTUM,
        "schedule": "cosine",
        "warm_up_rounds": rounds // 10,
        "averaging": 0.9,
    }


def learning_rates(
    noise: float, parameters: int, *, clip_norm: float = CLIP_NORM
) -> tuple[float, float, float]:
    """Return the least, the first and the largest learning rate worth trying.

    Args:
        noise: Noise on each coordinate of the mean gradient, in clip norms.
        parameters: Number of the model's parameters.
        clip_norm: Clip norm.
    """
    scale = (1 - _MOMENTUM) / (noise * math.sqrt(parameters))
    best = min(_MOST_LEARNING_RATE, _NOISE_OF_A_STEP * scale) / clip_norm
    least, first, largest = (float(f"{best * by:.3g}") for by in (1 / _AROUND, 1.0, _AROUND))
    return least, first, largest
