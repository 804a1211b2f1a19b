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
from coinflower.learning.own_code import blamed_on_its_author, own_function


def is_own_loader(spec: str) -> bool:
    """Return whether data is named as a function of the user's own."""
    module, colon, function = spec.partition(":")
    names = [*module.split("."), function]
    return bool(colon) and all(name.isidentifier() for name in names) and not Path(spec).exists()


def load_by_own_function(spec: str, *, numbers: bool = False) -> Dataset:
    """Return what the function returns: inputs and targets, and persons if it knows them.

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
        returned = (returned.inputs, returned.targets, returned.persons)
    if not isinstance(returned, Sequence) or len(returned) not in (2, 3):
        raise UserError(
            f"{what} returned {type(returned).__name__}; it must return inputs and targets, and "
            "persons if it knows them"
        )
    arrays = [None if one is None else np.asarray(one) for one in (*returned, None)[:3]]
    if arrays[0] is None or arrays[1] is None:
        raise UserError(f"{what} returned None for inputs or targets")
    records, reading = usable_records(spec, arrays[0], arrays[1], arrays[2], numbers=numbers)
    classes = None if numbers else max(2, int(records.targets.max(initial=0)) + 1)
    return Dataset(name=spec, train=records, class_count=classes, reading=reading)
