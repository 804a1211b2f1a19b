"""Data sets in a folder of idx files, under the names MNIST and EMNIST give them."""

import os
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

_IMAGES, _LABELS = "images-idx3-ubyte", "labels-idx1-ubyte"
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
    for place in dict.fromkeys(Path(os.path.realpath(folder / place)) for place in _PLACES):
        if split is None and _find(place, f"train-{_IMAGES}") is not None:
            found.append((place, None))
        found += [
            (place, name)
            for name in EMNIST_CLASSES
            if split in (None, name) and _find(place, f"emnist-{name}-train-{_IMAGES}")
        ]
    return found


def load_idx(folder: Path, *, split: str | None = None) -> Dataset:
    """Return the data set in a folder, or in torchvision's usual place below it.

    Files may be plain or end in ``.gz``. EMNIST images, which are stored transposed, are turned
    upright, and the labels of its ``letters`` start at 0. If QMNIST's label file lies
    beside MNIST's images, it gives the writer of each. There need not be a test part.

    Args:
        folder: Holds ``train-images-idx3-ubyte`` and so on, or ``emnist-<split>-train-…``.
        split: Which split of EMNIST, where the folder holds several.

    Raises:
        ValueError: If files are missing, damaged, do not fit together, or several sets are there.
    """
    check_split(split)
    found = find_idx(folder, split)
    if not found:
        wanted = f"emnist-{split}-train" if split else "train"
        raise UserError(
            f"folder {folder} has no {wanted}-{_IMAGES} (plain or .gz): give the folder that "
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
    first, classes = (1 if split == "letters" else 0), EMNIST_CLASSES[split]

    def read(part: str) -> tuple[Records, Reading]:
        images, labels = _images_and_labels(place, f"emnist-{split}-{part}")
        # Transposed images are a view: half a million are not copied.
        upright = images.transpose(0, 2, 1)[:, np.newaxis]
        return usable_records(f"{place} ({part})", (upright,), labels - first, classes=classes)

    train, reading = read("train")
    return Dataset(
        name=f"emnist {split}",
        train=train,
        test_part=read("test")[0] if _has(place, f"emnist-{split}-test") else None,
        class_count=classes,
        reading=reading,
    )


def _load_mnist(place: Path) -> Dataset:
    inputs, targets = _images_and_labels(place, "train")
    train = Records(inputs=inputs[:, np.newaxis], targets=targets, persons=_writers(place, targets))
    test, most = None, targets.max()
    if _has(place, "t10k"):
        inputs, targets = _images_and_labels(place, "t10k")
        test, most = (
            Records(inputs=inputs[:, np.newaxis], targets=targets),
            max(most, targets.max()),
        )
    return Dataset(
        name=str(place),
        train=train,
        test_part=test,
        class_count=max(2, int(most) + 1),
        reading=Reading(rows=len(train)),
    )


def _has(place: Path, part: str) -> bool:
    return any(_find(place, f"{part}-{what}") for what in (_IMAGES, _LABELS))


def _images_and_labels(place: Path, part: str) -> tuple[NDArray[Any], NDArray[np.int64]]:
    image_file = _need(place, f"{part}-{_IMAGES}")
    label_file = _need(place, f"{part}-{_LABELS}")
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
