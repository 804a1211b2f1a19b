"""Statistics of tables: what records add, what the sums say, and what cannot be asked for."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from coinflower.accounting.errors import UserError
from coinflower.learning import load_data
from coinflower.learning.data.tables.schema import Schema, load_schema
from coinflower.learning.queries.blocks import vectors
from coinflower.learning.queries.statistics import MISSING, OTHER, Statistics
from coinflower.protocol.query import Query, QueryKind

SCHEMA = """
target = "dose"
person = "who"
[columns.age]
kind = "number"
range = [0, 100]
centre = 30
scale = 7
[columns.sex]
kind = "category"
values = ["f", "m"]
[columns.weight]
kind = "number"
range = [0, 200]
missing = "refused"
[columns.ward]
kind = "ignored"
[columns.dose]
kind = "number"
range = [0, 10]
"""
ROWS = [
    ("a", "20", "f", "60", "1", "9.0"),
    ("a", "40", "m", "80", "1", "1"),
    ("b", "", "x", "100", "1", "2"),
    ("c", "250", "", "120", "1", "3"),
]
COLUMNS = ("who", "age", "sex", "weight", "ward", "dose")


@pytest.fixture
def table(tmp_path: Path) -> tuple[Any, Schema]:
    (tmp_path / "schema.toml").write_text(SCHEMA)
    with (tmp_path / "table.csv").open("w", newline="") as file:
        csv.writer(file).writerows([COLUMNS, *ROWS])
    schema = tmp_path / "schema.toml"
    return load_data(str(tmp_path / "table.csv"), schema=schema).train, load_schema(schema)


def asked(schema: Schema, **fields: Any) -> Statistics:
    return Statistics(Query(kind=QueryKind.STATISTICS, **fields), schema)


def told(statistics: Statistics, records: Any, persons: Any = None) -> dict[str, Any]:
    total = statistics.sum_over(records, np.arange(len(records)), 2.0, persons)
    return statistics.read(total, clip_norm=2.0, noise_std=0.0, sampled=1.0)


def test_sums_without_noise_give_means_within_the_public_range(table: Any) -> None:
    records, schema = table
    found = told(asked(schema, means=("age", "weight", "dose")), records)
    assert found["age"]["mean"]["value"] == pytest.approx((20 + 40 + 100) / 3, rel=1e-5)
    assert found["weight"]["mean"]["value"] == pytest.approx(90, rel=1e-5)
    assert found["dose"]["mean"]["value"] == pytest.approx(15 / 4, rel=1e-5)


def test_categories_are_counted_with_others_and_missing_ones(table: Any) -> None:
    records, schema = table
    counts = told(asked(schema, histograms=("sex",)), records)["sex"]["counts"]
    found = {name: round(figure["value"], 3) for name, figure in counts.items()}
    assert found == {"f": 1, "m": 1, OTHER: 1, MISSING: 1}


def test_numbers_are_counted_in_bins_and_give_quantiles(table: Any) -> None:
    records, schema = table
    found = told(asked(schema, histograms=("age",), bins=10), records)["age"]["histogram"]
    counts = [round(figure["value"]) for figure in found["counts"]]
    assert counts == [0, 0, 1, 0, 1, 0, 0, 0, 0, 1]
    assert found["missing"]["value"] == pytest.approx(1)
    assert found["edges"][:2] == [0, 10]
    middle = found["quantiles"]["0.5"]
    assert middle["low"] <= 40 <= middle["value"] <= 50 <= middle["high"]


def test_a_person_counts_once(table: Any) -> None:
    records, schema = table
    counts = told(asked(schema, histograms=("sex",)), records, records.persons)["sex"]["counts"]
    found = {name: round(figure["value"], 3) for name, figure in counts.items()}
    assert found == {"f": 0.5, "m": 0.5, OTHER: 1, MISSING: 1}


def test_no_row_is_longer_than_the_clip_norm(table: Any) -> None:
    records, schema = table
    statistics = asked(schema, means=("age", "dose"), histograms=("age", "sex", "weight"))
    blocks = statistics.blocks(records, np.arange(len(records)))
    assert sum(block.shape[1] for block in blocks) == statistics.length
    assert (np.linalg.norm(vectors(blocks, 0.5), axis=1) <= 0.5 * (1 + 1e-12)).all()


@pytest.mark.parametrize(
    ("fields", "match"),
    [
        ({"means": ("sex",)}, "holds no numbers"),
        ({"means": ("ages",)}, "no column 'ages' .did you mean 'age'"),
        ({"histograms": ("who",)}, "no column 'who'"),
        ({"histograms": ("ward",)}, "no column 'ward'"),
    ],
)
def test_what_the_schema_does_not_have_cannot_be_asked_for(
    table: Any, fields: dict[str, Any], match: str
) -> None:
    with pytest.raises(UserError, match=match):
        asked(table[1], **fields)


def test_noisy_counts_are_right_on_average_and_as_far_off_as_they_say(table: Any) -> None:
    """Fails falsely once in 10⁶; rejects an error that is stated a fifth too small or large."""
    statistics, generator = asked(table[1], histograms=("sex",)), np.random.default_rng(3)
    true, noise, trials = np.array([400.0, 300.0, 0.0, 50.0]), 15.0, 700
    scores = []
    for _ in range(trials):
        total = generator.poisson(true * 0.5) + generator.normal(0, noise, 4)
        found = statistics.read(total, clip_norm=1.0, noise_std=noise, sampled=2.0)
        figures = list(found["sex"]["counts"].values())
        scores += [
            (figure["value"] - exact) / figure["standard_error"]
            for figure, exact in zip(figures, true, strict=True)
        ]
    assert abs(np.mean(scores)) < 5 / np.sqrt(len(scores))
    for factor, fits in ((1.0, True), (0.8, False), (1.2, False)):
        statistic = float(((np.array(scores) / factor) ** 2).sum())
        law = stats.chi2(len(scores))
        assert (2 * min(law.cdf(statistic), law.sf(statistic)) > 1e-6) == fits
