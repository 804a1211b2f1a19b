"""Where the data of a comparison comes from, and public features of it."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from coinflower.accounting.errors import UserError
from coinflower.experiments.comparison.comparisons import Comparison
from coinflower.learning import Dataset, Records, load_data
from coinflower.learning.scattering import scattered

CLINICS = "clinics"
"""Made here; all other sources are folders that the user names."""
_PATIENTS, _PATIENTS_TO_TEST, _MOST_VISITS = 10_000, 4_000, 6


def load_source(comparison: Comparison, folders: Mapping[str, Path]) -> Dataset:
    """Return the data of a comparison, its test part measuring accuracy.

    Raises:
        UserError: Nobody said where the data is.
    """
    if comparison.source == CLINICS:
        return visits()
    folder = folders.get(comparison.source)
    if folder is None:
        raise UserError(
            f"{comparison.name} needs {comparison.source}; name its folder by "
            f"--{comparison.source} PATH, or choose other comparisons."
        )
    return _loaded(folder, comparison.features)


@functools.lru_cache(maxsize=1)
def _loaded(folder: Path, features: str | None) -> Dataset:
    data = load_data(str(folder))
    if features is None:
        return data
    return dataclasses.replace(
        data, train=_with_features(data.train), test_part=_with_features(data.test)
    )


def _with_features(records: Records) -> Records:
    found = scattered(records.inputs)
    return dataclasses.replace(records, inputs=found.reshape(len(found), -1))


@functools.lru_cache(maxsize=1)
def visits() -> Dataset:
    """Return visits of patients as the hospital's example makes them, and more of them.

    A patient has one to six visits, alike in age, sex and frailty; one asks who is readmitted.
    """
    generator = np.random.default_rng(7)
    train, test = (_visits(count, generator) for count in (_PATIENTS, _PATIENTS_TO_TEST))
    return Dataset(name=CLINICS, train=train, test_part=test, class_count=2)


def _visits(patients: int, generator: np.random.Generator) -> Records:
    of = np.repeat(np.arange(patients), generator.integers(1, _MOST_VISITS + 1, patients))
    age = generator.integers(20, 95, patients)[of]
    male = generator.integers(0, 2, patients)[of]
    frailty = generator.normal(size=patients)[of]
    emergency = generator.random(len(of)) < 0.4
    pressure = generator.normal(130 - 8 * frailty, 15)
    lactate = np.exp(generator.normal(0.4 + 0.4 * frailty, 0.3))
    risk = 0.05 * (age - 65) + 1.2 * frailty + 1.5 * emergency - 1.2
    readmitted = generator.random(len(of)) < 1 / (1 + np.exp(-2 * risk))
    inputs = [(age - 60) / 20, male, emergency, (pressure - 130) / 20, lactate - 1.5]
    return Records(
        inputs=np.stack(inputs, 1).astype(np.float32),
        targets=readmitted.astype(np.int64),
        persons=of.astype(np.int64),
    )
