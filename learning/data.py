"""Data sets by name or path."""

import difflib
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from learning.dataset import Dataset
from learning.folder import check_split, emnist_dataset, load_folder

_TORCHVISION = {"mnist": "MNIST", "fashionmnist": "FashionMNIST", "emnist": "EMNIST"}
NAMES = ("digits", *_TORCHVISION)
_DIGITS_TRAIN = 1437


def load_data(
    spec: str,
    *,
    split: str | None = None,
    root: str | Path = "data",
    download: bool = False,
) -> Dataset:
    """Returns a data set.

    Args:
        spec: ``digits`` (1,797 digits of 8 x 8 pixels that come with scikit-learn), ``mnist``,
            ``fashionmnist`` or ``emnist`` (through torchvision), a folder of MNIST-style idx files,
            or an ``.npz`` file with arrays x_train, y_train, x_test and y_test.
        split: The split of EMNIST; ``byclass`` unless given, in a folder the one that is there.
        root: Where torchvision keeps its files; of no concern to other data.
        download: Whether torchvision may fetch what is not in ``root``.

    Raises:
        ValueError: If the data is unknown, missing, damaged or of the wrong shape.
    """
    check_split(split)
    if spec == "digits":
        return _load_digits()
    if spec in _TORCHVISION:
        return _load_torchvision(spec, split or "byclass", Path(root), download)
    path = Path(spec).expanduser()
    if path.is_dir():
        return load_folder(path, split=split)
    if path.is_file() and path.suffix == ".npz":
        return _load_npz(path)
    if path.exists():
        raise ValueError(f"data {spec!r} is neither a folder of idx files nor an .npz file")
    near = difflib.get_close_matches(spec.lower(), NAMES, n=1)
    hint = f" (did you mean {near[0]}?)" if near else ""
    raise ValueError(
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


def _load_torchvision(spec: str, split: str, root: Path, download: bool) -> Dataset:
    from learning.vision import torchvision_datasets

    source = getattr(torchvision_datasets(), _TORCHVISION[spec])
    options = {"split": split} if spec == "emnist" else {}
    try:
        parts = [
            source(str(root), train=train, download=download, **options) for train in (True, False)
        ]
    except (RuntimeError, OSError) as error:
        advice = "check the network" if download else "allow the download, or name a folder instead"
        raise ValueError(
            f"data {spec!r} cannot be loaded from {root}: {' '.join(str(error).split())}; {advice}"
        ) from error
    train, test = ((part.data.numpy(), part.targets.numpy()) for part in parts)
    if spec == "emnist":
        return emnist_dataset(split, train, test)
    return Dataset(
        name=spec,
        train_inputs=train[0],
        train_targets=train[1].astype(np.int64),
        test_inputs=test[0],
        test_targets=test[1].astype(np.int64),
        classes=10,
    )


def _load_npz(path: Path) -> Dataset:
    keys = ("x_train", "y_train", "x_test", "y_test")
    try:
        with np.load(path, allow_pickle=False) as archive:
            missing = [key for key in keys if key not in archive]
            if missing:
                raise ValueError(f"it has no array {missing[0]!r}, only {', '.join(archive)}")
            x_train, y_train, x_test, y_test = (archive[key] for key in keys)
    except (ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
        raise ValueError(f"{path} cannot be read as data: {error}") from None
    for key, labels in (("y_train", y_train), ("y_test", y_test)):
        if labels.ndim != 1 or labels.dtype.kind not in "iu" or len(labels) == 0:
            raise ValueError(
                f"{path}: {key} has shape {labels.shape} and type {labels.dtype}, but must be a "
                "vector of integer classes"
            )
    return Dataset(
        name=str(path),
        train_inputs=_pixels(x_train),
        train_targets=y_train.astype(np.int64),
        test_inputs=_pixels(x_test),
        test_targets=y_test.astype(np.int64),
        classes=max(2, int(max(y_train.max(), y_test.max())) + 1),
    )


def _pixels(inputs: NDArray[Any]) -> NDArray[Any]:
    return inputs.astype(np.float32) if inputs.dtype.kind == "f" else inputs
