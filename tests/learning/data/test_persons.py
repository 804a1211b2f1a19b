"""Units of records: their rows, and how files and partitions keep them together."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coinflower.learning import Dataset, Records, load_data, partition, with_test_part
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


def test_equal_ids_in_two_files_are_two_persons(tmp_path: Path) -> None:
    for name, ids in (("a", [0, 0, 5]), ("b", [-5, 0, 2**62])):
        np.savez(tmp_path / name, x=np.ones((3, 2)), y=[0, 1, 0], persons=ids)
    persons = load_data(str(tmp_path)).train.persons
    assert persons is not None
    assert len(set(persons[:3].tolist())) == 2
    assert len(set(persons[3:].tolist())) == 3
    assert not set(persons[:3].tolist()) & set(persons[3:].tolist())


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
