"""Units of records: their rows, and how files and partitions keep them together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pa_parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coinflower.learning import Dataset, Records, load_data, partition, with_test_part
from coinflower.learning.data.partitions import units_to_share
from coinflower.learning.data.person_ids import numbers_of, persons_of
from coinflower.learning.data.persons import units_of
from coinflower.protocol.unit import Unit


def rows_of(persons: list[int]) -> Records:
    return Records(
        inputs=np.zeros((len(persons), 2), np.float32),
        targets=np.arange(len(persons)) % 2,
        persons=np.array(persons, dtype=np.int64),
    )


@given(st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(0, 5), min_size=1, max_size=40))
def test_units_have_the_rows_of_their_persons_and_no_others(
    persons: list[int],
) -> None:
    units = units_of(rows_of(persons), Unit.PERSON, "wards")
    assert len(units) == len(set(persons))
    some = np.random.default_rng(len(persons)).permutation(len(units))[: (len(units) + 1) // 2]
    for unit in some:
        rows = units.rows_of(np.array([unit]))
        assert rows.tolist() == [i for i, one in enumerate(persons) if one == persons[rows[0]]]
    together = units.rows_of(some)
    np.testing.assert_array_equal(
        together, np.concatenate([units.rows_of(np.array([unit])) for unit in some])
    )
    np.testing.assert_array_equal(units.of[together], np.repeat(some, units.sizes[some]))


def test_a_record_is_a_unit_of_its_own() -> None:
    units = units_of(rows_of([3, 3, 4]), Unit.RECORD, "wards")
    assert len(units) == 3
    assert units.rows_of(np.array([2, 0])).tolist() == [2, 0]
    assert units.rows_of(np.array([], dtype=np.int64)).tolist() == []


def test_persons_are_needed_to_protect_them() -> None:
    records = Records(inputs=np.zeros((2, 2)), targets=np.zeros(2, np.int64))
    with pytest.raises(ValueError, match="wards does not say whose its rows are"):
        units_of(records, Unit.PERSON, "wards")


def test_persons_are_whole_numbers() -> None:
    with pytest.raises(ValueError, match="persons of type float64 must be numbers of type int64"):
        Records(inputs=np.zeros((2, 2)), targets=np.zeros(2, np.int64), persons=np.zeros(2))


def test_equal_ids_in_two_files_of_one_owner_are_one_person(tmp_path: Path) -> None:
    """A patient in the tables of two years is one person, however each year stored the id."""
    (tmp_path / "schema.toml").write_text(
        'target = "ill"\nperson = "patient"\n'
        '[columns.age]\nkind = "number"\nrange = [0, 100]\n'
        '[columns.ill]\nkind = "category"\nvalues = ["no", "yes"]\n'
    )
    (tmp_path / "2023.csv").write_text("patient,age,ill\n17,50,no\n17,51,yes\n x5 ,7,no\n")
    # With a blank among them, pandas keeps whole numbers as floats.
    (tmp_path / "2024.csv").write_text("patient,age,ill\n17.0,52,no\nx5,8,no\n1e+15,9,no\n")
    ages = {"age": [1.0], "ill": ["no"]}
    pa_parquet.write_table(pa.table({"patient": [17.0], **ages}), tmp_path / "2025.parquet")
    pa_parquet.write_table(pa.table({"patient": [10**15], **ages}), tmp_path / "2026.parquet")
    records = load_data(str(tmp_path), schema=tmp_path / "schema.toml").train
    units = units_of(records, Unit.PERSON, "wards")
    assert sorted(units.sizes.tolist()) == [2, 2, 4]


def test_equal_ids_in_the_files_of_two_clients_are_two_persons(tmp_path: Path) -> None:
    for name in ("a", "b"):
        np.savez(tmp_path / name, x=np.ones((4, 2)), y=[0, 1, 0, 1], persons=[7, 7, 8, 9])
    data = load_data(str(tmp_path))
    units = units_to_share(data, "files", Unit.PERSON)
    assert sorted(units.sizes.tolist()) == [1, 1, 1, 1, 2, 2]
    parts = partition(data, clients=2, how="files", seed=0, unit=Unit.PERSON)
    assert [units.count(rows) for rows in parts] == [3, 3]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (np.array(["ann ", "bo"]), np.array(["bo", "ann"])),
        (np.array(["Zo\u00eb", "bo"]), np.array(["bo", "Zoe\u0308"])),
        (np.array([b"ann", b"17"]), np.array(["17", "ann"], dtype=object)),
        (np.array([17, 3], dtype=np.uint8), np.array([3.0, 17.0], dtype=object)),
        (np.array([17, -3], dtype=">i4"), np.array(["-3", "017"])),
        (np.array([2**64 - 1, 5], dtype=np.uint64), np.array(["5", str(2**64 - 1)])),
    ],
)
def test_an_id_is_the_same_however_it_is_stored(one: Any, other: Any) -> None:
    (ours, _), (theirs, _) = persons_of(one), persons_of(other)
    assert ours.tolist() == theirs[::-1].tolist()
    assert ours[0] != ours[1]


def test_an_id_that_says_nobody_is_blank() -> None:
    ids = np.array([None, np.nan, np.float32("nan"), " ", "<NA>", "NaT", "ann", 0], dtype=object)
    assert persons_of(ids)[1].tolist() == [True] * 6 + [False] * 2


@given(st.text(max_size=60))
def test_every_text_has_a_number(text: str) -> None:
    numbers, _ = numbers_of([text, f" {text}"])
    assert numbers[0] == numbers[1]


@pytest.mark.parametrize("how", ["equal", "dirichlet", "writer"])
@pytest.mark.parametrize("seed", [0, 1])
def test_a_partition_by_persons_splits_nobody(how: str, seed: int) -> None:
    persons = np.random.default_rng(seed).integers(-20, 20, 200).tolist()
    data = with_test_part(Dataset(name="wards", train=rows_of(persons), class_count=2))
    parts = partition(data, clients=6, how=how, seed=seed, unit=Unit.PERSON)
    assert data.train.persons is not None
    people = [set(data.train.persons[rows].tolist()) for rows in parts]
    assert all(people)
    assert sum(map(len, people)) == len(set().union(*people))
    if how == "writer":
        assert [len(each) for each in people] == [1] * 6
    else:
        assert sum(map(len, parts)) == len(data.train)
        assert all((np.diff(rows) > 0).all() for rows in parts)


def test_there_are_no_more_clients_than_persons() -> None:
    data = Dataset(name="wards", train=rows_of([1, 1, 1, 2]), class_count=2)
    with pytest.raises(ValueError, match="clients = 3 must lie in 1 to 2, the number of"):
        partition(data, clients=3, how="equal", seed=0, unit=Unit.PERSON)


def test_a_person_counts_as_of_the_class_that_most_of_its_rows_have() -> None:
    persons = np.repeat(np.arange(100), 3)
    targets = np.repeat(np.arange(100) % 2, 3)
    targets[::3] = 1 - targets[::3]
    records = Records(inputs=np.zeros((300, 1)), targets=targets, persons=persons)
    data = Dataset(name="wards", train=records, class_count=2)
    parts = partition(data, clients=2, how="dirichlet", seed=3, alpha=1e-3, unit=Unit.PERSON)
    for label in (0, 1):  # all of a class at one client, but for one who keeps it from being empty
        assert max((persons[rows] % 2 == label).sum() for rows in parts) >= 3 * 49
