"""One small data set in every form that data may have."""

from __future__ import annotations

import gzip
import pickle
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.csv as pa_csv
import pyarrow.parquet as pa_parquet
from PIL import Image

from tests.support import tables

ROWS = 200
_RNG = np.random.default_rng(11)
COLOUR = _RNG.integers(0, 256, (ROWS, 3, 8, 8), dtype=np.uint8)
WORDS = _RNG.integers(0, 50, (ROWS, 9))
VECTORS = _RNG.normal(size=(ROWS, 6))
CLASSES = np.arange(ROWS) % 3

Made = tuple[str, dict[str, Any]]
"""Name of the data, and what a plan of a run says besides."""
_IDX_CODES = {"uint8": 0x08, "int32": 0x0C, "float32": 0x0D}


def write_idx(path: Path, array: np.ndarray[Any, Any]) -> None:
    """Write an array as MNIST's files are written, compressed if the name says so."""
    header = bytes([0, 0, _IDX_CODES[array.dtype.name], array.ndim])
    content = header + struct.pack(f">{array.ndim}I", *array.shape)
    content += array.astype(array.dtype.newbyteorder(">")).tobytes()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)


def _npz(folder: Path, x: np.ndarray[Any, Any], y: np.ndarray[Any, Any], **options: Any) -> Made:
    np.savez(folder / "own.npz", x=x, y=y)
    return str(folder / "own.npz"), options


def _npy(folder: Path) -> Made:
    np.save(folder / "x.npy", VECTORS)
    np.save(folder / "y.npy", CLASSES)
    return str(folder), {}


def _idx(folder: Path) -> Made:
    for part, rows in (("train", ROWS), ("t10k", 20)):
        images = _RNG.integers(0, 256, (rows, 28, 28), dtype=np.uint8)
        for name, array in (("images-idx3", images), ("labels-idx1", CLASSES[:rows])):
            head = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes()
            path = folder / f"{part}-{name}-ubyte"
            path.write_bytes(head + array.astype(np.uint8).tobytes())
    return str(folder), {}


def _images(folder: Path) -> Made:
    for row, image in enumerate(COLOUR):
        place = folder / f"class-{CLASSES[row]}"
        place.mkdir(exist_ok=True)
        Image.fromarray(image.transpose(1, 2, 0)).save(place / f"{row}.png")
    return str(folder), {"model": "linear"}


def _cifar(folder: Path) -> Made:
    from coinflower.learning.vision import torchvision_datasets

    source = torchvision_datasets().CIFAR10
    place = folder / source.base_folder
    place.mkdir()
    for name, _ in [*source.train_list, *source.test_list]:
        pixels = _RNG.integers(0, 256, (40, 3072), dtype=np.uint8)
        content = {"data": pixels, "labels": [row % 10 for row in range(40)]}
        (place / name).write_bytes(pickle.dumps(content))
    meta = {"label_names": [str(number) for number in range(10)]}
    (place / source.meta["filename"]).write_bytes(pickle.dumps(meta))
    return str(folder), {"model": "linear"}


def _table(folder: Path, *, parquet: bool) -> Made:
    path = tables.write_ward(folder / "ward.csv", tables.ward_rows(ROWS))
    tables.write_schema(folder / "schema.toml")
    if parquet:
        pa_parquet.write_table(pa_csv.read_csv(path), path.with_suffix(".parquet"))
        path = path.with_suffix(".parquet")
    return str(path), {"schema": folder / "schema.toml"}


def _files(folder: Path) -> Made:
    wards = folder / "wards"
    for index in range(3):
        tables.write_ward(wards / f"{index}.csv", tables.ward_rows(30, seed=index))
    tables.write_schema(folder / "schema.toml")
    return str(wards), {"schema": folder / "schema.toml", "how": "files", "clients": None}


def own_rows() -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return inputs and targets, as an own loader does."""
    return VECTORS, CLASSES


SOURCES: dict[str, Callable[[Path], Made]] = {
    "digits": lambda _: ("digits", {}),
    "colour in npz": lambda folder: _npz(folder, COLOUR, CLASSES, model="linear"),
    "words in npz": lambda folder: _npz(folder, WORDS, CLASSES),
    "vectors in npz": lambda folder: _npz(folder, VECTORS, CLASSES),
    "numbers to predict": lambda folder: _npz(folder, VECTORS, VECTORS[:, :2]),
    "mapped npy": _npy,
    "idx files": _idx,
    "image folder": _images,
    "cifar10": _cifar,
    "csv": lambda folder: _table(folder, parquet=False),
    "parquet": lambda folder: _table(folder, parquet=True),
    "a file for each client": _files,
    "own loader": lambda _: ("tests.support.sources:own_rows", {}),
}
