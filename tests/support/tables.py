"""A ward's table, its schema and a model that takes its rows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from torch import nn

from coinflower.learning.data.tables.schema import load_schema

HEADER = "patient,age,sex,ill"
SCHEMA = """\
target = "ill"
person = "patient"

[columns.age]
kind = "number"
range = [0, 100]

[columns.sex]
kind = "category"
values = ["f", "m"]

[columns.ill]
kind = "category"
values = ["no", "yes"]
"""
MODEL = "tests.support.tables:ward_model"


def ward_model(classes: int) -> nn.Module:
    """Return a linear model for the six numbers of a row."""
    return nn.Linear(6, classes)


def ward_rows(count: int, seed: int = 0) -> list[str]:
    """Return rows of patients, three each, who are ill if they are old."""
    rng = np.random.default_rng(seed)
    ages, sexes = rng.integers(1, 100, count), rng.choice(["f", "m"], count)
    return [
        f"p{seed}-{row // 3},{age},{sex},{'yes' if age > 50 else 'no'}"
        for row, (age, sex) in enumerate(zip(ages, sexes, strict=True))
    ]


def write_ward(path: Path, rows: list[str], header: str = HEADER) -> Path:
    """Write a table."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join([header, *rows, ""]))
    return path


def write_schema(path: Path, text: str = SCHEMA) -> str:
    """Write the schema and return its hash."""
    path.write_text(text)
    return load_schema(path).hash


def ward_arrays() -> tuple[np.ndarray, list[int]]:
    """Return inputs and targets, as an own loader does."""
    return np.ones((4, 6), np.float32), [0, 1, 0, 1]
