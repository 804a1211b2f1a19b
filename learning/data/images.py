"""Images as files, in one folder per class: torchvision's ImageFolder layout."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from coinflower.accounting.errors import UserError
from coinflower.learning.data.dataset import Dataset
from coinflower.learning.data.reading import Fault, Reading, sort_out
from coinflower.learning.data.records import Records
from coinflower.learning.data.tables.schema import Schema
from coinflower.learning.vision import torchvision_datasets

_ENDINGS = frozenset({".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp"})
_TRAIN, _TEST = ("train",), ("test", "val")


def holds_images(folder: Path) -> bool:
    """Return whether a folder has folders of images, by class, in parts or without."""
    return any(any(_images(place)) for place in (folder, *(folder / part for part in _TRAIN)))


def _images(folder: Path) -> Iterator[Path]:
    """Yield images by class; hidden files are none, whatever their name."""
    for path in folder.glob("*/*"):
        if path.suffix.lower() in _ENDINGS and not path.name.startswith(".") and path.is_file():
            yield path


def load_images(folder: Path, schema: Schema | None = None) -> Dataset:
    """Return colour images of one size: ``CLASS/IMAGE``, or that in ``train`` and in ``test``.

    Args:
        folder: Holds a folder per class, or ``train`` and ``test`` (or ``val``) with these.
        schema: Its target's values name the folders in the order of their classes; they are sorted
            by name if there is none. All clients must mean the same by class 0, so one is needed
            unless all have all folders.

    Raises:
        UserError: There are no images, or most cannot be used.
    """
    train = next((folder / name for name in _TRAIN if (folder / name).is_dir()), folder)
    test = next((folder / name for name in _TEST if (folder / name).is_dir()), None)
    if train == folder:
        test = None
    names = sorted(path.name for path in train.iterdir() if path.is_dir())
    classes: Sequence[str] = names
    if schema is not None:
        if schema.class_names is None:
            raise UserError(f"{folder}: the target of the schema must be one category, the folder")
        classes = schema.class_names
    hash_ = None if schema is None else schema.hash
    records, reading = _read(train, classes, hash_)
    return Dataset(
        name=str(folder),
        train=records,
        test_part=None if test is None else _read(test, classes, hash_)[0],
        class_count=max(2, len(classes)),
        reading=reading,
    )


def _read(folder: Path, classes: Sequence[str], schema: str | None) -> tuple[Records, Reading]:
    numbers = {name: number for number, name in enumerate(classes)}
    files = sorted(_images(folder))
    if not files:
        raise UserError(f"{folder} has no images in folders named by their class")
    open_image = torchvision_datasets().folder.pil_loader
    images: list[NDArray[np.uint8] | None] = []
    for path in files:
        try:
            images.append(np.asarray(open_image(str(path))))
        except Exception:  # whatever a damaged or hostile file makes PIL raise
            images.append(None)
    sizes = Counter(image.shape for image in images if image is not None)
    size = max(sizes, key=sizes.__getitem__, default=(1, 1, 3))
    faults = [
        Fault(
            rows=np.array([path.parent.name not in numbers for path in files]),
            why=lambda row: f"{files[row]} is in a folder that names no class",
        ),
        Fault(
            rows=np.array([image is None for image in images]),
            why=lambda row: f"{files[row]} cannot be read as an image",
        ),
        Fault(
            rows=np.array([image is not None and image.shape != size for image in images]),
            why=lambda row: f"{files[row]} is not of size {size[1]} x {size[0]} like most images",
        ),
    ]
    kept, reading = sort_out(str(folder), len(files), faults)
    rows = range(len(files)) if kept is None else np.flatnonzero(kept)
    inputs = np.stack([image for row in rows if (image := images[row]) is not None])
    targets = np.array([numbers[files[row].parent.name] for row in rows], dtype=np.int64)
    channels_first = inputs.transpose(0, 3, 1, 2)
    return Records(inputs=channels_first, targets=targets, schema=schema), reading
