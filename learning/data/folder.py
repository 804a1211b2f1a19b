"""Data sets in a folder of idx files, under the names MNIST and EMNIST give them."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coinflower.accounting.errors import UserError
from coinflower.learning.data.dataset import Dataset
from coinflower.learning.data.idx import read_idx
from coinflower.learning.data.reading import Reading, usable_records
from coinflower.learning.data.records import Records

EMNIST_CLASSES = {
    "byclass": 62,
    "bymerge": 47,
    "balanced": 47,
    "letters": 26,
    "digits": 10,
    "mnist": 10,
}

_PLACES = (".", "raw", "MNIST/raw", "FashionMNIST/raw", "EMNIST/raw")


def check_split(split: str | None) -> None:
    """Refuse a name that is not a split of EMNIST."""
    if split is not None and split not in EMNIST_CLASSES:
        raise UserError(
            f"split = {split!r} must be one of {', '.join(EMNIST_CLASSES)} (EMNIST only)"
        )


def find_idx(folder: Path, split: str | None = None) -> list[tuple[Path, str | None]]:
    """Return the places in a folder that hold idx files, each with its split of EMNIST."""
    found: list[tuple[Path, str | None]] = []
    for place in dict.fromkeys((folder / place).resolve() for place in _PLACES):
        if split is None and _find(place, "train-images-idx3-ubyte") is not None:
            found.append((place, None))
        found += [
            (place, name)
            for name in EMNIST_CLASSES
            if split in (None, name) and _find(place, f"emnist-{name}-train-images-idx3-ubyte")
        ]
    return found


def load_idx(folder: Path, *, split: str | None = None) -> Dataset:
    """Return the data set in a folder, or in torchvision's usual place below it.

    Files may be plain or end in ``.gz``. EMNIST images, which are stored transposed, are turned
    upright, and the labels of its ``letters`` start at 0. If QMNIST's label file lies
    beside MNIST's images, it gives the writer of each.

    Args:
        folder: Holds ``train-images-idx3-ubyte`` and so on, or ``emnist-<split>-train-…``.
        split: Which split of EMNIST, where the folder holds several.

    Raises:
        ValueError: If files are missing, damaged, do not fit together, or several sets are there.
    """
    check_split(split)
    found = find_idx(folder, split)
    if not found:
        wanted = f"emnist-{split}-train-images" if split else "train-images"
        raise UserError(
            f"folder {folder} has no {wanted}-idx3-ubyte (plain or .gz): give the folder that "
            "holds the MNIST-style idx files"
        )
    if len(found) > 1:
        names = ", ".join(f"{place} ({name or 'MNIST-style'})" for place, name in found)
        raise UserError(
            f"folder {folder} has several data sets, {names}: name the inner folder or the "
            "EMNIST split"
        )
    place, name = found[0]
    return _load_emnist(place, name) if name is not None else _load_mnist(place)


def _load_emnist(place: Path, split: str) -> Dataset:
    train, test = (
        _images_and_labels(place, f"emnist-{split}-{part}-images", f"emnist-{split}-{part}-labels")
        for part in ("train", "test")
    )
    first, classes = (1 if split == "letters" else 0), EMNIST_CLASSES[split]
    # Transposed images are a view: half a million are not copied.
    (train_part, reading), (test_part, _) = (
        usable_records(
            f"{place} ({part})",
            (images.transpose(0, 2, 1)[:, np.newaxis],),
            labels - first,
            classes=classes,
        )
        for part, (images, labels) in (("train", train), ("test", test))
    )
    return Dataset(
        name=f"emnist {split}",
        train=train_part,
        test_part=test_part,
        class_count=classes,
        reading=reading,
    )


def _load_mnist(place: Path) -> Dataset:
    inputs, targets = _images_and_labels(place, "train-images", "train-labels")
    train = Records(inputs=inputs[:, np.newaxis], targets=targets, persons=_writers(place, targets))
    inputs, targets = _images_and_labels(place, "t10k-images", "t10k-labels")
    test = Records(inputs=inputs[:, np.newaxis], targets=targets)
    return Dataset(
        name=str(place),
        train=train,
        test_part=test,
        class_count=max(2, int(max(train.targets.max(), test.targets.max())) + 1),
        reading=Reading(rows=len(train)),
    )


def _images_and_labels(
    place: Path, images: str, labels: str
) -> tuple[NDArray[Any], NDArray[np.int64]]:
    image_file = _need(place, f"{images}-idx3-ubyte")
    label_file = _need(place, f"{labels}-idx1-ubyte")
    inputs = read_idx(image_file, dimensions=3)
    targets = read_idx(label_file, dimensions=1)
    for path, array in ((image_file, inputs), (label_file, targets)):
        if array.dtype != np.uint8:
            raise UserError(f"{path} holds {array.dtype} values; it must hold unsigned bytes")
    if len(inputs) != len(targets):
        raise UserError(
            f"{image_file} has {len(inputs)} images, but {label_file.name} has "
            f"{len(targets)} labels"
        )
    if len(inputs) == 0:
        raise UserError(f"{image_file} has no images")
    return inputs, targets.astype(np.int64)


def _writers(place: Path, targets: NDArray[np.int64]) -> NDArray[np.int64] | None:
    path = _find(place, "qmnist-train-labels-idx2-int")
    if path is None:
        return None
    rows = read_idx(path, dimensions=2)
    if rows.shape != (len(targets), 8) or not np.array_equal(rows[:, 0], targets):
        raise UserError(
            f"{path} has shape {rows.shape} and does not describe the {len(targets)} training "
            "images beside it: its first column must repeat their labels"
        )
    return rows[:, 2].astype(np.int64)


def _find(place: Path, name: str) -> Path | None:
    for candidate in (place / name, place / f"{name}.gz"):
        if candidate.is_file():
            return candidate
    return None


def _need(place: Path, name: str) -> Path:
    path = _find(place, name)
    if path is None:
        raise UserError(f"{place / name} (or {name}.gz) is missing: copy it beside the other files")
    return path
