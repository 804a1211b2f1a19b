"""Data that the user's own function returns, named ``package.module:function``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from coinflower.accounting.errors import UserError
from coinflower.learning.data.dataset import Dataset
from coinflower.learning.data.reading import usable_records
from coinflower.learning.data.records import Records
from coinflower.learning.data.weights import weights_of
from coinflower.learning.own_code import blamed_on_its_author, own_function


def is_own_loader(spec: str) -> bool:
    """Return whether data is named as a function of the user's own."""
    module, colon, function = spec.partition(":")
    names = [*module.split("."), function]
    return bool(colon) and all(name.isidentifier() for name in names) and not Path(spec).exists()


def load_by_own_function(spec: str, *, numbers: bool | None = False) -> Dataset:
    """Return what the function returns: inputs and targets, persons if it knows them, and weights.

    The inputs are one array, or a tuple of arrays for a model that takes several.
    It may return a `Dataset` or `Records` as well.

    Raises:
        UserError: The function cannot be found or fails, or returns something else.
    """
    what = f"data {spec!r}"
    function = own_function(what, spec, "one that returns inputs and targets")
    with blamed_on_its_author(what):
        returned: Any = function()
    if isinstance(returned, Dataset):
        return returned
    if isinstance(returned, Records):
        returned = (returned.arrays, returned.targets, returned.persons, returned.weights)
    if not isinstance(returned, Sequence) or len(returned) not in (2, 3, 4):
        raise UserError(
            f"{what} returned {type(returned).__name__}; it must return inputs and targets, and "
            "persons and weights if there are any"
        )
    inputs, targets, persons, weights = (*returned, None, None)[:4]
    several = inputs if isinstance(inputs, tuple) else (inputs,)
    if not several or any(one is None for one in (*several, targets)):
        raise UserError(f"{what} returned no inputs or no targets")
    with blamed_on_its_author(what):
        arrays = tuple(map(np.asarray, several))
        targets = np.asarray(targets)
        persons = None if persons is None else np.asarray(persons)
        weights = None if weights is None else np.asarray(weights)
    weighed, faults = (None, []) if weights is None else weights_of(weights)
    records, reading = usable_records(
        spec, arrays, targets, persons, weighed, numbers=numbers, faults=faults
    )
    classes = max(2, int(records.targets.max(initial=0)) + 1) if records.are_classified else None
    return Dataset(name=spec, train=records, class_count=classes, reading=reading)
