import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coinflower.learning import Dataset, Records, load_data, partition


def data(rows: int, classes: int = 4, writers: list[int] | None = None) -> Dataset:
    train = Records(
        inputs=np.zeros((rows, 1, 2, 2), np.uint8),
        targets=np.arange(rows) % classes,
        persons=None if writers is None else np.array(writers),
    )
    return Dataset(
        name="made up",
        train=train,
        test_part=train.take(slice(1)),
        class_count=classes,
    )


@given(
    rows=st.integers(1, 60),
    share=st.floats(0, 1),
    how=st.sampled_from(["equal", "dirichlet"]),
    alpha=st.sampled_from([0.01, 0.5, 100.0]),
    seed=st.integers(0, 99),
)
def test_every_row_goes_to_exactly_one_client_and_none_goes_empty(rows, share, how, alpha, seed):
    clients = max(1, round(share * rows))
    parts = partition(data(rows), clients=clients, how=how, seed=seed, alpha=alpha)
    assert len(parts) == clients
    assert min(map(len, parts)) >= 1
    assert sorted(np.concatenate(parts).tolist()) == list(range(rows))


@given(rows=st.integers(1, 60), clients=st.integers(1, 60))
def test_equal_parts_differ_by_at_most_one(rows, clients):
    sizes = [len(p) for p in partition(data(rows), clients=min(rows, clients), how="equal", seed=0)]
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("how", ["equal", "dirichlet", "writer"])
def test_the_seed_decides_the_partition(how):
    source = data(60, writers=[row % 20 for row in range(60)])
    one, same, other = (partition(source, clients=5, how=how, seed=seed) for seed in (1, 1, 2))
    assert all(np.array_equal(a, b) for a, b in zip(one, same, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


def test_each_client_gets_all_of_one_writer():
    writers = [3, 3, 8, 5, 8, 3, 5, 1]
    parts = partition(data(8, writers=writers), clients=3, how="writer", seed=0)
    owners = [{writers[row] for row in part} for part in parts]
    assert all(len(owner) == 1 for owner in owners)
    assert len(set.union(*owners)) == 3
    for part, owner in zip(parts, owners, strict=True):
        assert len(part) == writers.count(next(iter(owner)))


def test_a_small_alpha_skews_the_labels_more():
    source = load_data("digits")

    def skew(alpha: float) -> float:
        parts = partition(source, clients=10, how="dirichlet", seed=0, alpha=alpha)
        return float(np.mean([np.bincount(source.train.targets[p]).max() / len(p) for p in parts]))

    assert skew(0.1) > 0.35
    assert skew(100.0) < 0.25


@pytest.mark.parametrize("how", ["equal", "dirichlet"])
@pytest.mark.parametrize("clients", [0, -1, 11])
def test_clients_must_be_between_one_and_the_number_of_rows(how, clients):
    with pytest.raises(ValueError, match=f"clients = {clients} must lie in 1 to 10"):
        partition(data(10), clients=clients, how=how, seed=0)


def test_an_unknown_partition_is_refused():
    with pytest.raises(ValueError, match="partition = 'writers' must be one of equal, writer"):
        partition(data(10), clients=2, how="writers", seed=0)


def test_data_without_writers_cannot_be_shared_out_by_writer():
    with pytest.raises(ValueError, match="made up has none"):
        partition(data(10), clients=2, how="writer", seed=0)


def test_more_clients_than_writers_are_refused():
    with pytest.raises(ValueError, match="at most 2, the number of writers"):
        partition(data(4, writers=[1, 1, 2, 2]), clients=3, how="writer", seed=0)


@pytest.mark.parametrize("alpha", [0.0, -1.0, np.inf, np.nan])
def test_a_concentration_must_be_positive(alpha):
    with pytest.raises(ValueError, match="alpha ="):
        partition(data(10), clients=2, how="dirichlet", seed=0, alpha=alpha)


def test_a_data_set_checks_its_writers():
    with pytest.raises(ValueError, match="3 rows have persons of shape"):
        dataclasses.replace(data(3).train, persons=np.array([1, 2]))
