"""How the training rows of a data set are divided among clients."""

import numpy as np
from numpy.typing import NDArray

from coinflower.accounting.errors import UserError
from coinflower.learning.data.dataset import Dataset
from coinflower.learning.data.persons import Units, units_of
from coinflower.learning.data.rows import Rows
from coinflower.protocol.unit import Unit

HOW = ("equal", "writer", "dirichlet", "files")


def partition(
    dataset: Dataset,
    *,
    clients: int,
    how: str,
    seed: int,
    alpha: float = 0.5,
    unit: Unit = Unit.RECORD,
) -> list[Rows]:
    """Return the training rows of each client, ascending; no unit goes to two clients.

    Args:
        dataset: The data to divide.
        clients: Number of clients, at most the number of units to train on.
        how: ``equal`` (shuffled, sizes differ by at most one, every unit is given out), ``writer``
            (one writer per client, chosen by a seeded shuffle), ``dirichlet`` (each class is
            spread over the clients in proportions drawn from a symmetric Dirichlet distribution;
            every unit is given out and every client has at least one; a person counts as of the
            class that most of its rows have), or ``files`` (every file of a folder is one client).
        seed: Equal seeds give equal partitions.
        alpha: Concentration of ``dirichlet``: the smaller, the more clients differ.
        unit: What is given out whole: a row, or a person with all its rows.

    Raises:
        ValueError: If the data cannot be divided in that way.
    """
    if how not in HOW:
        raise UserError(f"partition = {how!r} must be one of {', '.join(HOW)}")
    units = units_to_share(dataset, how, unit)
    if not 1 <= clients <= len(units):
        raise UserError(
            f"clients = {clients} must lie in 1 to {len(units)}, the number of training {unit}s of "
            f"{dataset.name}"
        )
    if how == "files":
        return _by_file(dataset, clients)
    generator = np.random.default_rng(seed)
    if how == "writer":
        return _by_writer(dataset, clients, generator)
    if how == "dirichlet":
        parts = _by_label(_labels(dataset, units), clients, alpha, generator)
    else:
        parts = np.array_split(generator.permutation(len(units)), clients)
    return [np.sort(units.rows_of(part)) for part in parts]


def units_to_share(dataset: Dataset, how: str, unit: Unit) -> Units:
    """Return what is given out whole.

    If every file is one client, somebody in two files is at two clients, each of which protects the
    rows that it has.

    Raises:
        UserError: As `units_of`, or there are no files.
    """
    units = units_of(dataset.train, unit, dataset.name)
    if how != "files" or unit is Unit.RECORD:
        return units
    file = np.zeros(len(dataset.train), dtype=np.int64)
    for number, rows in enumerate(_files(dataset).values()):
        file[rows] = number
    return Units.numbered(np.unique(file * len(units) + units.of, return_inverse=True)[1])


def _labels(dataset: Dataset, units: Units) -> Rows:
    """Return the class of each unit that most of its rows have, the first of several."""
    classes, targets = dataset.classes, dataset.train.targets  # there must be some to spread
    if len(units) == len(targets):
        return np.asarray(targets[units.order])
    counts = np.zeros((len(units), classes), dtype=np.int64)
    np.add.at(counts, (units.of, targets), 1)
    return np.asarray(counts.argmax(axis=1))


def file_count(dataset: Dataset) -> int:
    """Return how many files the data came in.

    Raises:
        UserError: It is not a folder of such files.
    """
    return len(_files(dataset))


def _files(dataset: Dataset) -> dict[str, Rows]:
    if dataset.files is None:
        raise UserError(
            f"partition by files needs a folder of .csv, .parquet or .npz files, one for each "
            f"client, but {dataset.name} is none"
        )
    return dataset.files


def _by_file(dataset: Dataset, clients: int) -> list[Rows]:
    if clients != file_count(dataset):
        raise UserError(
            f"clients = {clients} must be {file_count(dataset)}, the number of files of "
            f"{dataset.name}, or be left out"
        )
    parts = _files(dataset)
    for name, rows in parts.items():
        if len(rows) == 0:
            raise UserError(f"{name} of {dataset.name} has no rows left to train on")
    return list(parts.values())


def _by_writer(dataset: Dataset, clients: int, generator: np.random.Generator) -> list[Rows]:
    if dataset.train.persons is None:
        raise UserError(
            f"partition by writer needs writer ids, but {dataset.name} has none: use "
            "equal or dirichlet"
        )
    writers = np.unique(dataset.train.persons)
    if clients > len(writers):
        raise UserError(
            f"clients = {clients} must be at most {len(writers)}, the number of writers of "
            f"{dataset.name}"
        )
    chosen = generator.permutation(writers)[:clients]
    return [np.flatnonzero(dataset.train.persons == writer).astype(np.int64) for writer in chosen]


def _by_label(
    targets: NDArray[np.int64], clients: int, alpha: float, generator: np.random.Generator
) -> list[Rows]:
    if not 0 < alpha < np.inf:
        raise UserError(f"alpha = {alpha} must be positive and finite")
    owner = np.empty(len(targets), dtype=np.int64)
    for label in np.unique(targets):
        rows = generator.permutation(np.flatnonzero(targets == label))
        shares = generator.dirichlet(np.full(clients, alpha))
        cuts = np.rint(np.cumsum(shares)[:-1] * len(rows)).astype(np.int64)
        for client, part in enumerate(np.split(rows, cuts)):
            owner[part] = client
    sizes = np.bincount(owner, minlength=clients)
    for empty in np.flatnonzero(sizes == 0):
        largest = int(sizes.argmax())
        owner[generator.choice(np.flatnonzero(owner == largest))] = empty
        sizes[largest] -= 1
        sizes[empty] = 1
    return [np.flatnonzero(owner == client).astype(np.int64) for client in range(clients)]
