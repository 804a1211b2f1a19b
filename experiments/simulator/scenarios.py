"""The paper's two settings, fitted to the data at hand, and what they cost."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from coinflower.accounting import validation
from coinflower.accounting.analyses.analysis import Analysis
from coinflower.accounting.analyses.baselines import CentralShuffling
from coinflower.accounting.composition.calibration import CalibrationError, least_sigma
from coinflower.accounting.composition.compose import epsilon_after
from coinflower.accounting.errors import UserError
from coinflower.accounting.mechanism import Round
from coinflower.accounting.rounding import rounded_up
from coinflower.experiments.simulator.simulator import CENTRAL, Noise
from coinflower.learning import Dataset, Records, load_data, partition, with_test_part
from coinflower.learning.data.partitions import file_count, units_to_share
from coinflower.learning.data.persons import Units
from coinflower.protocol.modes import Mode
from coinflower.protocol.unit import Unit

MEAN_BATCH = 70.0
"""Mean number of records in an iteration, in both of the paper's settings."""
PER_ITERATION = (0.015, 1e-6)
"""The (ε, δ) that the paper grants each iteration."""
MOST_SIGMA = 1000.0
"""Nothing is learnt under more noise than this."""

Rows = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A federation of the paper's evaluation.

    Attributes:
        name: Name of the setting.
        clients: Number of clients.
        d: Records of each.
        p: Participation probability.
        q: Sampling rate.
        learning_rate: The paper's step size.
        slower: Schemes for which the paper takes a smaller step, and that step.
    """

    name: str
    clients: int
    d: int
    p: float
    q: float
    learning_rate: float
    slower: tuple[tuple[str, float], ...] = ()

    def learning_rate_of(self, scheme: str) -> float:
        """Return the step size that the paper takes under a scheme's noise."""
        return dict(self.slower).get(scheme, self.learning_rate)


SETTINGS = {
    setting.name: setting
    for setting in (
        Setting(
            name="many-small",
            clients=23264,
            d=30,
            p=0.001,
            q=0.1,
            learning_rate=0.002,
            slower=(("wcs", 1e-4), ("ols", 1e-4)),
        ),
        Setting(name="few-large", clients=697, d=1000, p=0.1, q=0.001, learning_rate=0.002),
    )
}


@dataclass(frozen=True, kw_only=True, eq=False)
class Federation:
    """Clients with their rows of a data set, and how they take part.

    Attributes:
        sizes: Data-set size of every client, in units.
        rows: Rows of the data set, client after client and unit after unit.
        p: Participation probability.
        q: Sampling rate.
        cap: Bound on each client's sum, in clip norms; infinite for none.
        rows_per_person: How many rows each unit has, if these are persons; None for records.
    """

    sizes: Rows
    rows: Rows
    p: float
    q: float
    cap: float = math.inf
    rows_per_person: Rows | None = None

    @property
    def largest(self) -> int:
        """The largest client's size: δ never falls with d, so what it pays bounds everybody's."""
        return int(self.sizes.max())

    @property
    def mean_batch(self) -> float:
        """Expected number of units in an iteration while everybody is there."""
        return self.p * self.q * float(self.sizes.sum())


def federate(
    setting: Setting,
    data: Dataset,
    *,
    how: str = "equal",
    clients: int | None = None,
    noise: Noise = Mode.TRUSTED,
    p: float | None = None,
    q: float | None = None,
    cap: float = math.inf,
    seed: int = 0,
    unit: Unit = Unit.RECORD,
) -> Federation:
    """Return the setting on the data at hand.

    With other clients than the paper's, q and the mean batch stay the paper's and p is fitted;
    where that would need p > 1, p stays the paper's and q is fitted; where that would need q > 1,
    everybody takes part and q is fitted to that. In a mode without coins p is 1 and q is fitted;
    so it is where coins gain nothing, unless p or q is given.

    Args:
        setting: The paper's.
        data: Whose training part is shared out.
        how: ``equal`` (d units each); ``writer``, ``dirichlet`` or ``files`` for unequal clients.
        clients: How many; as many as the data makes, and at most the paper's, by default.
        noise: Who adds noise.
        p: Participation probability, instead.
        q: Sampling rate, instead.
        cap: Bound on each client's sum, in clip norms.
        seed: Of the partition, which is public.
        unit: What is sampled and protected as one, and not shared out in pieces.

    Raises:
        ValueError: The data cannot be shared out so.
    """
    units = units_to_share(data, how, unit)
    parts = _shares(setting, data, units, how, clients, seed, unit)
    members = np.concatenate(parts)
    sizes = np.array([len(part) for part in parts], dtype=np.int64)
    share = MEAN_BATCH / int(sizes.sum())
    fitted_p, fitted_q = setting.p, setting.q
    if takes_everybody(noise) or (p is None and q is None and gains_nothing_by_coins(noise)):
        fitted_p, fitted_q = 1.0, min(1.0, share)
    elif p is None and sizes.sum() != setting.clients * setting.d:
        fitted_p, fitted_q = _fitted(setting, share) if q is None else (min(1.0, share / q), q)
    return Federation(
        sizes=sizes,
        rows=units.rows_of(members),
        p=fitted_p if p is None else p,
        q=fitted_q if q is None else q,
        cap=cap,
        rows_per_person=None if unit is Unit.RECORD else units.sizes[members],
    )


def takes_everybody(noise: Noise) -> bool:
    """Return whether there are no coins."""
    return noise != CENTRAL and not noise.flips_coins


def gains_nothing_by_coins(noise: Noise) -> bool:
    """Return whether everybody answers whatever the coin says, in a mode that the paper lacks.

    At the same batch the largest p needs the least noise, and fewer messages are the only other
    gain of a smaller one (docs/when-does-a-coin-pay.md).
    """
    return noise != CENTRAL and noise.masks_sums


def _fitted(setting: Setting, share: float) -> tuple[float, float]:
    """Return p and q whose product is a share of all units, one the paper's if possible."""
    for p, q in ((share / setting.q, setting.q), (setting.p, share / setting.p)):
        if max(p, q) <= 1:
            return p, q
    return 1.0, min(1.0, share)


def _shares(
    setting: Setting,
    data: Dataset,
    units: Units,
    how: str,
    clients: int | None,
    seed: int,
    unit: Unit,
) -> list[Rows]:
    """Return the units of each client."""
    if clients is not None:
        validation.require_count("clients", clients, least=1)
    most = len(units) // setting.d
    count = max(1, min(setting.clients, most)) if clients is None else clients
    if how == "writer" and clients is None:
        count = 1 if data.train.persons is None else len(np.unique(data.train.persons))
    elif how == "files" and clients is None:
        count = file_count(data)
    elif how in ("equal", "dirichlet") and count > most:
        raise UserError(
            f"{count:,} clients of {setting.d} {unit}s each need {count * setting.d:,} {unit}s, "
            f"but {data.name} has {len(units):,}: it makes at most {most:,} clients."
        )
    if how == "equal":
        order = np.random.default_rng(seed).permutation(len(units))[: count * setting.d]
        return list(order.reshape(count, setting.d))
    parts = partition(data, clients=count, how=how, seed=seed, unit=unit)
    return [np.unique(units.of[rows]) for rows in parts]


def analysis_of(noise: Noise) -> type[Analysis] | None:
    """Return the analysis that bounds what an iteration costs; None where nothing is protected."""
    return CentralShuffling if noise == CENTRAL else noise.scheme


def calibrated_sigma(
    federation: Federation,
    scheme: type[Analysis],
    *,
    epsilon: float | None,
    delta: float,
    iterations: int,
) -> float:
    """Return the noise that an analysis asks for to protect every client.

    Args:
        federation: The clients.
        scheme: The analysis.
        epsilon: For all iterations together; None grants each the paper's (0.015, 1e-6).
        delta: δ of ``epsilon``.
        iterations: Number of iterations.

    Raises:
        CalibrationError: The budget asks for more noise than 1000.
    """
    target, at, rounds = (*PER_ITERATION, 1) if epsilon is None else (epsilon, delta, iterations)
    sigma = least_sigma(
        scheme,
        p=federation.p,
        q=federation.q,
        d=federation.largest,
        epsilon=target,
        delta=at,
        rounds=rounds,
        cap=federation.cap,
    )
    if sigma > MOST_SIGMA:
        raise CalibrationError(
            f"epsilon = {target:g} at delta = {at:g} asks for sigma = {rounded_up(sigma)} by "
            f"{scheme.name}, and nothing is learnt above {MOST_SIGMA:g}: allow a larger epsilon, "
            "fewer iterations, or sample less."
        )
    return sigma


def upper_epsilon(
    federation: Federation, noise: Noise, sigma: float, iterations: int, delta: float
) -> float | None:
    """Return the most that the iterations cost any client, however the noise was chosen.

    None where nothing is protected.
    """
    scheme = analysis_of(noise)
    if scheme is None or sigma == 0:
        return None
    if iterations == 0:
        return 0.0
    round_ = Round(federation.p, federation.q, federation.largest, sigma, federation.cap)
    return epsilon_after([(scheme(round_), iterations)], delta)


def load_training_data(
    spec: str,
    setting: Setting,
    *,
    schema: Path | None = None,
    split: str | None = None,
    download: bool = False,
) -> Dataset:
    """Return data by name or path; ``synthetic`` makes as much as the setting has in the paper."""
    if spec != "synthetic":
        data = load_data(spec, schema=schema, numbers=None, split=split, download=download)
        return with_test_part(data)
    return synthetic_data(setting.clients * setting.d, classes=62)


def synthetic_data(records: int, *, classes: int, test: int = 2000) -> Dataset:
    """Return blurred class patterns under noise: learnable, and of the paper's shape and size."""
    generator = np.random.default_rng(0)
    patterns = generator.integers(0, 128, (classes, 7, 7), dtype=np.uint8)
    patterns = patterns.repeat(4, axis=1).repeat(4, axis=2)

    def some(count: int) -> Records:
        targets = generator.integers(0, classes, count)
        images = generator.integers(0, 128, (count, 28, 28), dtype=np.uint8)
        for start in range(0, count, 10_000):
            part = slice(start, start + 10_000)
            images[part] += patterns[targets[part]]
        return Records(inputs=images[:, np.newaxis], targets=targets)

    return Dataset(
        name="synthetic",
        train=some(records),
        test_part=some(test),
        class_count=classes,
    )
