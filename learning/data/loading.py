"""Data sets by name or path."""

import difflib
import zipfile
import zlib
from dataclasses import replace
from http.client import HTTPException
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coinflower.accounting.errors import UserError
from coinflower.learning.data.dataset import Dataset
from coinflower.learning.data.folder import check_split, load_folder
from coinflower.learning.data.records import usable_records

_TORCHVISION = {"mnist": "MNIST", "fashionmnist": "FashionMNIST", "emnist": "EMNIST"}
NAMES = ("digits", *_TORCHVISION)
_DIGITS_TRAIN = 1437
_DOWNLOAD_ERRORS = (OSError, EOFError, HTTPException, zipfile.BadZipFile, zlib.error)


def load_data(
    spec: str,
    *,
    split: str | None = None,
    root: str | Path = "data",
    download: bool = False,
) -> Dataset:
    """Return a data set.

    Args:
        spec: ``digits`` (1,797 digits of 8 x 8 pixels that come with scikit-learn), ``mnist``,
            ``fashionmnist`` or ``emnist`` (through torchvision), a folder of MNIST-style idx files,
            or an ``.npz`` file with arrays x_train, y_train, x_test and y_test.
        split: The split of EMNIST; by default ``byclass``, or in a folder the one that is there.
        root: Where torchvision keeps its files; other data ignores it.
        download: Whether torchvision may fetch named data that is not in ``root``.

    Raises:
        ValueError: If the data is unknown, missing, damaged or of the wrong shape.
    """
    check_split(split)
    if spec == "digits":
        return _load_digits()
    if spec in _TORCHVISION:
        if spec == "emnist":
            split = split or "byclass"
        elif split is not None:
            raise UserError(f"split = {split!r} must be left out: data {spec!r} has no splits")
        return _load_torchvision(spec, split, Path(root).expanduser(), download)
    path = Path(spec).expanduser()
    if path.is_dir():
        return load_folder(path, split=split)
    if path.is_file() and path.suffix == ".npz":
        return _load_npz(path)
    if path.exists():
        raise UserError(f"data {spec!r} is neither a folder of idx files nor an .npz file")
    near = difflib.get_close_matches(spec.lower(), NAMES, n=1)
    hint = f" (did you mean {near[0]}?)" if near else ""
    raise UserError(
        f"data {spec!r} does not exist{hint}: give one of {', '.join(NAMES)}, a folder of idx "
        "files or an .npz file"
    )


def _load_digits() -> Dataset:
    from sklearn.datasets import load_digits

    images, targets = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(targets))
    inputs = (images.reshape(-1, 8, 8) / 16).astype(np.float32)[order]
    targets = targets.astype(np.int64)[order]
    return Dataset(
        name="digits",
        train_inputs=inputs[:_DIGITS_TRAIN],
        train_targets=targets[:_DIGITS_TRAIN],
        test_inputs=inputs[_DIGITS_TRAIN:],
        test_targets=targets[_DIGITS_TRAIN:],
        classes=10,
    )


def _load_torchvision(spec: str, split: str | None, root: Path, download: bool) -> Dataset:
    place = root / _TORCHVISION[spec] / "raw"
    first = f"emnist-{split}-train-images-idx3-ubyte" if split else "train-images-idx3-ubyte"
    if not any((place / f"{first}{suffix}").exists() for suffix in ("", ".gz")):
        if not download:
            raise UserError(
                f"data {spec!r} is not there: {place} has no {first}; allow the download "
                "(--download), or name a folder that holds it"
            )
        _fetch(spec, split, root)
    data = load_folder(place, split=split)
    return data if split else replace(data, name=spec, classes=10)


def _fetch(spec: str, split: str | None, root: Path) -> None:
    """Let torchvision download what it can find; our own reader reads it."""
    from coinflower.learning.data.vision import torchvision_datasets

    source = getattr(torchvision_datasets(), _TORCHVISION[spec])
    options = {"split": split} if split else {}
    try:
        source(str(root), train=False, download=True, **options)
    except (RuntimeError, *_DOWNLOAD_ERRORS) as error:
        raise UserError(
            f"data {spec!r} cannot be downloaded to {root}: {' '.join(str(error).split())}; check "
            "the network and the space on disk, or name a folder that holds it"
        ) from error


def _load_npz(path: Path) -> Dataset:
    keys = ("x_train", "y_train", "x_test", "y_test")
    try:
        with np.load(path, allow_pickle=False) as archive:
            missing = [key for key in keys if key not in archive]
            if missing:
                raise UserError(f"it has no array {missing[0]!r}, only {', '.join(archive)}")
            x_train, y_train, x_test, y_test = (archive[key] for key in keys)
    except (ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
        raise UserError(f"{path} cannot be read as data: {error}") from None
    for key, labels in (("y_train", y_train), ("y_test", y_test)):
        if labels.ndim != 1 or labels.dtype.kind not in "iuf" or len(labels) == 0:
            raise UserError(
                f"{path}: {key} of shape {labels.shape} and type {labels.dtype} must be a vector "
                "of integer classes"
            )
    train_inputs, train_targets = usable_records(str(path), _pixels(x_train), y_train)
    test_inputs, test_targets = usable_records(f"{path} (test part)", _pixels(x_test), y_test)
    return Dataset(
        name=str(path),
        train_inputs=train_inputs,
        train_targets=train_targets,
        test_inputs=test_inputs,
        test_targets=test_targets,
        classes=max(2, int(max(train_targets.max(), test_targets.max())) + 1),
    )


def _pixels(inputs: NDArray[Any]) -> NDArray[Any]:
    with np.errstate(over="ignore"):  # becomes infinite, and is no pixel then
        return inputs.astype(np.float32) if inputs.dtype.kind == "f" else inputs
