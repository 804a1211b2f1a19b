"""The paper's two settings, fitted to the data at hand."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from accounting.calibration import least_sigma
from accounting.composition import epsilon_after
from accounting.schemes import Certified, scheme_class
from learning import Dataset, load_data

MEAN_BATCH = 70.0
"""Mean number of samples in an iteration, in both of the paper's settings."""
PER_ITERATION = (0.015, 1e-6)
"""The (ε, δ) that the paper grants each iteration."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A federation of equal clients.

    Attributes:
        name: Name of the setting.
        clients: Number of clients.
        d: Samples of each.
        p: Participation probability.
        q: Sampling rate.
    """

    name: str
    clients: int
    d: int
    p: float
    q: float

    def fitted(self, samples: int) -> Setting:
        """Return the setting for fewer samples: the same d, q and mean batch, a larger p.

        Raises:
            ValueError: The samples do not make a single batch.
        """
        clients = min(self.clients, samples // self.d)
        rate = self.q * clients * self.d
        if rate < MEAN_BATCH:
            raise ValueError(
                f"{samples} samples make {clients} clients of {self.d}; with q = {self.q:g} that "
                f"is no mean batch of {MEAN_BATCH:g}. Use more data."
            )
        p = self.p if clients == self.clients else MEAN_BATCH / rate
        return Setting(name=self.name, clients=clients, d=self.d, p=p, q=self.q)


SETTINGS = {
    "many-small": Setting(name="many-small", clients=23264, d=30, p=0.001, q=0.1),
    "few-large": Setting(name="few-large", clients=697, d=1000, p=0.1, q=0.001),
}


def calibrated_sigma(
    setting: Setting, scheme: str, *, epsilon: float | None, delta: float, iterations: int
) -> float:
    """Return the noise that an analysis asks for.

    Args:
        setting: The federation.
        scheme: The analysis, or ``none`` for no noise.
        epsilon: For all iterations together; None grants each the paper's (0.015, 1e-6).
        delta: δ of ``epsilon``.
        iterations: Number of iterations.
    """
    if scheme == "none":
        return 0.0
    target, at, rounds = (*PER_ITERATION, 1) if epsilon is None else (epsilon, delta, iterations)
    return least_sigma(
        scheme_class(scheme),
        p=setting.p,
        q=setting.q,
        d=setting.d,
        epsilon=target,
        delta=at,
        rounds=rounds,
    )


def certified_epsilon(
    setting: Setting, sigma: float, iterations: int, delta: float
) -> float | None:
    """Return what the iterations really cost at most, whichever analysis chose the noise."""
    if sigma == 0 or iterations == 0:
        return None
    terms = Certified(p=setting.p, q=setting.q, d=setting.d, noise_multiplier=sigma)
    return epsilon_after([(terms, iterations)], delta)


def load_training_data(spec: str, setting: Setting) -> Dataset:
    """Return data by name or path; ``synthetic`` makes as much as the setting has in the paper."""
    if spec != "synthetic":
        return load_data(spec)
    return synthetic_data(setting.clients * setting.d, classes=62)


def synthetic_data(samples: int, *, classes: int, test: int = 2000) -> Dataset:
    """Return blurred class patterns under noise: learnable, and of the paper's shape and size."""
    generator = np.random.default_rng(0)
    patterns = generator.integers(0, 128, (classes, 7, 7), dtype=np.uint8)
    patterns = patterns.repeat(4, axis=1).repeat(4, axis=2)

    def some(count: int) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
        targets = generator.integers(0, classes, count)
        images = generator.integers(0, 128, (count, 28, 28), dtype=np.uint8)
        for start in range(0, count, 10_000):
            part = slice(start, start + 10_000)
            images[part] += patterns[targets[part]]
        return images, targets

    train, test_part = some(samples), some(test)
    return Dataset(
        name="synthetic",
        train_inputs=train[0],
        train_targets=train[1],
        test_inputs=test_part[0],
        test_targets=test_part[1],
        classes=classes,
    )
