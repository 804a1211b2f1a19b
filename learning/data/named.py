"""Public data sets by name: scikit-learn's digits, and some of torchvision's."""

import zipfile
import zlib
from dataclasses import replace
from http.client import HTTPException
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from coinflower.accounting.errors import UserError
from coinflower.learning.data.dataset import Dataset
from coinflower.learning.data.folder import load_idx
from coinflower.learning.data.reading import Reading
from coinflower.learning.data.records import Records
from coinflower.learning.vision import torchvision_datasets

_IDX = {"mnist": "MNIST", "fashionmnist": "FashionMNIST", "kmnist": "KMNIST", "emnist": "EMNIST"}
_COLOUR = {"cifar10": "CIFAR10", "cifar100": "CIFAR100"}
_COLOUR_FOLDERS = {"cifar-10-batches-py": "cifar10", "cifar-100-python": "cifar100"}
NAMES = ("digits", *_IDX, *_COLOUR)
KNOWN = {
    "digits": ((1, 8, 8), 10),
    **dict.fromkeys(("mnist", "fashionmnist", "kmnist"), ((1, 28, 28), 10)),
    "emnist": ((1, 28, 28), 62),
    "cifar10": ((3, 32, 32), 10),
    "cifar100": ((3, 32, 32), 100),
}
"""Shape of a row and number of classes, for whoever plans before the data is there."""
_DIGITS_TRAIN = 1437
_DOWNLOAD_ERRORS = (OSError, EOFError, HTTPException, zipfile.BadZipFile, zlib.error)


def load_named(spec: str, *, split: str | None, root: Path, download: bool) -> Dataset:
    """Return a data set of `NAMES`.

    Args:
        spec: Its name.
        split: The split of EMNIST, by default ``byclass``; others have none.
        root: Where torchvision keeps its files.
        download: Whether it may fetch what is not there.

    Raises:
        UserError: It is not there, damaged, or cannot be fetched.
    """
    if spec == "emnist":
        split = split or "byclass"
    elif split is not None:
        raise UserError(f"split = {split!r} must be left out: data {spec!r} has no splits")
    if spec == "digits":
        return _load_digits()
    if spec in _COLOUR:
        return _load_colour(spec, root, download)
    return _load_idx(spec, split, root, download)


def load_colour_folder(folder: Path) -> Dataset | None:
    """Return the CIFAR data set that a folder is or holds, as torchvision lays it out.

    Raises:
        UserError: It is damaged.
    """
    for name, spec in _COLOUR_FOLDERS.items():
        for place in (folder, folder / name):
            if place.name == name and place.is_dir():
                return _load_colour(spec, place.parent, download=False)
    return None


def _load_digits() -> Dataset:
    # The file that load_digits reads, without the second that importing scikit-learn takes.
    package = find_spec("sklearn")
    assert package is not None
    assert package.origin is not None
    path = Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz"
    table = np.loadtxt(path, delimiter=",", dtype=np.float32)
    order = np.random.default_rng(0).permutation(len(table))
    inputs = (table[:, :-1].reshape(-1, 1, 8, 8) / 16)[order]
    targets = table[:, -1].astype(np.int64)[order]
    records = Records(inputs=inputs, targets=targets)
    return Dataset(
        name="digits",
        train=records.take(slice(_DIGITS_TRAIN)),
        test_part=records.take(slice(_DIGITS_TRAIN, None)),
        class_count=10,
        reading=Reading(rows=_DIGITS_TRAIN),
    )


def _load_idx(spec: str, split: str | None, root: Path, download: bool) -> Dataset:
    place = root / _IDX[spec] / "raw"
    first = f"emnist-{split}-train-images-idx3-ubyte" if split else "train-images-idx3-ubyte"
    if not any((place / f"{first}{suffix}").exists() for suffix in ("", ".gz")):
        if not download:
            raise UserError(_not_there(spec, f"{place} has no {first}"))
        # torchvision downloads what it can find; our own reader reads it.
        options = {"split": split} if split else {}
        _torchvision(spec, _IDX[spec], root, train=False, download=True, **options)
    data = load_idx(place, split=split)
    return data if split else replace(data, name=spec, class_count=10)


def _load_colour(spec: str, root: Path, download: bool) -> Dataset:
    source = getattr(torchvision_datasets(), _COLOUR[spec])
    if not download and not (root / source.base_folder).is_dir():
        raise UserError(_not_there(spec, f"{root} has no {source.base_folder}"))
    train, test = (
        _torchvision(spec, _COLOUR[spec], root, train=part, download=download)
        for part in (True, False)
    )
    parts = [
        Records(
            inputs=part.data.transpose(0, 3, 1, 2),  # a view: channels first, as models take them
            targets=np.asarray(part.targets, dtype=np.int64),
        )
        for part in (train, test)
    ]
    return Dataset(
        name=spec,
        train=parts[0],
        test_part=parts[1],
        class_count=len(train.classes),
        reading=Reading(rows=len(parts[0])),
    )


def _not_there(spec: str, what: str) -> str:
    return (
        f"data {spec!r} is not there: {what}; allow the download (--download), or name a folder "
        "that holds it"
    )


def _torchvision(spec: str, name: str, root: Path, **options: Any) -> Any:
    source = getattr(torchvision_datasets(), name)
    try:
        return source(str(root), **options)
    except (RuntimeError, *_DOWNLOAD_ERRORS) as error:
        said = " ".join(str(error).split())
        if not options["download"]:
            raise UserError(f"data {spec!r} in {root} cannot be used: {said}") from error
        raise UserError(
            f"data {spec!r} cannot be downloaded to {root}: {said}; check the network and the "
            "space on disk, or name a folder that holds it"
        ) from error
