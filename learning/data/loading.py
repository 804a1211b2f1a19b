"""Data sets by name or path."""

import difflib
import functools
from pathlib import Path

from coinflower.accounting.errors import UserError
from coinflower.learning.data.arrays import holds_npy, load_npy, load_npz
from coinflower.learning.data.dataset import Dataset
from coinflower.learning.data.files import TABLES, data_files, ending, load_files
from coinflower.learning.data.folder import check_split, find_idx, load_idx
from coinflower.learning.data.images import holds_images, load_images
from coinflower.learning.data.named import NAMES, load_colour_folder, load_named
from coinflower.learning.data.own_loader import is_own_loader, load_by_own_function
from coinflower.learning.data.tables.schema import Schema, load_schema

_SOURCES = (
    "a .csv, .parquet or .npz file, a folder of these, of idx files, .npy files or images, or your "
    "own package.module:function"
)


def load_data(
    spec: str,
    *,
    schema: str | Path | None = None,
    numbers: bool | None = False,
    split: str | None = None,
    root: str | Path = "data",
    download: bool = False,
) -> Dataset:
    """Return a data set.

    Args:
        spec: ``digits`` (1,797 digits of 8 x 8 pixels that come with scikit-learn), a name of
            torchvision's in small letters such as ``mnist`` or ``cifar10``, a folder of MNIST-style
            idx files, of x.npy and y.npy, or of images in folders by class, a ``.csv``,
            ``.parquet`` or ``.npz`` file, a folder of such files, or ``package.module:function``.
        schema: Path of the schema that says how tables are read, or what the classes of images are.
        numbers: Whether the targets of arrays are numbers; else they are classes. None takes whole
            numbers for classes, and others for numbers.
        split: The split of EMNIST; by default ``byclass``, or in a folder the one that is there.
        root: Where torchvision keeps its files; other data ignores it.
        download: Whether torchvision may fetch named data that is not in ``root``.

    Raises:
        ValueError: If the data is unknown, missing, damaged or of the wrong shape.
    """
    check_split(split)
    path = Path(spec).expanduser()
    read_by = None if schema is None else load_schema(Path(schema))
    if spec in NAMES or is_own_loader(spec):
        _refuse_schema(spec, read_by)
    if spec in NAMES:
        return load_named(spec, split=split, root=Path(root).expanduser(), download=download)
    if is_own_loader(spec):
        return load_by_own_function(spec, numbers=numbers)
    if path.is_dir():
        return _load_folder(path, schema=read_by, numbers=numbers, split=split)
    if path.is_file() and ending(path) in (*TABLES, ".npz"):
        return _load_file(path, schema=read_by, numbers=numbers)
    if path.exists():
        raise UserError(f"data {spec!r} cannot be read by its name: give {_SOURCES}")
    near = difflib.get_close_matches(spec.lower(), NAMES, n=1)
    hint = f" (did you mean {near[0]}?)" if near else ""
    raise UserError(
        f"data {spec!r} does not exist{hint}: give one of {', '.join(NAMES)}, {_SOURCES}"
    )


def _load_folder(
    folder: Path, *, schema: Schema | None, numbers: bool | None, split: str | None
) -> Dataset:
    if not find_idx(folder, split):
        if holds_npy(folder):
            _refuse_schema(folder, schema)
            return load_npy(folder, numbers=numbers)
        if data_files(folder) and holds_images(folder):
            raise UserError(
                f"folder {folder} has tables or .npz files as well as folders of images: name a "
                "folder that has only one of them"
            )
        if data_files(folder):
            load = functools.partial(_load_file, schema=schema, numbers=numbers)
            return load_files(folder, load)
        if holds_images(folder):
            return load_images(folder, schema)
        _refuse_schema(folder, schema)
        colour = load_colour_folder(folder)
        if colour is not None:
            return colour
        if split is None:
            raise UserError(
                f"folder {folder} holds no data: neither .csv, .parquet or .npz files, nor x.npy, "
                "nor images in folders by class, nor train-images-idx3-ubyte (plain or .gz)"
            )
    _refuse_schema(folder, schema)
    return load_idx(folder, split=split)


def _load_file(path: Path, *, schema: Schema | None, numbers: bool | None) -> Dataset:
    if ending(path) in TABLES:
        if schema is None:
            raise UserError(
                f"{path} is a table, and needs a schema that says how its columns are read; draft "
                f"one with: coinflower data schema {path}"
            )
        from coinflower.learning.data.tables.table import load_table

        return load_table(path, schema)
    _refuse_schema(path, schema)
    return load_npz(path, numbers=numbers)


def _refuse_schema(spec: str | Path, schema: Schema | None) -> None:
    if schema is not None:
        raise UserError(
            f"data {str(spec)!r} is read without a schema: it is no table; leave it out"
        )
