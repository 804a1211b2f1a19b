"""Data sets by name or path."""

import difflib
from pathlib import Path

from coinflower.accounting.errors import UserError
from coinflower.learning.data.arrays import holds_npy, load_npy, load_npz
from coinflower.learning.data.dataset import Dataset
from coinflower.learning.data.folder import check_split, find_idx, load_idx
from coinflower.learning.data.images import holds_images, load_images
from coinflower.learning.data.named import NAMES, load_named
from coinflower.learning.data.own_loader import is_own_loader, load_by_own_function

_SOURCES = (
    "a folder of idx files, .npy files or images, an .npz file, or your own package.module:function"
)


def load_data(
    spec: str,
    *,
    numbers: bool = False,
    split: str | None = None,
    root: str | Path = "data",
    download: bool = False,
) -> Dataset:
    """Return a data set.

    Args:
        spec: ``digits`` (1,797 digits of 8 x 8 pixels that come with scikit-learn), a name of
            torchvision's in small letters such as ``mnist`` or ``cifar10``, a folder of MNIST-style
            idx files, of x.npy and y.npy, or of images in folders by class, an ``.npz`` file, or
            ``package.module:function``.
        numbers: Whether the targets of arrays are numbers; else they are classes.
        split: The split of EMNIST; by default ``byclass``, or in a folder the one that is there.
        root: Where torchvision keeps its files; other data ignores it.
        download: Whether torchvision may fetch named data that is not in ``root``.

    Raises:
        ValueError: If the data is unknown, missing, damaged or of the wrong shape.
    """
    check_split(split)
    if spec in NAMES:
        return load_named(spec, split=split, root=Path(root).expanduser(), download=download)
    if is_own_loader(spec):
        return load_by_own_function(spec, numbers=numbers)
    path = Path(spec).expanduser()
    if path.is_dir():
        return _load_folder(path, numbers=numbers, split=split)
    if path.is_file() and path.suffix == ".npz":
        return load_npz(path, numbers=numbers)
    if path.exists():
        raise UserError(f"data {spec!r} cannot be read by its name: give {_SOURCES}")
    near = difflib.get_close_matches(spec.lower(), NAMES, n=1)
    hint = f" (did you mean {near[0]}?)" if near else ""
    raise UserError(
        f"data {spec!r} does not exist{hint}: give one of {', '.join(NAMES)}, {_SOURCES}"
    )


def _load_folder(folder: Path, *, numbers: bool, split: str | None) -> Dataset:
    if not find_idx(folder, split):
        if holds_npy(folder):
            return load_npy(folder, numbers=numbers)
        if holds_images(folder):
            return load_images(folder)
    return load_idx(folder, split=split)
